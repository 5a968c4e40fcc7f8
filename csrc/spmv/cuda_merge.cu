/* SpMV `merge`: the kernel of cuda_merge.cuh over a CSR matrix. The room is two records for each
 * block, which the first launch writes and the second one joins. */
#include "cuda_merge.cuh"

extern "C" size_t fmm_spmv_merge_workspace(const fmm_call *call) { return pieces_room(call, 1); }

extern "C" fmm_status fmm_spmv_merge(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] { launch_merge<false>(exec, call, exec->workspace, NULL); });
}
