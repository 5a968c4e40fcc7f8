/* What cuda_algorithms.c needs of the CUDA files of SDDMM. */
#ifndef FMM_SDDMM_CUDA_H
#define FMM_SDDMM_CUDA_H

#include "../cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

fmm_status fmm_sddmm_reference_cuda(const fmm_exec *exec, const fmm_call *call);

FMM_SEGMENTS_DECLARE(sddmm)

bool fmm_sddmm_tiles_supports(const fmm_call *call);
fmm_status fmm_sddmm_tiles_f32(const fmm_exec *exec, const fmm_call *call);

#ifdef __cplusplus
}
#endif
#endif
