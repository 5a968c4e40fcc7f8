/* SpMV `coo`: the kernel of cuda_segments.cuh over a COO matrix, whose entries say their rows. */
#include "cuda_segments.cuh"

extern "C" size_t fmm_spmv_coo_workspace(const fmm_call *call)
{
    return records_room(call, COORDINATES);
}

extern "C" void fmm_spmv_coo_sums(const fmm_exec *exec, const fmm_call *call, void *room,
                                  void *sums)
{
    launch_segments<COORDINATES>(exec, call, room, sums);
}

extern "C" fmm_status fmm_spmv_coo(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec,
                     [&] { launch_segments<COORDINATES>(exec, call, exec->workspace, NULL); });
}
