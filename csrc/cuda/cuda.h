/* What cuda/registry.c needs from the CUDA files. */
#ifndef FMM_CUDA_H
#define FMM_CUDA_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

fmm_status fmm_spmm_reference_cuda(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_sddmm_reference_cuda(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_attention_reference_cuda(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_fused_reference_cuda(const fmm_exec *exec, const fmm_call *call);

/* spmm_<dtype>.cu, sddmm_<dtype>.cu, attention_<dtype>.cu and fused_<dtype>.cu */
#define FMM_SEGMENTS(dtype)                                                                        \
    fmm_status fmm_spmm_segments_##dtype(const fmm_exec *exec, const fmm_call *call);              \
    fmm_status fmm_sddmm_segments_##dtype(const fmm_exec *exec, const fmm_call *call);             \
    fmm_status fmm_attention_segments_##dtype(const fmm_exec *exec, const fmm_call *call);         \
    fmm_status fmm_fused_segments_##dtype(const fmm_exec *exec, const fmm_call *call);
FMM_SEGMENTS(f32)
FMM_SEGMENTS(f64)
FMM_SEGMENTS(f16)
FMM_SEGMENTS(bf16)
#undef FMM_SEGMENTS

/* segments.cu: what the kernels can take, and the bytes they need, from sizes alone. */
bool fmm_spmm_segments_supports(const fmm_call *call);
bool fmm_sddmm_segments_supports(const fmm_call *call);
size_t fmm_spmm_segments_workspace(const fmm_call *call);
size_t fmm_sddmm_segments_workspace(const fmm_call *call);

/* spmm_tiles_<dtype>.cu */
bool fmm_spmm_tiles_supports(const fmm_call *call);
fmm_status fmm_spmm_tiles_f32(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmm_tiles_f64(const fmm_exec *exec, const fmm_call *call);
/* sddmm_tiles_f32.cu */
bool fmm_sddmm_tiles_supports(const fmm_call *call);
fmm_status fmm_sddmm_tiles_f32(const fmm_exec *exec, const fmm_call *call);
/* fused_tiles_f32.cu */
bool fmm_fused_tiles_supports(const fmm_call *call);
fmm_status fmm_fused_tiles_f32(const fmm_exec *exec, const fmm_call *call);

/* attention.cu: the same of attention */
bool fmm_attention_segments_supports(const fmm_call *call);
size_t fmm_attention_segments_workspace(const fmm_call *call);
/* fused.cu: the same of fused */
bool fmm_fused_segments_supports(const fmm_call *call);
size_t fmm_fused_segments_workspace(const fmm_call *call);

/* fused_two.cu: SDDMM, then SpMM */
#define FMM_FUSED_TWO(name)                                                                        \
    bool fmm_fused_##name##_supports(const fmm_call *call);                                        \
    size_t fmm_fused_##name##_workspace(const fmm_call *call);                                     \
    fmm_status fmm_fused_##name(const fmm_exec *exec, const fmm_call *call);
FMM_FUSED_TWO(back_to_back)
FMM_FUSED_TWO(cusparse)
FMM_FUSED_TWO(cublas)
#undef FMM_FUSED_TWO

#ifdef __cplusplus
}
#endif
#endif
