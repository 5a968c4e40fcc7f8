/* SDDMM `segments` over f32: the kernels of cuda.cuh for one element type. Each type has a file of
 * its own, so that they compile side by side. */
#include "cuda.cuh"

extern "C" fmm_status fmm_sddmm_segments_f32(const fmm_exec *exec, const fmm_call *call)
{
    return sddmm_run<float>(exec, call);
}
