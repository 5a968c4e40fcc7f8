/* What cuda_algorithms.c needs of the CUDA files of SpMM. */
#pragma once

#include "../cuda/kernels.h"

FMM_SEGMENTS_DECLARE(spmm)

/* Windows in shared memory. */
FMM_C bool fmm_spmm_tiles_supports(const fmm_call *call);
FMM_C fmm_cuda_run fmm_spmm_tiles;
FMM_C fmm_cuda_run fmm_spmm_tiles_f32;
FMM_C fmm_cuda_run fmm_spmm_tiles_f64;
FMM_C fmm_cuda_run fmm_spmm_tiles_f16;
FMM_C fmm_cuda_run fmm_spmm_tiles_bf16;
