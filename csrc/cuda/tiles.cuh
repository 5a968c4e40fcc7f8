/* What the `tiles` kernels share: windows of a dense operand in shared memory, which every row of a
 * block gathers from.
 *
 * A block of WARPS warps, ROWS rows of the matrix each, walks over the rows of the operand in
 * windows of W, and over STRIP of their columns. A ring of STAGES windows is guarded by two
 * barriers each (full, empty), not by the block's: a warp whose rows hold more of a window lags
 * behind by a window, and no one waits at every window's end. */
#ifndef FMM_CUDA_TILES_CUH
#define FMM_CUDA_TILES_CUH

#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline_primitives.h>

#include "device.h"
#include "segments.cuh"

/* LANES lanes with PER loads of 16 bytes each span the strip. */
template <class T, int LANES_, int PER_, int W_, int ROWS_, int STAGES_ = 3> struct tiles_base {
    enum {
        LANES = LANES_,
        PER = PER_,
        W = W_,
        ROWS = ROWS_,
        WARPS = 16,
        STAGES = STAGES_,
        VEC = 16 / sizeof(T),
        STRIP = LANES * PER * VEC,
        GROUPS = WARP / LANES,
        WINDOW = (W + 1) * STRIP, /* the last row is 0, for groups without an entry */
        LISTS_AT = STAGES * WINDOW * sizeof(T),
    };
    static_assert(W * LANES * PER % (WARPS * WARP) == 0, "each thread copies as much");
};

/* Cards with this much shared memory a block: code for others would only lengthen the build. */
#define TILES_POSSIBLE(arch) ((arch) >= 900 && (arch) < 1200)

static __device__ __forceinline__ void wait_for(__mbarrier_t *barrier, int round)
{
    while (!__mbarrier_test_wait_parity(barrier, round & 1))
        ;
}

/* The thread's arrival, as soon as all its copies are there. */
static __device__ __forceinline__ void arrive_when_copied(__mbarrier_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

/* A thread's share of the copies: the same columns of every STEP-th row. */
template <class T, class S> struct tiles_ring {
    enum { THREADS = S::WARPS * WARP, ACROSS = S::LANES * S::PER, STEP = THREADS / ACROSS };
    __mbarrier_t *full, *empty;
    const T *from;
    T *to;
    int64_t stride, wanted; /* of the operand's rows; how many of its columns are left */
    int rows, windows;      /* of the operand, from the first that this thread copies on */
    bool packs;

    __device__ __forceinline__ void copy_window(int w) const
    {
        if (w >= windows) return;
        const int stage = w % S::STAGES, left = rows - w * S::W;
        if (w >= S::STAGES) wait_for(empty + stage, w / S::STAGES - 1);
        const T *source = from + int64_t(w) * S::W * stride;
        T *target = to + stage * S::WINDOW;
        if (packs) {
#pragma unroll
            for (int i = 0; i < S::W; i += STEP, source += STEP * stride)
                if (wanted > 0 && i < left)
                    __pipeline_memcpy_async(target + i * S::STRIP, source, 16);
        } else {
#pragma unroll 1
            for (int i = 0; i < S::W && i < left; i += STEP, source += STEP * stride)
                for (int v = 0; v < S::VEC && v < wanted; v++)
                    __pipeline_memcpy_async(target + i * S::STRIP + v, source + v, sizeof(T));
        }
        arrive_when_copied(full + stage);
    }
};

/* The ring in `memory`, for columns from `strip` on of x [cols, feat]; all threads must meet before
 * they use it. */
template <class T, class S>
static __device__ __forceinline__ tiles_ring<T, S>
make_ring(char *memory, const T *x, int64_t stride, int32_t cols, int64_t strip, int64_t feat,
          bool packs)
{
    typedef tiles_ring<T, S> R;
    T *const windows = reinterpret_cast<T *>(memory);
    const int row = threadIdx.x / R::ACROSS, column = threadIdx.x % R::ACROSS * S::VEC;
    R ring;
    ring.full = reinterpret_cast<__mbarrier_t *>(memory + S::BARRIERS_AT);
    ring.empty = ring.full + S::STAGES;
    ring.from = x + row * stride + strip + column;
    ring.to = windows + row * S::STRIP + column;
    ring.stride = stride;
    ring.wanted = feat - strip - column;
    ring.rows = cols - row;
    ring.windows = (int)ceil_div(cols, S::W);
    ring.packs = packs;
    if (threadIdx.x < S::STAGES) {
        __mbarrier_init(ring.full + threadIdx.x, R::THREADS);
        __mbarrier_init(ring.empty + threadIdx.x, R::THREADS);
    }
    for (int k = threadIdx.x; k < S::STAGES * S::STRIP; k += R::THREADS)
        windows[k / S::STRIP * S::WINDOW + S::W * S::STRIP + k % S::STRIP] = T(0);
    return ring;
}

/* Fails with FMM_UNSUPPORTED where the card, or the code this build has for it, lacks the shared
 * memory. */
template <class S, class Args>
static fmm_status launch_tiles(const fmm_exec *exec, void (*kernel)(Args), int64_t rows,
                               int64_t strips, const Args &args)
{
    static_assert(S::BYTES <= 227 * 1024, "what a block of 9.0 and 10.0 can have");
    cudaFuncAttributes has;
    if (cudaFuncGetAttributes(&has, kernel) != cudaSuccess ||
        !TILES_POSSIBLE(has.ptxVersion * 10) ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES) !=
            cudaSuccess) {
        (void)cudaGetLastError();
        return FMM_UNSUPPORTED;
    }
    const dim3 grid((unsigned)ceil_div(rows, S::WARPS * S::ROWS), (unsigned)strips);
    kernel<<<grid, S::WARPS * WARP, S::BYTES, stream_of(exec)>>>(args);
    return FMM_OK;
}

/* Rows a warp, up to 4: fewer make more blocks. A block takes about the time of its rows and one
 * row more, for the copying, and one runs on each multiprocessor at a time. */
static inline int tiles_rows(const fmm_exec *exec, int64_t count, int64_t strips)
{
    const int at_once = fmm_cuda_processors(exec->index);
    int best = 0;
    int64_t least = 0;
    for (int rows = 4; rows > 0; rows--) {
        const int64_t blocks = ceil_div(count, 16 * rows) * strips;
        const int64_t time = ceil_div(blocks, at_once) * (rows + 1);
        if (!best || time < least) best = rows, least = time;
    }
    return best;
}

#endif
