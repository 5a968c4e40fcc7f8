/* A room's kernels whose element types have a file each (cuda_f32.cu and its neighbours), so that
 * they compile side by side. Only the linker ties a function to its file:
 *
 *     cuda_f32.cu     fmm_<room>_segments_f32  \
 *     cuda_f64.cu     fmm_<room>_segments_f64   \  <room>_segments, which looks at the call's dtype
 *     cuda_f16.cu     fmm_<room>_segments_f16   /
 *     cuda_bf16.cu    fmm_<room>_segments_bf16 /
 *
 * What they can take, and the bytes of workspace they need, depend on sizes alone. */
#ifndef FMM_CUDA_KERNELS_H
#define FMM_CUDA_KERNELS_H

#include "../core/core.h"

typedef fmm_status fmm_cuda_run(const fmm_exec *exec, const fmm_call *call);

/* For a room's cuda.h. */
#define FMM_SEGMENTS_DECLARE(room)                                                                 \
    bool fmm_##room##_segments_supports(const fmm_call *call);                                     \
    size_t fmm_##room##_segments_workspace(const fmm_call *call);                                  \
    fmm_cuda_run fmm_##room##_segments_f32, fmm_##room##_segments_f64, fmm_##room##_segments_f16,  \
        fmm_##room##_segments_bf16;

/* For its cuda_algorithms.c: room_segments(exec, call), by the dtype of the operand given. */
#define FMM_SEGMENTS_RUN(room, operand)                                                            \
    static fmm_status room##_segments(const fmm_exec *exec, const fmm_call *call)                  \
    {                                                                                              \
        static fmm_cuda_run *const of_dtype[] = {[FMM_F32] = fmm_##room##_segments_f32,            \
                                                 [FMM_F64] = fmm_##room##_segments_f64,            \
                                                 [FMM_F16] = fmm_##room##_segments_f16,            \
                                                 [FMM_BF16] = fmm_##room##_segments_bf16};         \
        return of_dtype[(operand)->dtype](exec, call);                                             \
    }

#endif
