/* SpMM `segments` over bf16: the kernels of cuda.cuh for one element type. Each type has a file of
 * its own, so that they compile side by side. */
#include "cuda.cuh"

extern "C" fmm_status fmm_spmm_segments_bf16(const fmm_exec *exec, const fmm_call *call)
{
    return spmm_run<__nv_bfloat16>(exec, call);
}
