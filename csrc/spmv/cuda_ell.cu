/* SpMV `ell` and `hyb`: rows padded to one width, stored column by column.
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
 * Bell and Garland, NVR-2008-004 (ELL) and SC 2009 (HYB). */
#include "cuda.cuh"

template <class T, class V, int PER>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_ell(const __grid_constant__ padded_args<T> e)
{
    typedef typename sum_of<T>::type A;
    const int64_t rows = e.s.a.rows;
    for (int64_t i = this_thread() * PER; i < rows; i += all_threads() * PER) {
        A sum[PER];
        sum_steps<V, PER, 8>(e.s, e.m.padded_idx, i, rows, e.m.width, sum);
        wait_for_previous();
#pragma unroll
        for (int r = 0; r < PER; r++) {
            if (e.s.sums) sum[r] += e.s.sums[i + r];
            finish(e.s, i + r, sum[r]);
        }
    }
}

/* sums: NULL, or those that the launch before this one leaves. */
static void launch(const fmm_exec *exec, const fmm_call *call, void *sums)
{
    const fmm_spmv_matrix *m = fmm_spmv_of(call)->matrix;
    const int64_t rows = call->a->rows;
    for_types(call->x->dtype, view_padded(m), [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef decltype(v) V;
        constexpr int PER = std::is_same<V, any_type>::value ? 1 : 2;
        padded_args<T> e = padded_view<T>(call);
        e.s.sums = static_cast<decltype(e.s.sums)>(sums);
        const bool pairs =
            rows % PER == 0 && lies_at(e.m.padded_idx, 16) && lies_at(e.s.val.data, 16);
        const dim3 grid(blocks_for(pairs ? rows / PER : rows));
        const auto kernel = pairs ? spmv_ell<T, V, PER> : spmv_ell<T, V, 1>;
        if (sums)
            launch_early(exec->index, stream_of(exec), kernel, grid, e);
        else
            kernel<<<grid, BLOCK, 0, stream_of(exec)>>>(e);
    });
}

extern "C" fmm_status fmm_spmv_ell(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] { launch(exec, call, NULL); });
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
    return on_device(exec, [&] {
        if (sums) fmm_spmv_coo_sums(exec, call, static_cast<char *>(sums) + sums_bytes(call), sums);
        launch(exec, call, sums);
    });
}
