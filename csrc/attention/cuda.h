/* What cuda_algorithms.c needs of the CUDA files of attention. */
#ifndef FMM_ATTENTION_CUDA_H
#define FMM_ATTENTION_CUDA_H

#include "../cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

fmm_status fmm_attention_reference_cuda(const fmm_exec *exec, const fmm_call *call);

FMM_SEGMENTS_DECLARE(attention)

#ifdef __cplusplus
}
#endif
#endif
