/* Attention over bf16. cuda_run.cuh has the code; each type has a file, so that they compile side
 * by side. */
#include "cuda_run.cuh"

extern "C" fmm_status fmm_attention_segments_bf16(const fmm_exec *exec, const fmm_call *call)
{
    return attend_run<__nv_bfloat16>(exec, call);
}
