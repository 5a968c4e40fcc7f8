/* SpMM `tiles` over f64: the kernel of cuda_tiles.cuh. f32 has a file of its own, so that they
 * compile side by side. */
#include "cuda_tiles_run.cuh"

#include "cuda.h"

extern "C" fmm_status fmm_spmm_tiles_f64(const fmm_exec *exec, const fmm_call *call)
{
    return tiles_run<double>(exec, call, fmm_spmm_segments_f64);
}
