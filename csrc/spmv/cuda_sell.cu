/* SpMV `sell`: slices of rows of similar length, each padded to its own longest row.
 *
 *     slice 0    order[0]   e e e e       lane 0      the lanes of a slice read side by side;
 *                order[1]   e e e -1      lane 1      a slice of 32 rows has a warp, and ends
 *     slice 1    order[2]   e e           lane 0      where its longest row ends
 *                order[3]   e -1          lane 1
 *
 * Thread k owns place k of the order, so slices of any width work; those that do not fill warps
 * only read less evenly. Its entries are as many places apart as the slice has rows, and eight of
 * them are under way at once.
 *
 * Kreutzer, Hager, Wellein, Fehske and Bishop, "A unified sparse matrix data format for efficient
 * general sparse matrix-vector multiplication on modern processors with wide SIMD units", SIAM J.
 * Sci. Comput. 36, 2014. */
#include "cuda.cuh"

/* An order or offsets that are no such thing cost their rows, and reach nothing else. */
template <class T, class V>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_sell(const __grid_constant__ padded_args<T> e)
{
    typedef typename sum_of<T>::type A;
    for (int64_t k = this_thread(); k < e.s.a.rows; k += all_threads()) {
        const int32_t width = (int32_t)e.m.width;
        const int64_t slice = width == WARP ? k / WARP : k / width;
        const int64_t first =
            clamp(__ldg(e.m.offsets + slice), 0, e.m.stored) + (k - slice * width);
        const int64_t end = clamp(__ldg(e.m.offsets + slice + 1), 0, e.m.stored);
        const int32_t row = __ldg(e.m.order + k);
        const int64_t count = (end - first + width - 1) / width;
        A sum;
        sum_steps<V, 1, 8>(e.s, e.m.padded_idx, first, width, first < end ? count : 0, &sum);
        if (row >= 0 && row < e.s.a.rows) finish(e.s, row, sum);
    }
}

extern "C" fmm_status fmm_spmv_sell(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] {
        for_types(call->x->dtype, view_padded(fmm_spmv_of(call)->matrix), [&](auto x, auto v) {
            typedef decltype(x) T;
            spmv_sell<T, decltype(v)>
                <<<blocks_for(call->a->rows), BLOCK, 0, stream_of(exec)>>>(padded_view<T>(call));
        });
    });
}

/* Brings home what somebody else summed: sums[k], of the type that x is summed in, is row
 * order[k]'s. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    spmv_place(const __grid_constant__ padded_args<T> e, const typename sum_of<T>::type *sums)
{
    for (int64_t k = this_thread(); k < e.s.a.rows; k += all_threads()) {
        const int32_t row = __ldg(e.m.order + k);
        if (row >= 0 && row < e.s.a.rows) finish(e.s, row, __ldcs(sums + k));
    }
}

extern "C" void fmm_spmv_sell_place(const fmm_exec *exec, const fmm_call *call, const void *sums)
{
    for_dtype(call->x->dtype, [&](auto element) {
        typedef decltype(element) T;
        spmv_place<T><<<blocks_for(call->a->rows), BLOCK, 0, stream_of(exec)>>>(
            padded_view<T>(call), static_cast<const typename sum_of<T>::type *>(sums));
    });
}
