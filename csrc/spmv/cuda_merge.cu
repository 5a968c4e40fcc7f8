/* SpMV `merge`: the kernel of cuda_segments.cuh over the merged list of a CSR matrix's entries and
 * ends of rows. The room has a record for each block, and behind them the rows that shares begin
 * with, which a launch of its own finds. */
#include "cuda_segments_run.cuh"

extern "C" size_t fmm_spmv_merge_workspace(const fmm_call *call)
{
    return records_room(call, PATH);
}

extern "C" fmm_status fmm_spmv_merge(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec,
                     [&] { launch_segments<PATH>(exec, call, exec->workspace, NULL); });
}
