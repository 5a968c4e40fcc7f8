/* SpMV `csr_scalar` and `csr_vector`: a thread, or a group of lanes, for each row of a CSR matrix.
 *
 *     csr_scalar     thread i owns row i              e e e e e          its entries one by one
 *
 *     csr_vector     lanes 0 .. 7 own row 4w          e e e e e e e e    neighbours of a row by
 *     (8 lanes)      lanes 8 .. 15 own row 4w + 1     e e e              neighbouring lanes
 *                    ...
 *                    warp w owns 32 / 8 = 4 rows      then a tree of shuffles adds up the lanes
 *
 * Neighbouring lanes of csr_scalar read entries a row apart, which wastes most of what a load
 * brings unless rows are short; csr_vector reads side by side, and idles the lanes that a short row
 * has no entries for. So a group has about as many lanes as a row has entries on the average, a
 * power of two up to a warp. Both are one launch without workspace, and both leave a long row to
 * the group that owns it, which may be all that still runs. The shape of the tree is fixed, hence
 * so are the bits.
 *
 * Bell and Garland, "Implementing Sparse Matrix-Vector Multiplication on Throughput-Oriented
 * Processors", SC 2009, have both kernels, with a whole warp for each row. */
#include "cuda.cuh"

/* 2^shift lanes own a row. Lanes behind the last row stay for the shuffles. */
template <class T, class V>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_rows(const __grid_constant__ spmv_args<T> s, int shift)
{
    typedef typename sum_of<T>::type A;
    const int lanes = 1 << shift, lane = threadIdx.x & (lanes - 1);
    for (int64_t k = this_thread(); (k - threadIdx.x % WARP) >> shift < s.a.rows;
         k += all_threads()) {
        const int64_t i = k >> shift;
        A sum = A(0);
        if (i < s.a.rows) {
            int64_t begin;
            const int64_t length = row_range(s.a, i, &begin) - lane;
            sum_steps<V, 1>(s, s.a.idx, begin + lane, lanes, (length + lanes - 1) >> shift, &sum);
        }
        for (int far = lanes / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        if (i < s.a.rows && lane == 0) finish(s, i, sum);
    }
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call, int shift)
{
    return on_device(exec, [&] {
        for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
            typedef decltype(x) T;
            spmv_rows<T, decltype(v)>
                <<<blocks_for(call->a->rows << shift), BLOCK, 0, stream_of(exec)>>>(
                    spmv_view<T>(call), shift);
        });
    });
}

extern "C" fmm_status fmm_spmv_csr_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return run(exec, call, 0);
}

/* Lanes: a power of two from 2 to 32, at least four fifths of the mean of entries. */
extern "C" fmm_status fmm_spmv_csr_vector(const fmm_exec *exec, const fmm_call *call)
{
    const int64_t rows = call->a->rows, nnz = call->a->nnz;
    int shift = 1;
    while (shift < 5 && nnz >> shift >= rows + rows / 4) shift++;
    return run(exec, call, shift);
}
