/* What cuda_algorithms.c needs of the CUDA files of messages. */
#pragma once

#include "../cuda/kernels.h"
#include "steps.h"

FMM_SEGMENTS_DECLARE(messages)
