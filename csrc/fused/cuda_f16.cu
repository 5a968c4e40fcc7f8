/* fused `segments` over f16: the kernels of cuda.cuh and cuda_back.cuh for one element type. Each
 * type has a file of its own, so that they compile side by side. */
#include "cuda_back_run.cuh"

extern "C" fmm_status fmm_fused_segments_f16(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_fusion_of(call)->g ? back_run<__half>(exec, call) : fused_run<__half>(exec, call);
}
