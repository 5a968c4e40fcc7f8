/* SpMM over f32: cuda.cuh. A file per type, so that they compile side by side. */
#include "cuda.cuh"

extern "C" fmm_status fmm_spmm_segments_f32(const fmm_exec *exec, const fmm_call *call)
{
    return spmm_run<float>(exec, call);
}
