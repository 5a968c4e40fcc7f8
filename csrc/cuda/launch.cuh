/* Launches: how many threads there are, and how a call enters and leaves a device.
 *
 * A call makes its operands' device current, launches on the caller's stream and puts back the
 * device that was current before. It waits for nothing. From compute capability 9.0 on a kernel may
 * start while the one before it drains:
 *
 *     first kernel     let_next_start() ....... its last blocks ....... end
 *     second kernel         prologue, reads of what was there before  | wait_for_previous() | rest
 */
#pragma once

#include "../core/core.h"
#include <cuda_runtime.h>
#include <stdint.h>
#include <type_traits>

enum { WARP = 32, BLOCK = 256 };
static constexpr unsigned ALL = 0xffffffffu; /* lanes of a warp, as shuffles name them */

/* ---- sizes ---- */

static __host__ __device__ inline int64_t ceil_div(int64_t n, int64_t d)
{
    return n / d + (n % d != 0);
}
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* What run returns of the first of these rising constants that is at least n, or of the last one: a
 * kernel that is compiled for each of them. */
template <int FIRST, int... REST, class Run> static auto for_least(int64_t n, Run run)
{
    if constexpr (sizeof...(REST) > 0)
        if (n > FIRST) return for_least<REST...>(n, run);
    return run(std::integral_constant<int, FIRST>());
}

/* Blocks of BLOCK threads for `count` threads' worth of work. The limit of a grid only bounds their
 * number, since kernels that may have more work than threads walk over it in steps: */
static inline unsigned blocks_for(int64_t count)
{
    return (unsigned)smaller(ceil_div(count, BLOCK), INT32_MAX);
}

/* A thread takes what this_thread() counts, and what lies all_threads() further on. */
static __device__ __forceinline__ int64_t this_thread(void)
{
    return int64_t(blockIdx.x) * BLOCK + threadIdx.x;
}
static __device__ __forceinline__ int64_t all_threads(void) { return int64_t(gridDim.x) * BLOCK; }

/* A sum over the lanes of a group of WIDTH neighbours; by a fixed tree, in all of them. Every
 * lane of the warp calls it. */
template <int WIDTH, class T> static __device__ __forceinline__ T lane_sum(T v)
{
#pragma unroll
    for (int d = WIDTH / 2; d; d /= 2) v += __shfl_xor_sync(ALL, v, d);
    return v;
}

/* ---- into a device and out of it ---- */

/* This library has a CUDA runtime of its own, whose current device nobody else sets. */
static inline fmm_status cuda_enter(const char *op, const fmm_exec *exec, int *before)
{
    cudaError_t error = cudaGetDevice(before);
    if (error == cudaSuccess && *before != exec->index) error = cudaSetDevice(exec->index);
    REQUIRE(error == cudaSuccess, FMM_DEVICE_ERROR,
            "%s: CUDA device %d: %s (this build needs an NVIDIA driver of its toolkit's release or "
            "newer)",
            op, exec->index, cudaGetErrorString(error));
    return FMM_OK;
}

/* Says what went wrong with a launch since cuda_enter. The runtime keeps an error until somebody
 * asks for it, so launches that succeed behind the one that failed do not hide it. Two things do,
 * as an H200 with CUDA 13.0 shows: cudaFuncSetAttribute forgets it, and the functions of CUB ask
 * for it, those that only say sizes as well. They fail then, and who drops what they return loses
 * the error. So who calls either behind a launch asks cudaPeekAtLastError before, or uses what CUB
 * returns. */
static inline fmm_status cuda_leave(const char *op, const fmm_exec *exec, int before)
{
    const cudaError_t error = cudaGetLastError();
    if (before != exec->index) cudaSetDevice(before);
    REQUIRE(error == cudaSuccess, FMM_DEVICE_ERROR, "%s: launch on CUDA device %d: %s", op,
            exec->index, cudaGetErrorString(error));
    return FMM_OK;
}

/* Runs launch() between the two. */
template <class Launch>
static fmm_status on_device(const char *op, const fmm_exec *exec, Launch launch)
{
    int before;
    TRY(cuda_enter(op, exec, &before));
    launch();
    return cuda_leave(op, exec, before);
}

static inline cudaStream_t stream_of(const fmm_exec *exec)
{
    return static_cast<cudaStream_t>(exec->stream);
}

/* ---- a kernel that starts while the one before it drains ---- */

/* The earlier kernel says when the later one may start, and the later one waits before it reads
 * what the earlier one wrote. On older cards they run one after the other. */
static __device__ __forceinline__ void let_next_start(void)
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}
static __device__ __forceinline__ void wait_for_previous(void)
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

/* Whether both the card and the code can do that. A kernel compiled for an older architecture and
 * brought here as PTX lacks the wait, so it must start when the one before it has ended. All
 * kernels are compiled for the same architectures, hence one answer for each card. */
template <class Kernel> static inline bool starts_early(int device, Kernel kernel)
{
    enum { CARDS = 64 };
    static signed char known[CARDS]; /* 0: not yet asked */
    if (device >= CARDS) return false;
    int says = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
    if (!says) {
        int major = 0;
        cudaFuncAttributes has = {};
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        if (cudaFuncGetAttributes(&has, kernel) != cudaSuccess) return false;
        says = major >= 9 && has.ptxVersion >= 90 ? 1 : -1;
        __atomic_store_n(&known[device], (signed char)says, __ATOMIC_RELAXED);
    }
    return says > 0;
}

/* Launches a kernel that calls wait_for_previous. */
template <class Kernel, class Args>
static void launch_early(int device, cudaStream_t stream, Kernel kernel, dim3 grid,
                         const Args &args, int threads = BLOCK)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = starts_early(device, kernel);
    cudaLaunchKernelEx(&config, kernel, args);
}
