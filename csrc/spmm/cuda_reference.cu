/* The plain form of SpMM, which says what it means: y[i,h,c] = reduce_p val[eid[p],h] *
 * x[idx[p],h,c] for any shape, stride and type. There is no plan, no workspace and no shuffle.
 *
 *     thread k        owns y[i,h,c]; threads of a warp own neighbouring channels c
 *     entries of i    p, p + 1, p + 2, ...     in the order of storage
 *
 * Sums go through three accumulators (cuda/reference.cuh). */
#include "../cuda/reference.cuh"

/* An entry whose column lies outside the matrix is skipped. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    spmm_reference(const csr_view a, const edge_view val, const fmm_dense x, const fmm_dense y,
                   int reduce)
{
    typedef typename sum_of<T>::type A;
    const int64_t count = a.rows * y.heads * y.feat;
    for (int64_t k = this_thread(); k < count; k += all_threads()) {
        const int64_t c = k % y.feat, h = k / y.feat % y.heads, i = k / y.feat / y.heads;
        int64_t begin;
        const int64_t terms = row_range(a, i, &begin);
        /* A minimum is the maximum of negated terms. */
        const A sign = A(reduce == FMM_MIN ? -1 : 1);
        long_sum<A> sum;
        sum.start();
        A most = -A(INFINITY);
        for (int64_t p = begin; p < begin + terms; p++) {
            const int32_t j = a.idx[p];
            if ((uint32_t)j >= (uint32_t)a.cols) continue;
            const A w = edge_value<A>(val, edge_of(val, p), h), v = widen(*element<T>(x, j, h, c));
            if (reduce == FMM_SUM || reduce == FMM_MEAN) {
                sum.add(w, v);
            } else {
                const A term = sign * w * v;
                if (term > most || term != term) most = term; /* NaN, once there, stays */
            }
        }
        A result = A(0);
        if (terms && reduce == FMM_SUM) result = sum.total();
        if (terms && reduce == FMM_MEAN) result = sum.total() / A(terms);
        if (terms && (reduce == FMM_MAX || reduce == FMM_MIN)) result = sign * most;
        *element<T>(y, i, h, c) = narrow<T>(result);
    }
}

/* Rows without entries give 0 for every reduction. */
extern "C" fmm_status fmm_spmm_reference_cuda(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_dense *y = call->y;
    const int64_t count = y->rows * y->heads * y->feat;
    const unsigned grid = (unsigned)smaller(blocks_for(count), REFERENCE_BLOCKS);
    return on_device_as("spmm", exec, y->dtype, [&](auto element_of) {
        spmm_reference<decltype(element_of)><<<grid, BLOCK, 0, stream_of(exec)>>>(
            view_csr(call->a), view_edges(call->a, call->val), *call->x, *y, call->reduce);
    });
}
