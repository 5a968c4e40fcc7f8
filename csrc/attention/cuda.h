/* What cuda_algorithms.c needs of the CUDA files of attention. */
#pragma once

#include "../cuda/kernels.h"

FMM_SEGMENTS_DECLARE(attention)
