/* What the `tiles` kernels share: windows of a dense operand in shared memory, from which every row
 * of a block gathers. They are for matrices whose rows share many columns, as those of pruned
 * networks do.
 *
 * A block has WARPS warps, each of which owns ROWS rows of the matrix. It walks over the rows of
 * the operand in windows of W, and takes STRIP of their columns:
 *
 *     operand         | W rows | W rows | W rows | W rows | ...
 *     ring            [ stage 0 ][ stage 1 ][ stage 2 ]           window w lies in stage w % STAGES
 *                       all threads copy window w + 1 while warps gather from window w
 *     each stage      full:  all copies of the window have arrived, so warps may gather
 *                     empty: all warps are through with it, so the next window may be copied
 *
 * These two barriers for each stage guard the ring, and not the block's one barrier. A warp whose
 * rows have more entries in a window may lag behind by a window, and nobody waits at every window's
 * end. */
#pragma once

#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline_primitives.h>

#include "device.h"
#include "segments.cuh"

/* A row of the strip is spanned by a group of LANES lanes with PER loads of 16 bytes each. A warp
 * has GROUPS groups. *_AT are places in the block's shared memory, in bytes. */
template <class T, int LANES_, int PER_, int W_, int ROWS_, int STAGES_ = 3> struct tiles_base {
    enum {
        LANES = LANES_,
        PER = PER_,
        W = W_,
        ROWS = ROWS_,
        WARPS = 16, /* where a shape does not say otherwise */
        STAGES = STAGES_,
        VEC = 16 / sizeof(T),
        STRIP = LANES * PER * VEC,
        GROUPS = WARP / LANES,
        WINDOW = (W + 1) * STRIP, /* the last row is 0, for groups without an entry */
        LISTS_AT = STAGES * WINDOW * sizeof(T),
    };
};

/* Whether an architecture has as much shared memory for a block as the shapes need. For others the
 * kernels are compiled without a body, since code that never runs would lengthen the build. */
#define TILES_POSSIBLE(arch) ((arch) >= 900 && (arch) < 1200)

/* The block's memory. Its address comes from a shuffle, so that it stays in a register: else it is
 * put together anew before each use, for which a warp waits as long as for a load from there. */
static __device__ __forceinline__ char *block_memory(void)
{
    extern __shared__ __align__(16) char memory[];
    const unsigned at = (unsigned)__cvta_generic_to_shared(memory);
    return static_cast<char *>(__cvta_shared_to_generic(__shfl_sync(ALL, at, 0)));
}

/* Waits until a barrier has ended its round; odd and even rounds are told apart. */
static __device__ __forceinline__ void wait_for(__mbarrier_t *barrier, int round)
{
    while (!__mbarrier_test_wait_parity(barrier, round & 1))
        ;
}

/* The thread arrives at the barrier as soon as all copies that it started are there. It does not
 * wait for them. */
static __device__ __forceinline__ void arrive_when_copied(__mbarrier_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

/* A thread's share of the copies: the same columns of every STEP-th row. */
template <class T, class S> struct tiles_ring {
    enum { THREADS = S::WARPS * WARP, ACROSS = S::LANES * S::PER, STEP = THREADS / ACROSS };
    static_assert(S::W % STEP == 0, "each thread copies as much");
    __mbarrier_t *full, *empty;
    const T *from;
    T *to;
    int64_t stride, wanted; /* of the operand's rows; how many of its columns are left */
    int rows, windows;      /* of the operand, from the first that this thread copies on */
    bool packs;

    /* Starts the copies of window w, once all warps are through with what its stage held before. */
    __device__ __forceinline__ void copy_window(int w) const
    {
        if (w >= windows) return;
        const int stage = w % S::STAGES, left = rows - w * S::W;
        if (w >= S::STAGES) wait_for(empty + stage, w / S::STAGES - 1);
        const T *source = from + int64_t(w) * S::W * stride;
        T *target = to + stage * S::WINDOW;
        if (packs) { /* 16 bytes at a time */
#pragma unroll
            for (int i = 0; i < S::W; i += STEP, source += STEP * stride)
                if (wanted > 0 && i < left)
                    __pipeline_memcpy_async(target + i * S::STRIP, source, 16);
        } else if constexpr (sizeof(T) >= 4) { /* as little as can be copied so */
#pragma unroll 1
            for (int i = 0; i < S::W && i < left; i += STEP, source += STEP * stride)
                for (int v = 0; v < S::VEC && v < wanted; v++)
                    __pipeline_memcpy_async(target + i * S::STRIP + v, source + v, sizeof(T));
        }
        arrive_when_copied(full + stage);
    }
};

/* Lays the ring out in `memory`, for the columns from `strip` on of x [cols, feat]. Every thread of
 * the block calls this. Columns that x lacks are never copied. Who multiplies them all the same has
 * them blanked, since they must not be NaN. */
template <class T, class S>
static __device__ __forceinline__ tiles_ring<T, S>
make_ring(char *memory, const T *x, int64_t stride, int32_t cols, int64_t strip, int64_t feat,
          bool packs, bool blanks)
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
    /* The last row of each stage stays 0. */
    for (int k = threadIdx.x; k < S::STAGES * S::STRIP; k += R::THREADS)
        windows[k / S::STRIP * S::WINDOW + S::W * S::STRIP + k % S::STRIP] = T(0);
    if (blanks && feat < S::STRIP)
        for (int k = threadIdx.x; k < S::STAGES * S::WINDOW; k += R::THREADS)
            if (k % S::STRIP >= feat) windows[k] = T(0);
    __syncthreads();
    return ring;
}

/* ---- what warps do that own ROWS rows each ---- */

/* The rows from begin to end. */
struct row_share {
    int32_t begin, end;
};
/* Those of the k-th, where each has `step` rows in units of 2^-32. */
static __device__ __forceinline__ row_share share_of(int64_t step, int64_t k)
{
    return row_share{int32_t(step * k >> 32), int32_t(step * (k + 1) >> 32)};
}

/* Lane r knows how far row r of the warp is: the next entry and the end. */
static __device__ __forceinline__ int2 progress_of(const csr_view &a, const row_share &own)
{
    const int32_t row = own.begin + int(threadIdx.x % WARP);
    if (row >= own.end) return make_int2(0, 0);
    int64_t begin;
    const int64_t length = row_range(a, row, &begin);
    return make_int2((int)begin, (int)(begin + length));
}

/* How many of the lanes' entries, from lane 0 on, lie in the window of `here` columns that begins
 * at `base`: where columns rise, those in the window come first. */
static __device__ __forceinline__ int count_in_window(int32_t near, uint32_t base, uint32_t here)
{
    const unsigned out = ~__ballot_sync(ALL, uint32_t(near) - base < here);
    return out ? __ffs(out) - 1 : WARP;
}

/* ---- on the host ---- */

/* Deals the rows out evenly to the warps of all blocks; args.step says how many each has. Fails
 * with FMM_UNSUPPORTED where the card, or the code this build has for it, lacks the shared memory.
 */
template <class S, class Args>
static fmm_status launch_tiles(const fmm_exec *exec, void (*kernel)(Args), int64_t rows,
                               int64_t blocks, int64_t strips, Args args)
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
    args.step = (rows << 32) / (blocks * S::WARPS) + 1; /* a little more, so that none is left */
    const dim3 grid((unsigned)blocks, (unsigned)strips);
    kernel<<<grid, S::WARPS * WARP, S::BYTES, stream_of(exec)>>>(args);
    return FMM_OK;
}

/* How many blocks share the rows, for each strip. A block owns 16 to 64 rows, or up to `most` where
 * all blocks then run at once: each multiprocessor runs one at a time. As few waves of them as
 * possible copy x as few times as possible, and all but small matrices fill the last wave. */
static inline int64_t tiles_blocks(const fmm_exec *exec, int64_t rows, int64_t strips,
                                   int64_t most = 64)
{
    const int64_t at_once = fmm_cuda_processors(exec->index);
    const bool one_wave = ceil_div(rows, most) * strips <= at_once;
    const int64_t waves = one_wave ? 1 : ceil_div(ceil_div(rows, 64) * strips, at_once);
    return smaller(ceil_div(rows, 16), waves * at_once / strips);
}
