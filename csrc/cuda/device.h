/* What is asked of a CUDA device once, and then kept. */
#pragma once

#include "../core/core.h"

FMM_C_BEGIN

/* Multiprocessors of a device; 1 of a device that does not answer. */
int fmm_cuda_processors(int device);
/* Bytes of its second cache, which all of them share; 1 of a device that does not answer. */
int fmm_cuda_second_cache(int device);

FMM_C_END
