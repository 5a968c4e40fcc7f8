/* SpMV `merge` and `csr_segmented`: the pieces of cuda_merge.cuh over a CSR matrix. Here is how
 * they are launched and what room they need, which follows from the sizes of the matrix alone:
 *
 *     room   | 2 records of block 0 | 2 of block 1 | ...       written by the first launch,
 *                                                               read by the second
 */
#include "cuda_merge.cuh"

static size_t room(const fmm_call *call, int by_rows)
{
    const int64_t blocks = blocks_of(cut(call->a, by_rows));
    return blocks > 1 ? records_bytes(blocks, call->x->dtype == FMM_F64) : 0;
}
extern "C" size_t fmm_spmv_merge_workspace(const fmm_call *call) { return room(call, 1); }
extern "C" size_t fmm_spmv_csr_segmented_workspace(const fmm_call *call) { return room(call, 0); }

static fmm_status run(const fmm_exec *exec, const fmm_call *call, int by_rows)
{
    return on_device(exec,
                     [&] { launch_pieces<false>(exec, call, by_rows, exec->workspace, NULL); });
}
extern "C" fmm_status fmm_spmv_merge(const fmm_exec *exec, const fmm_call *call)
{
    return run(exec, call, 1);
}
extern "C" fmm_status fmm_spmv_csr_segmented(const fmm_exec *exec, const fmm_call *call)
{
    return run(exec, call, 0);
}
