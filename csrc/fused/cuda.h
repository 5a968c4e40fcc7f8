/* What cuda_algorithms.c needs of the CUDA files of fused. */
#ifndef FMM_FUSED_CUDA_H
#define FMM_FUSED_CUDA_H

#include "../cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

fmm_status fmm_fused_reference_cuda(const fmm_exec *exec, const fmm_call *call);

FMM_SEGMENTS_DECLARE(fused)

bool fmm_fused_tiles_supports(const fmm_call *call);
fmm_status fmm_fused_tiles_f32(const fmm_exec *exec, const fmm_call *call);

/* cuda_two.cu: SDDMM, the edge function, then SpMM, each by whom the name says. */
bool fmm_fused_back_to_back_supports(const fmm_call *call);
size_t fmm_fused_back_to_back_workspace(const fmm_call *call);
fmm_status fmm_fused_back_to_back(const fmm_exec *exec, const fmm_call *call);
bool fmm_fused_cusparse_supports(const fmm_call *call);
size_t fmm_fused_cusparse_workspace(const fmm_call *call);
fmm_status fmm_fused_cusparse(const fmm_exec *exec, const fmm_call *call);
bool fmm_fused_cublas_supports(const fmm_call *call);
size_t fmm_fused_cublas_workspace(const fmm_call *call);
fmm_status fmm_fused_cublas(const fmm_exec *exec, const fmm_call *call);

#ifdef __cplusplus
}
#endif
#endif
