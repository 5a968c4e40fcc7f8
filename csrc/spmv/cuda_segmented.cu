/* SpMV `csr_segmented`: equally many entries for every block, and a segmented scan.
 *
 * A piece (cuda_pieces.cuh) has so many entries, and as many rows as happen to end there. Their
 * products go to shared memory. Each row marks its first entry as a head; a row without entries is
 * written. Then thread t owns the entries 8t .. 8t + 7, and all runs are added up (cuda_runs.cuh):
 *
 *     thread      0                 1                 2
 *     products  | p p p p p p p p | p p p p p p p p | p p p p ...
 *     heads     | 5 . . 6 . . . . | . . . . . . . . | 8 . . . ...
 *
 * The heads are the segment descriptors of Blelloch et al. 1993 and Sengupta et al. 2007. Unlike
 * `merge`, it does the same for rows of any length, so it does more than short rows need. */
#include "cuda_pieces.cuh"

/* The rows of a piece mark their first entries. */
template <class T>
static __device__ __forceinline__ void mark_heads(const spmv_args<T> &s, place from, place to,
                                                  int32_t *marks)
{
    for (int64_t r = from.row + threadIdx.x; r <= to.row && r < s.a.rows; r += BLOCK) {
        int64_t begin;
        const bool some = row_range(s.a, r, &begin) > 0;
        if (some && begin >= from.p && begin < to.p) marks[begin - from.p] = int32_t(r) + 1;
        if (!some && r < to.row) write_row(s, r, 0);
    }
}

template <class T, class V>
static __global__ void __launch_bounds__(BLOCK, 6)
    spmv_segmented(const __grid_constant__ merge_args<T> m)
{
    typedef typename sum_of<T>::type A;
    __shared__ __align__(16) int32_t marks[PIECE];
    __shared__ __align__(16) A terms[PIECE];
    const spmv_args<T> &s = m.s;
    const int64_t b = blockIdx.x, first = b * m.cut.each,
                  last = min(first + m.cut.each, m.cut.count);
    let_next_start();
    place from, to;
    run_of<A> open = {A(0), 0};
    int32_t shared = 0; /* the row that is open before the block, plus one: another block's too */
    auto close = [&](const run_of<A> &r) {
        if (r.row && r.row == shared)
            m.records[2 * b] = r;
        else if (r.row)
            write_row(s, r.row - 1, r.sum);
    };
    for (int64_t k = first; k < last; k++) {
        bounds_of<T, false>(m, k, first, last, &from, &to);
        if (k == first) {
            open.row = shared = has_begun<T, false>(m, from) ? int32_t(from.row) + 1 : 0;
            if (threadIdx.x == 0 && gridDim.x > 1) m.records[2 * b] = open;
        }
        for (int q = threadIdx.x; q < PIECE; q += BLOCK) marks[q] = 0;
        __syncthreads();
        mark_heads(s, from, to, marks);
        multiply<V>(s, from, to, terms);
        __syncthreads();
        int32_t head[EACH];
        A term[EACH];
        memcpy(head, marks + threadIdx.x * EACH, sizeof head);
        memcpy(term, terms + threadIdx.x * EACH, sizeof term);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (int64_t(threadIdx.x) * EACH + i >= to.p - from.p) term[i] = A(0);
        add_runs<BLOCK>(head, term, &open, close);
    }
    if (threadIdx.x) return;
    if (gridDim.x > 1)
        m.records[2 * b + 1] = open;
    else
        close(open);
}

extern "C" size_t fmm_spmv_csr_segmented_workspace(const fmm_call *call)
{
    return pieces_room(call, 0);
}
extern "C" fmm_status fmm_spmv_csr_segmented(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] {
        launch_pieces(exec, call, 0, exec->workspace, NULL,
                      [](auto x, auto v) { return spmv_segmented<decltype(x), decltype(v)>; });
    });
}
