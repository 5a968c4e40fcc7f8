/* What a room's cuda.h declares, and how `segments` finds its kernels. Each element type has a file
 * of its own, so that they compile side by side; only the linker ties a function to its file:
 *
 *     cuda_f32.cu     fmm_<room>_segments_f32  \
 *     cuda_f64.cu     fmm_<room>_segments_f64   \  fmm_<room>_segments, which looks at the dtype
 *     cuda_f16.cu     fmm_<room>_segments_f16   /
 *     cuda_bf16.cu    fmm_<room>_segments_bf16 /
 *
 * What they can take, and the bytes of workspace they need, depend on sizes alone. */
#pragma once

#include "../core/core.h"

/* Before a prototype: the function is C's, whoever defines it. nvcc takes one function after it. */
#ifdef __cplusplus
#define FMM_C extern "C"
#else
#define FMM_C extern
#endif

typedef fmm_status fmm_cuda_run(const fmm_exec *exec, const fmm_call *call);

/* For a room's cuda.h: the three functions of an algorithm, which its table names, and those of the
 * algorithms that every room has. */
#define FMM_CUDA_DECLARE(algorithm)                                                                \
    FMM_C bool algorithm##_supports(const fmm_call *call);                                         \
    FMM_C size_t algorithm##_workspace(const fmm_call *call);                                      \
    FMM_C fmm_cuda_run algorithm;
#define FMM_SEGMENTS_DECLARE(room)                                                                 \
    FMM_CUDA_DECLARE(fmm_##room##_segments)                                                        \
    FMM_C fmm_cuda_run fmm_##room##_reference_cuda;                                                \
    FMM_C fmm_cuda_run fmm_##room##_segments_f32;                                                  \
    FMM_C fmm_cuda_run fmm_##room##_segments_f64;                                                  \
    FMM_C fmm_cuda_run fmm_##room##_segments_f16;                                                  \
    FMM_C fmm_cuda_run fmm_##room##_segments_bf16;

/* For its cuda_f32.cu and the other types: the room's template <room>_run, over type T. */
#define FMM_SEGMENTS_OF(room, dtype, T)                                                            \
    FMM_C fmm_status fmm_##room##_segments_##dtype(const fmm_exec *exec, const fmm_call *call)     \
    {                                                                                              \
        return room##_run<T>(exec, call);                                                          \
    }

/* For its cuda_algorithms.c: an algorithm that runs the function of the operand's dtype. */
#define FMM_CUDA_RUN(algorithm, operand)                                                           \
    fmm_status algorithm(const fmm_exec *exec, const fmm_call *call)                               \
    {                                                                                              \
        static fmm_cuda_run *const of_dtype[] = {[FMM_F32] = algorithm##_f32,                      \
                                                 [FMM_F64] = algorithm##_f64,                      \
                                                 [FMM_F16] = algorithm##_f16,                      \
                                                 [FMM_BF16] = algorithm##_bf16};                   \
        return of_dtype[(operand)->dtype](exec, call);                                             \
    }
