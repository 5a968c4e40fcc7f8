/* Classes: which rows of C a whole block computes, which a warp, and in which order.
 *
 *     class           3        2           1       0
 *     a row has       a block  a block     a warp  a warp, which takes several of class 0 at once
 *     memory          WARPS rooms          a room
 *     tickets         first                        last
 *
 *     lists           counts | tickets            per class
 *     order           class 0 --->      <--- class 1
 *                     class 2 --->      <--- class 3      8 bytes a row: all that a call takes
 *
 * Small rows are in no class: threads compute them one by one (cuda_small.cuh).
 *
 * A row that needs more shared memory than a block has is computed in windows: some of its columns
 * at a time. So no row needs global memory, however long it is, and nothing has to be known of rows
 * when memory is taken.
 *
 * Nobody waits for the counts. As many blocks start as the card holds, and each takes a ticket for
 * the next rows until there are none; a row may be cut in stripes, each with a ticket of its own.
 * Who computes a row, and at which place of `order` it stands, changes from run to run; the row's
 * result depends on neither. */
#ifndef FMM_SPGEMM_CUDA_CLASSES_CUH
#define FMM_SPGEMM_CUDA_CLASSES_CUH

#include "../cuda/device.h"
#include "cuda_group.cuh"

enum { LARGEST = 3, CLASSES };
enum {
    WARPS = BLOCK / WARP,
    ROOM = 6 << 10,    /* bytes of a warp: four blocks run at once for their registers, and fit */
    ROWS_TOGETHER = 32 /* rows of class 0 that a warp takes at once, at most */
};

/* Entries of a row of A beyond which windows of C's entries (cuda_entries.cuh) are not taken, but
 * for few rows (cuda_few.cuh), which are not looked at: each window would walk along the whole row.
 * A with a row of 9,458 entries, times a matrix with one entry a row: 133 to 139 us by rows where
 * windows took 402 (H100). */
enum { LONG_WALK = 1024 };

typedef unsigned long long counter; /* what atomicAdd takes */

struct row_lists {
    counter counts[CLASSES], tickets[CLASSES];
    /* What the look of the symbolic phase finds for the host, which reads all of this at once. */
    counter products, entries, falls;
    counter has_long; /* whether a row of A has more than LONG_WALK entries */
};

/* What the kernels of a phase take beside their operands. */
struct row_work {
    row_lists *lists;
    int32_t *order;
    int64_t rows;
    unsigned stripes; /* of a row of each class, a digit each: the logarithm of how many */

    /* Where row number `at` of class k stands. */
    __device__ __forceinline__ int32_t *place(int k, int64_t at) const
    {
        return order + k / 2 * rows + (k % 2 ? rows - 1 - at : at);
    }
    __device__ __forceinline__ int stripe_bits(int k) const { return stripes >> 4 * k & 15; }
};

static inline size_t row_work_bytes(int64_t rows)
{
    return sizeof(row_lists) + 2 * (size_t)rows * sizeof(int32_t);
}

/* What a call has of its workspace. */
static inline row_work row_work_in(void *workspace, int64_t rows, unsigned stripes)
{
    row_lists *const lists = static_cast<row_lists *>(workspace);
    return row_work{lists, reinterpret_cast<int32_t *>(lists + 1), rows, stripes};
}

/* ---- rows into classes ---- */

/* class_of(i) is a row's class, or -1 where there is nothing to do. The rows of a warp take their
 * places in the block's part together, and a block takes its parts of the lists at once. */
template <class ClassOf>
static __global__ void __launch_bounds__(BLOCK) bin_rows(const row_work w, const ClassOf class_of)
{
    __shared__ unsigned counts[CLASSES];
    __shared__ counter parts[CLASSES];
    const int lane = threadIdx.x % WARP;
    for (int64_t first = int64_t(blockIdx.x) * BLOCK; first < w.rows; first += all_threads()) {
        const int64_t i = first + threadIdx.x;
        const int k = i < w.rows ? class_of(i) : -1;
        if (threadIdx.x < CLASSES) counts[threadIdx.x] = 0;
        __syncthreads();
        const unsigned peers = __match_any_sync(ALL, k);
        const int leader = __ffs(peers) - 1;
        unsigned at = 0;
        if (k >= 0 && lane == leader) at = atomicAdd(counts + k, (unsigned)__popc(peers));
        at = __shfl_sync(ALL, at, leader) + __popc(peers & lanes_below());
        __syncthreads();
        if (threadIdx.x < CLASSES && counts[threadIdx.x])
            parts[threadIdx.x] = atomicAdd(w.lists->counts + threadIdx.x, counts[threadIdx.x]);
        __syncthreads();
        if (k >= 0) *w.place(k, int64_t(parts[k]) + at) = (int32_t)i;
    }
}

template <class ClassOf>
static void launch_bins(const fmm_exec *exec, const row_work &w, const ClassOf &class_of)
{
    const unsigned blocks = (unsigned)smaller(ceil_div(w.rows, BLOCK), 1 << 12);
    cudaMemsetAsync(w.lists, 0, offsetof(row_lists, products), stream_of(exec));
    bin_rows<<<blocks, BLOCK, 0, stream_of(exec)>>>(w, class_of);
}

/* ---- the rows of all classes ---- */

/* Calls work(row, its class, stripe) for what this warp takes, a ticket at a time: first with its
 * block, then alone. A ticket is a stripe, or some rows of class 0. The block has met before a
 * warp goes on alone. */
template <class Work> static __device__ __forceinline__ void for_rows(const row_work &w, Work work)
{
    __shared__ counter of_block;
    const int64_t warps = int64_t(gridDim.x) * WARPS;
    const int64_t fair = (int64_t)w.lists->counts[0] / (8 * warps);
#pragma unroll 1
    for (int k = LARGEST; k > 0; k -= 2) { /* the classes k and k - 1 */
        const bool together = k == LARGEST;
        const int step = k == 1 ? (int)clamp(fair, 1, ROWS_TOGETHER) : 1;
        const int64_t upper = int64_t(w.lists->counts[k]) << w.stripe_bits(k);
        const int64_t lower = int64_t(w.lists->counts[k - 1]) << w.stripe_bits(k - 1);
        for (;;) {
            counter taken = 0;
            if (together) {
                __syncthreads(); /* all have read the ticket before */
                if (!threadIdx.x) of_block = atomicAdd(w.lists->tickets + k, (counter)1);
                __syncthreads();
                taken = of_block;
            } else if (threadIdx.x % WARP == 0)
                taken = atomicAdd(w.lists->tickets + k, (counter)1);
            int64_t at = (int64_t)__shfl_sync(ALL, taken, 0), behind = at + 1;
            const int less = at >= upper, bits = w.stripe_bits(k - less); /* than class k */
            if (less) {
                at = (at - upper) * step, behind = at + step < lower ? at + step : lower;
                if (at >= lower) break;
            }
            for (; at < behind; at++)
                work(int64_t(*w.place(k - less, at >> bits)), k - less,
                     int(at & ((1 << bits) - 1)));
        }
    }
}

/* Blocks of a kernel that a card holds at once. What CUDA says is kept for each device, since the
 * host asks before every launch; Key is a type that no other kernel of this file has. */
template <class Key, class Kernel>
static int64_t blocks_held(const fmm_exec *exec, Kernel kernel, int bytes)
{
    enum { DEVICES = 64 };
    static int known[DEVICES];
    const bool listed = exec->index >= 0 && exec->index < DEVICES;
    int each = listed ? __atomic_load_n(&known[exec->index], __ATOMIC_RELAXED) : 0;
    /* Not behind a launch that failed: cudaFuncSetAttribute would forget why (cuda_leave). */
    if (!each && cudaPeekAtLastError() == cudaSuccess) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, BLOCK, bytes);
        if (listed) __atomic_store_n(&known[exec->index], each, __ATOMIC_RELAXED);
    }
    return int64_t(each < 1 ? 1 : each) * fmm_cuda_processors(exec->index);
}

/* Puts rows into classes, and computes them. The order of tickets follows from all rows; hence two
 * launches. */
template <class Key, class Kernel, class ClassOf, class Args>
static void launch_rows(const fmm_exec *exec, Kernel kernel, const row_work &w,
                        const ClassOf &class_of, const Args &args, int bytes)
{
    enum { STRIPES = 16 }; /* of a row, at most */
    const int64_t held = blocks_held<Key>(exec, kernel, bytes);
    launch_bins(exec, w, class_of);
    kernel<<<(unsigned)smaller(held, w.rows * STRIPES), BLOCK, bytes, stream_of(exec)>>>(args, w);
}

#endif
