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
    const bool dia = m.format == FMM_FORMAT_DIA;
    for (int64_t k = this_thread(); k < s.a.rows; k += all_threads()) {
        long_sum<A> sum;
        sum.start();
        /* The padded part lies from p on, `step` apart. SELL's k is a place of the order, which
         * says the row; k is the row elsewhere. */
        int64_t i = k, p = k, step = s.a.rows, stop = m.format > FMM_FORMAT_COO ? m.stored : 0;
        if (m.format == FMM_FORMAT_SELL) {
            i = m.order[k], step = m.width;
            if ((uint64_t)i >= (uint64_t)s.a.rows) continue;
            p = clamp(m.offsets[k / step], 0, m.stored) + k % step;
            stop = clamp(m.offsets[k / step + 1], 0, m.stored);
        }
        for (int64_t d = 0; p < stop; p += step, d++) {
            if (dia && edge_value<A>(padded, p, 0) == A(0)) continue;
            const int64_t j = dia ? int64_t(uint64_t(i) + uint64_t(m.offsets[d])) : m.padded_idx[p];
            add(s, padded, p, j, &sum);
        }
        /* The part that is CSR or COO. */
        int64_t begin = 0, end = 0;
        if (m.format == FMM_FORMAT_CSR) end = row_range(s.a, i, &begin) + begin;
        if (s.row) begin = first_at_least(s.row, 1, s.a.nnz, i);
        if (s.row) end = first_at_least(s.row, 1, s.a.nnz, i + 1);
        for (p = begin; p < end; p++) add(s, s.val, p, s.a.idx[p], &sum);
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
