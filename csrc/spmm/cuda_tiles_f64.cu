/* SpMM `tiles` over f64: cuda_tiles.cuh. */
#include "cuda_tiles_run.cuh"

#include "cuda.h"

extern "C" fmm_status fmm_spmm_tiles_f64(const fmm_exec *exec, const fmm_call *call)
{
    return tiles_run<double>(exec, call, fmm_spmm_segments_f64);
}
