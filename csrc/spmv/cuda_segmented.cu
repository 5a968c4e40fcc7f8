/* SpMV `csr_segmented`: the kernel of cuda_segments.cuh over the entries of a CSR matrix. The room
 * is a record for each block. */
#include "cuda_segments.cuh"

extern "C" size_t fmm_spmv_csr_segmented_workspace(const fmm_call *call)
{
    return records_room(call, SEGMENTED);
}

extern "C" fmm_status fmm_spmv_csr_segmented(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] { launch_segments<SEGMENTED>(exec, call, exec->workspace, NULL); });
}
