/* SpMV `merge`: the kernel of cuda_merge.cuh over a CSR matrix. The room is a record for each
 * piece, which the first launch writes and the second one adds up. */
#include "cuda_merge.cuh"

extern "C" size_t fmm_spmv_pieces_workspace(const fmm_call *call) { return pieces_room(call); }

extern "C" fmm_status fmm_spmv_merge(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] { launch_way<MERGE>(exec, call, exec->workspace, NULL); });
}
