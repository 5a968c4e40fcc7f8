/* What cuda_algorithms.c needs of the CUDA files of fused. */
#pragma once

#include "../cuda/kernels.h"

FMM_SEGMENTS_DECLARE(fused)

FMM_C bool fmm_fused_tiles_supports(const fmm_call *call);
FMM_C fmm_cuda_run fmm_fused_tiles_f32;

/* cuda_two.cu: SDDMM, the edge function, then SpMM, each by whom the name says. */
FMM_CUDA_DECLARE(fmm_fused_back_to_back)
FMM_CUDA_DECLARE(fmm_fused_cusparse)
FMM_CUDA_DECLARE(fmm_fused_cublas)
