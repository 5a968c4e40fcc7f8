/* What cuda_algorithms.c needs of the CUDA files of SDDMM. */
#pragma once

#include "../cuda/kernels.h"

FMM_SEGMENTS_DECLARE(sddmm)

/* Windows in shared memory are for f32 alone. */
FMM_C bool fmm_sddmm_tiles_supports(const fmm_call *call);
FMM_C fmm_cuda_run fmm_sddmm_tiles_f32;
