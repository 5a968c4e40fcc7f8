/* SpMV `ell`, `sell` and `hyb`: rows padded to one width, or to that of their slice, stored column
 * by column.
 *
 *     place k       0      1      2
 *     row 0         e      e      -1      thread 0      owns PER neighbouring rows: one load for
 *     row 1         e      e      e       thread 0      the columns of a place, one for its values
 *     row 2         e      -1     -1      thread 1
 *     row 3         e      e      e       thread 1      neighbouring threads read side by side
 *
 * Eight places are under way at once, that is 8 PER gathers of x. Padding, column -1, adds nothing.
 * Every thread works as long as the widest row, which is what padding costs.
 *
 * HYB moves what rows have beyond a width to COO, which does not mind long rows:
 *
 *     first launches   COO (cuda_coo.cu)   -->   sums [rows], neither scaled nor rounded
 *     last launch      ELL, then waits for the sums, adds them, applies alpha and beta, rounds once
 *
 * The last one may start while the others run, and adds up its own part meanwhile.
 *
 * SELL has slices of rows of similar length, each padded to its own longest row:
 *
 *     slice 0    order[0]   e e e e       lane 0      the lanes of a slice read side by side;
 *                order[1]   e e e -1      lane 1      a slice of 32 rows has a warp, and ends
 *     slice 1    order[2]   e e           lane 0      where its longest row ends
 *                order[3]   e -1          lane 1
 *
 * Thread k owns place k of the order, so slices of any width work; those that do not fill warps
 * only read less evenly. Its entries are as many places apart as the slice has rows.
 *
 * Bell and Garland, NVR-2008-004 (ELL) and SC 2009 (HYB); Kreutzer, Hager, Wellein, Fehske and
 * Bishop, "A unified sparse matrix data format for efficient general sparse matrix-vector
 * multiplication on modern processors with wide SIMD units", SIAM J. Sci. Comput. 36, 2014 (SELL).
 */
#include "cuda.cuh"

template <class T, class V, int PER, bool SLICES>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_ell(const __grid_constant__ padded_args<T> e)
{
    typedef typename sum_of<T>::type A;
    const int64_t rows = e.s.a.rows;
    for (int64_t i = this_thread() * PER; i < rows; i += all_threads() * PER) {
        int64_t row = i, first = i, step = rows, count = e.m.width;
        /* An order or offsets that are no such thing cost their rows, and reach nothing else. */
        if constexpr (SLICES) {
            const int32_t width = (int32_t)e.m.width;
            const int64_t slice = width == WARP ? i / WARP : i / width;
            const int64_t end = clamp(__ldg(e.m.offsets + slice + 1), 0, e.m.stored);
            first = clamp(__ldg(e.m.offsets + slice), 0, e.m.stored) + (i - slice * width);
            row = __ldg(e.m.order + i), step = width;
            count = first < end ? (end - first + width - 1) / width : 0;
        }
        A sum[PER];
        sum_steps<V, PER, 8>(e.s, e.m.padded_idx, first, step, count, sum);
        if constexpr (!SLICES) wait_for_previous();
#pragma unroll
        for (int r = 0; r < PER; r++) {
            if (!SLICES && e.s.sums) sum[r] += e.s.sums[i + r];
            if (!SLICES || (uint64_t)row < (uint64_t)rows) finish(e.s, row + r, sum[r]);
        }
    }
}

/* sums: NULL, or those that the launch before this one leaves. */
template <bool SLICES> static void launch(const fmm_exec *exec, const fmm_call *call, void *sums)
{
    const fmm_spmv_matrix *m = fmm_spmv_of(call)->matrix;
    const int64_t rows = call->a->rows;
    for_types(call->x->dtype, view_padded(m), [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef decltype(v) V;
        constexpr int PER = SLICES || std::is_same<V, any_type>::value ? 1 : 2;
        padded_args<T> e = padded_view<T>(call);
        e.s.sums = static_cast<decltype(e.s.sums)>(sums);
        const bool pairs =
            rows % PER == 0 && lies_at(e.m.padded_idx, 16) && lies_at(e.s.val.data, 16);
        const dim3 grid(blocks_for(pairs ? rows / PER : rows));
        const auto kernel = pairs ? spmv_ell<T, V, PER, SLICES> : spmv_ell<T, V, 1, SLICES>;
        if (sums)
            launch_early(exec->index, stream_of(exec), kernel, grid, e);
        else
            kernel<<<grid, BLOCK, 0, stream_of(exec)>>>(e);
    });
}

extern "C" fmm_status fmm_spmv_ell(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec, [&] { launch<false>(exec, call, NULL); });
}

/* The sums, then the records of COO's blocks. */
static size_t sums_bytes(const fmm_call *call)
{
    return (size_t)ceil_div(call->a->rows * (call->x->dtype == FMM_F64 ? 8 : 4), 16) * 16;
}
extern "C" size_t fmm_spmv_hyb_workspace(const fmm_call *call)
{
    return call->a->nnz ? sums_bytes(call) + fmm_spmv_coo_workspace(call) : 0;
}

extern "C" fmm_status fmm_spmv_hyb(const fmm_exec *exec, const fmm_call *call)
{
    void *const sums = call->a->nnz ? exec->workspace : NULL;
    return on_device("spmv", exec, [&] {
        if (sums) fmm_spmv_coo_sums(exec, call, static_cast<char *>(sums) + sums_bytes(call), sums);
        launch<false>(exec, call, sums);
    });
}

extern "C" fmm_status fmm_spmv_sell(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec, [&] { launch<true>(exec, call, NULL); });
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
