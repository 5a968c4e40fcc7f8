/* The part of torch's C shim (the LibTorch stable ABI) that we use, declared by ourselves: torch's
 * headers are C++ and would tie the build to one torch, the symbols are plain C and keep their
 * meaning. bind.c looks them up in the torch that the process has loaded; tests/abi_check.cpp
 * proves every prototype against the headers of the installed torch.
 *
 * X(result, name, arguments, first torch release that has it) */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef int32_t AOTITorchError;
typedef uint64_t StableIValue; /* one slot of a boxed call's stack */
typedef struct AtenTensorOpaque *AtenTensorHandle;
typedef struct TorchLibraryOpaque *TorchLibraryHandle;
typedef void (*fmm_boxed)(StableIValue *stack, uint64_t arguments, uint64_t results);
typedef void (*fmm_shim_range)(int64_t begin, int64_t end, void *ctx);

/* clang-format off */
#define FMM_SHIM_LIST(X)                                                                                      \
    X(AOTITorchError, aoti_torch_library_init_def, (const char *, const char *, uint32_t, TorchLibraryHandle *), 2.7) \
    X(AOTITorchError, aoti_torch_library_init_impl, (const char *, const char *, const char *, uint32_t, TorchLibraryHandle *), 2.7) \
    X(AOTITorchError, aoti_torch_library_def, (TorchLibraryHandle, const char *), 2.7)                        \
    X(AOTITorchError, torch_library_impl, (TorchLibraryHandle, const char *, fmm_boxed, uint64_t), 2.10)      \
    X(AOTITorchError, aoti_torch_get_dim, (AtenTensorHandle, int64_t *), 2.7)                                 \
    X(AOTITorchError, aoti_torch_get_numel, (AtenTensorHandle, int64_t *), 2.7)                               \
    X(AOTITorchError, aoti_torch_get_sizes, (AtenTensorHandle, int64_t **), 2.7)                              \
    X(AOTITorchError, aoti_torch_get_strides, (AtenTensorHandle, int64_t **), 2.7)                            \
    X(AOTITorchError, aoti_torch_get_dtype, (AtenTensorHandle, int32_t *), 2.7)                               \
    X(AOTITorchError, aoti_torch_get_device_type, (AtenTensorHandle, int32_t *), 2.7)                         \
    X(AOTITorchError, aoti_torch_get_device_index, (AtenTensorHandle, int32_t *), 2.7)                        \
    X(AOTITorchError, aoti_torch_get_data_ptr, (AtenTensorHandle, void **), 2.7)                              \
    X(AOTITorchError, aoti_torch_empty_strided, (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, AtenTensorHandle *), 2.7) \
    X(AOTITorchError, aoti_torch_copy_, (AtenTensorHandle, AtenTensorHandle, int32_t), 2.7)                   \
    X(AOTITorchError, aoti_torch_delete_tensor_object, (AtenTensorHandle), 2.7)                               \
    X(AOTITorchError, torch_parallel_for, (int64_t, int64_t, int64_t, fmm_shim_range, void *), 2.10)          \
    X(void, aoti_torch_check, (bool, const char *, const char *, uint32_t, const char *), 2.7)                \
    X(int32_t, aoti_torch_dtype_float32, (void), 2.7)                                                         \
    X(int32_t, aoti_torch_dtype_float64, (void), 2.7)                                                         \
    X(int32_t, aoti_torch_dtype_float16, (void), 2.7)                                                         \
    X(int32_t, aoti_torch_dtype_bfloat16, (void), 2.7)                                                        \
    X(int32_t, aoti_torch_dtype_uint8, (void), 2.7)                                                           \
    X(int32_t, aoti_torch_dtype_int32, (void), 2.7)                                                           \
    X(int32_t, aoti_torch_dtype_int64, (void), 2.7)                                                           \
    X(int32_t, aoti_torch_device_type_cpu, (void), 2.7)                                                       \
    X(int32_t, aoti_torch_device_type_cuda, (void), 2.7)

/* In libtorch_cuda.so only; a CPU build of torch lacks it. */
#define FMM_SHIM_CUDA_LIST(X)                                                                                 \
    X(AOTITorchError, aoti_torch_get_current_cuda_stream, (int32_t, void **), 2.7)
/* clang-format on */

typedef struct fmm_shim {
#define X(result, name, arguments, since) result(*name) arguments;
    FMM_SHIM_LIST(X)
    FMM_SHIM_CUDA_LIST(X)
#undef X
} fmm_shim;

extern fmm_shim fmm_torch; /* bind.c: filled once by fmm_torch_register, read-only after */
