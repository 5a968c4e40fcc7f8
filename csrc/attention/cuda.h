/* What cuda_algorithms.c needs of the CUDA files of attention. */
#ifndef FMM_ATTENTION_CUDA_H
#define FMM_ATTENTION_CUDA_H

#include "../cuda/kernels.h"

FMM_SEGMENTS_DECLARE(attention)

#endif
