/* SpMV `dia`: diagonals of a matrix, each as long as the matrix has rows.
 *
 *     offsets   -2      0      1                     read where they are used, alike by all lanes
 *     row 0     .       a0     b0      thread 0      owns PER neighbouring rows: one load of up to
 *     row 1     .       a1     b1      thread 0      16 bytes for each diagonal
 *     row 2     c2      a2     b2      thread 1
 *     row 3     c3      a3     .       thread 1
 *               |       |      |
 *               x[i-2]  x[i]   x[i+1]                neighbouring lanes load neighbouring elements,
 *                                                    which the next diagonal finds in L1
 *
 * There are no column numbers, so a matrix of few diagonals costs little more than its values. The
 * loads of up to eight diagonals are under way at once, and nothing holds a thread up between them:
 * where blocks first brought the offsets to shared memory, their barriers cost some percent (H200).
 * A stored 0 is no entry: what x holds there, and whether it is there at all, does not matter. Sums
 * go diagonal by diagonal, CHAIN of them into one accumulator, so the bits are the same for every
 * PER.
 *
 * Bell and Garland, "Efficient Sparse Matrix-Vector Multiplication on CUDA", NVIDIA NVR-2008-004.
 */
#include "cuda.cuh"

/* What N diagonals, the first of which has the thread's first row at value p, add to its rows. */
template <class V, int N, int PER, class T, class A>
static __device__ __forceinline__ void add_batch(const padded_args<T> &d, const int64_t *offsets,
                                                 int64_t i, int64_t p, A *part)
{
    int64_t at[N];
    int32_t j[N * PER];
    A w[N * PER], term[N * PER];
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = p + k * d.s.a.rows;
    load_values<V, N, PER>(d.s.val, 0, at, w);
#pragma unroll
    for (int k = 0; k < N * PER; k++) {
        const uint64_t column = uint64_t(i + k % PER) + uint64_t(__ldg(offsets + k / PER));
        j[k] = column < uint64_t(d.s.a.cols) ? int32_t(column) : -1;
    }
    times_x<N * PER>(d.s, j, w, term);
#pragma unroll
    for (int k = 0; k < N * PER; k++) part[k % PER] += w[k] != A(0) ? term[k] : A(0);
}

/* The same for `count` diagonals, fewer than N + 1. Stencils have few, so that what is left of
 * whole batches matters: it has a loop-free form for every number. */
template <class V, int N, int PER, class T, class A>
static __device__ __forceinline__ void add_rest(const padded_args<T> &d, const int64_t *offsets,
                                                int count, int64_t i, int64_t p, A *part)
{
    if constexpr (N > 0) {
        if (count == N)
            add_batch<V, N, PER>(d, offsets, i, p, part);
        else
            add_rest<V, N - 1, PER>(d, offsets, count, i, p, part);
    }
}

template <class T, class V, int PER>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_dia(const __grid_constant__ padded_args<T> d)
{
    typedef typename sum_of<T>::type A;
    enum { AT_ONCE = PER == 4 ? 5 : 8 }; /* diagonals whose loads are under way together, at most */
    const int64_t rows = d.s.a.rows;
    for (int64_t i = this_thread() * PER; i < rows; i += all_threads() * PER) {
        folded<A> total[PER];
#pragma unroll
        for (int r = 0; r < PER; r++) total[r].start();
        for (int64_t first = 0; first < d.m.width; first += CHAIN) {
            const int count = (int)min(d.m.width - first, int64_t(CHAIN));
            A part[PER] = {};
            const int64_t *const offsets = d.m.offsets + first;
            int64_t p = first * rows + i;
            int k = 0;
            for (; k + AT_ONCE <= count; k += AT_ONCE, p += AT_ONCE * rows)
                add_batch<V, AT_ONCE, PER>(d, offsets + k, i, p, part);
            add_rest<V, AT_ONCE - 1, PER>(d, offsets + k, count - k, i, p, part);
#pragma unroll
            for (int r = 0; r < PER; r++) total[r].fold(part[r]);
        }
        A sum[PER];
#pragma unroll
        for (int r = 0; r < PER; r++) sum[r] = scaled(d.s, i + r, total[r].total());
        store<T, PER>(d.s.y + i * d.s.out_stride, sum);
    }
}

/* Rows of a thread: as many as fill 8 bytes with values of f32 or of 16 bits, or 16 bytes in f64.
 * With more, the lanes' loads of x would lie further apart, and batches would not fit the registers
 * of four blocks: four rows of f32 took 1.15 times as long on 4000^2 (H200). y is written as wide.
 */
extern "C" fmm_status fmm_spmv_dia(const fmm_exec *exec, const fmm_call *call)
{
    const edge_view val = view_padded(fmm_spmv_of(call)->matrix);
    return on_device("spmv", exec, [&] {
        for_types(call->x->dtype, val, [&](auto x, auto v) {
            typedef decltype(x) T;
            typedef decltype(v) V;
            constexpr int PER = std::is_same<V, any_type>::value ? 1 : sizeof(T) == 2 ? 4 : 2;
            const bool wide = call->a->rows % PER == 0 && lies_at(val.data, 16) &&
                              call->y->row_stride == 1 && lies_at(call->y->data, PER * sizeof(T));
            const unsigned grid = blocks_for(wide ? call->a->rows / PER : call->a->rows);
            const auto kernel = wide ? spmv_dia<T, V, PER> : spmv_dia<T, V, 1>;
            kernel<<<grid, BLOCK, 0, stream_of(exec)>>>(padded_view<T>(call));
        });
    });
}
