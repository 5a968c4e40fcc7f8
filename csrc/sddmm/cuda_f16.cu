/* SDDMM over f16: cuda.cuh. A file per type, so that they compile side by side. */
#include "cuda.cuh"

extern "C" fmm_status fmm_sddmm_segments_f16(const fmm_exec *exec, const fmm_call *call)
{
    return sddmm_run<__half>(exec, call);
}
