/* Attention over f64. cuda_run.cuh has the code; each type has a file, so that they compile side by
 * side. */
#include "cuda_run.cuh"

extern "C" fmm_status fmm_attention_segments_f64(const fmm_exec *exec, const fmm_call *call)
{
    return attend_run<double>(exec, call);
}
