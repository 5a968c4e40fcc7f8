/* The plain form of SpMV, which says what it means in every format: y[i] = alpha * sum of
 * v * x[j] over the entries (i, j) + beta * y_in[i].
 *
 *     thread i           owns y[i]
 *     entries of row i   in the order of storage, in a chain of accumulators (cuda/reference.cuh)
 *
 *     CSR   ptr[i], ptr[i] + 1, ...          DIA   i, i + rows, i + 2 rows, ...
 *     COO   from the first p of row[p] = i   ELL   the same, then HYB's entries as in COO
 *     SELL  thread k owns the row order[k]; its entries are `width` places apart in its slice
 *
 * Nothing trusts what arrays hold: columns and rows outside the matrix have no entries, places
 * outside of what is stored are not read. */
#include "cuda.cuh"

/* What one entry adds. */
template <class T, class A>
static __device__ void add(const spmv_args<T> &s, const edge_view &val, int64_t p, int64_t j,
                           long_sum<A> *sum)
{
    if ((uint64_t)j >= (uint64_t)s.a.cols) return;
    sum->add(edge_value<A>(val, edge_of(val, p), 0), widen(s.x[j * s.x_stride]));
}

template <class T>
static __global__ void __launch_bounds__(BLOCK)
    spmv_reference(const spmv_args<T> s, const fmm_spmv_matrix m, const edge_view padded)
{
    typedef typename sum_of<T>::type A;
    /* SELL's k is a place of the order, which says the row; k is the row elsewhere. */
    for (int64_t k = this_thread(); k < s.a.rows; k += all_threads()) {
        long_sum<A> sum;
        sum.start();
        int64_t i = k;
        if (m.format == FMM_FORMAT_CSR) {
            int64_t begin;
            const int64_t end = row_range(s.a, i, &begin) + begin;
            for (int64_t p = begin; p < end; p++) add(s, s.val, p, s.a.idx[p], &sum);
        }
        if (m.format == FMM_FORMAT_DIA) {
            for (int64_t d = 0, p = i; d < m.width; d++, p += s.a.rows)
                if (edge_value<A>(padded, p, 0) != A(0))
                    add(s, padded, p, int64_t(uint64_t(i) + uint64_t(m.offsets[d])), &sum);
        }
        if (m.format == FMM_FORMAT_ELL || m.format == FMM_FORMAT_HYB)
            for (int64_t p = i; p < m.stored; p += s.a.rows)
                add(s, padded, p, m.padded_idx[p], &sum);
        if (m.format == FMM_FORMAT_COO || m.format == FMM_FORMAT_HYB) {
            int64_t p = first_at_least(s.row, 1, s.a.nnz, i);
            for (; p < s.a.nnz && s.row[p] == i; p++) add(s, s.val, p, s.a.idx[p], &sum);
        }
        if (m.format == FMM_FORMAT_SELL) {
            const int64_t slice = k / m.width, lane = k % m.width;
            i = m.order[k];
            const int64_t begin = clamp(m.offsets[slice], 0, m.stored) + lane;
            const int64_t end = clamp(m.offsets[slice + 1], 0, m.stored);
            if ((uint64_t)i >= (uint64_t)s.a.rows) continue;
            for (int64_t p = begin; p < end; p += m.width) add(s, padded, p, m.padded_idx[p], &sum);
        }
        finish(s, i, sum.total());
    }
}

extern "C" fmm_status fmm_spmv_reference_cuda(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_spmv_matrix *m = fmm_spmv_of(call)->matrix;
    const edge_view padded = m->padded_val ? view_padded(m) : edge_view{};
    return on_device("spmv", exec, [&] {
        const unsigned grid = (unsigned)smaller(blocks_for(call->a->rows), REFERENCE_BLOCKS);
        for_dtype(call->x->dtype, [&](auto element) {
            typedef decltype(element) T;
            spmv_reference<T><<<grid, BLOCK, 0, stream_of(exec)>>>(spmv_view<T>(call), *m, padded);
        });
    });
}
