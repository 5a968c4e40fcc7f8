/* What cuda_algorithms.c needs of the CUDA files of SpMM. */
#ifndef FMM_SPMM_CUDA_H
#define FMM_SPMM_CUDA_H

#include "../core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

fmm_status fmm_spmm_reference_cuda(const fmm_exec *exec, const fmm_call *call);

/* What the `segments` kernels can take, and the bytes they need, from sizes alone. */
bool fmm_spmm_segments_supports(const fmm_call *call);
size_t fmm_spmm_segments_workspace(const fmm_call *call);
fmm_status fmm_spmm_segments_f32(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmm_segments_f64(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmm_segments_f16(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmm_segments_bf16(const fmm_exec *exec, const fmm_call *call);

bool fmm_spmm_tiles_supports(const fmm_call *call);
fmm_status fmm_spmm_tiles_f32(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmm_tiles_f64(const fmm_exec *exec, const fmm_call *call);

#ifdef __cplusplus
}
#endif
#endif
