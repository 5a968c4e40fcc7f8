/* The plain form of SDDMM, which says what it means: e[p,h] = val[p,h] * <a[i,h,:], b[idx[p],h,:]>
 * for any shape, stride and type. There is no plan, no workspace and no shuffle.
 *
 *     thread k        owns e[p,h], and finds the row of p by a search in ptr
 *     channels        0, 1, 2, ...             from the first to the last
 *
 * Sums go through three accumulators (cuda/reference.cuh). An entry whose column lies outside the
 * matrix gets 0; an edge that does not exist is not written. */
#include "../cuda/reference.cuh"

template <class T>
static __global__ void __launch_bounds__(BLOCK)
    sddmm_reference(const csr_view s, const edge_view val, const fmm_dense a, const fmm_dense b,
                    const fmm_dense e)
{
    typedef typename sum_of<T>::type A;
    const int64_t count = s.nnz * e.heads;
    for (int64_t k = this_thread(); k < count && s.rows; k += all_threads()) {
        const int64_t p = k / e.heads, h = k % e.heads, i = row_of(s, p);
        const int64_t edge = edge_at(val, p);
        const int32_t j = s.idx[p];
        if (!is_edge(val, edge)) continue;
        long_sum<A> dot;
        dot.start();
        if ((uint32_t)j < (uint32_t)s.cols)
            for (int64_t c = 0; c < a.feat; c++)
                dot.add(widen(*element<T>(a, i, h, c)), widen(*element<T>(b, j, h, c)));
        *element<T>(e, edge, h, 0) = narrow<T>(dot.total() * edge_value<A>(val, edge, h));
    }
}

extern "C" fmm_status fmm_sddmm_reference_cuda(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_dense *e = call->y;
    const unsigned grid = (unsigned)smaller(blocks_for(e->rows * e->heads), REFERENCE_BLOCKS);
    return on_device_as("sddmm", exec, e->dtype, [&](auto element_of) {
        sddmm_reference<decltype(element_of)><<<grid, BLOCK, 0, stream_of(exec)>>>(
            view_csr(call->a), view_edges(call->a, call->val), *call->x, *call->b, *e);
    });
}
