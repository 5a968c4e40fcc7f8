/* fused over f64: fused.cuh. A file per type, so that they compile side by side. */
#include "fused.cuh"

extern "C" fmm_status fmm_fused_segments_f64(const fmm_exec *exec, const fmm_call *call)
{
    return fused_run<double>(exec, call);
}
