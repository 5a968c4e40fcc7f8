/* fused over f16: fused.cuh. A file per type, so that they compile side by side. */
#include "fused.cuh"

extern "C" fmm_status fmm_fused_segments_f16(const fmm_exec *exec, const fmm_call *call)
{
    return fused_run<__half>(exec, call);
}
