/* What cuda_algorithms.c needs of the CUDA files of attention. cuda_f32.cu and its neighbours hold
 * one element type each, so that they compile side by side. */
#ifndef FMM_ATTENTION_CUDA_H
#define FMM_ATTENTION_CUDA_H

#include "../core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

fmm_status fmm_attention_reference_cuda(const fmm_exec *exec, const fmm_call *call);

/* Whether the `segments` kernels can take a call, and the bytes of workspace that they need. Both
 * depend on sizes alone. */
bool fmm_attention_segments_supports(const fmm_call *call);
size_t fmm_attention_segments_workspace(const fmm_call *call);
fmm_status fmm_attention_segments_f32(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_attention_segments_f64(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_attention_segments_f16(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_attention_segments_bf16(const fmm_exec *exec, const fmm_call *call);

#ifdef __cplusplus
}
#endif
#endif
