/* Classes: rows that need about the same shared memory, and the launches that compute them.
 *
 *     class           0       1             2             3
 *     a row has       warp    128 threads   512 threads   1024 threads
 *     memory          2 KiB   22 KiB        72 KiB        what the card has
 *
 *     lists           counts | tickets            per class
 *     order           class 0 --->      <--- class 1
 *                     class 2 --->      <--- class 3      8 bytes a row: all that a call takes
 *
 * Small rows are in no class: threads compute them one by one (cuda_small.cuh).
 *
 * A row that needs more than the largest class has is computed in windows: some of its columns at a
 * time, by one block after the other or by several side by side. So no row needs global memory,
 * however long it is, and nothing has to be known of rows when memory is taken.
 *
 * Nobody waits for the counts. As many blocks start as the card holds, and each takes a ticket for
 * the next rows of its class until there are none. Which block computes a row, and at which place
 * of `order` the row stands, changes from run to run; the row's result depends on neither. */
#ifndef FMM_SPGEMM_CUDA_CLASSES_CUH
#define FMM_SPGEMM_CUDA_CLASSES_CUH

#include "../cuda/device.h"
#include "cuda_group.cuh"

enum { LARGEST = 3, CLASSES, STRIPES = 8, MOST_ROWS_A_TICKET = 32 };

typedef unsigned long long counter; /* what atomicAdd takes */

struct row_lists {
    counter counts[CLASSES], tickets[CLASSES];
    /* What the look of the symbolic phase finds for the host, which reads all of this at once. */
    counter products, entries, falls;
};

/* Bytes of shared memory that the rows of each class have, by value to kernels. */
struct class_bytes {
    int of[LARGEST + 1];
    /* The first class in which so many bytes fit, or the largest. */
    __host__ __device__ int smallest(int64_t bytes) const
    {
        int k = 0;
        while (k < LARGEST && of[k] < bytes) k++;
        return k;
    }
};

/* The least class of a row of A with so many entries: who walks along them one by one should not be
 * the last to end. */
static __host__ __device__ __forceinline__ int class_of_work(int64_t entries)
{
    return entries <= 64 ? 0 : entries <= 512 ? 1 : entries <= 8192 ? 2 : LARGEST;
}

/* What the kernels of a phase take beside their operands. */
struct row_work {
    row_lists *lists;
    int32_t *order;
    class_bytes bytes;
    int64_t rows;

    /* Where row number `at` of class k stands. */
    __device__ __forceinline__ int32_t *place(int k, int64_t at) const
    {
        return order + k / 2 * rows + (k % 2 ? rows - 1 - at : at);
    }
};

static inline size_t row_work_bytes(int64_t rows)
{
    return sizeof(row_lists) + 2 * (size_t)rows * sizeof(int32_t);
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

/* ---- the rows of a class ---- */

/* Calls work(row, stripe) for the rows that this group takes; each row has so many stripes. */
template <int WARPS, class Work>
static __device__ __forceinline__ void for_rows(const row_work &w, int k, int stripes,
                                                int64_t *shared, Work work)
{
    typedef group<WARPS> g;
    const int64_t items = int64_t(w.lists->counts[k]) * stripes;
    const int64_t fair = items / (8 * int64_t(gridDim.x) * g::IN_BLOCK);
    const int64_t step = WARPS > 1 ? 1 : clamp(fair, 1, MOST_ROWS_A_TICKET);
    for (;;) {
        if (!g::thread()) *shared = (int64_t)atomicAdd(w.lists->tickets + k, (counter)step);
        g::sync();
        const int64_t first = *shared;
        g::sync();
        if (first >= items) return;
        const int64_t last = first + step < items ? first + step : items;
        for (int64_t item = first; item < last; item++)
            work(int64_t(*w.place(k, item / stripes)), int(item % stripes));
    }
}

/* What a group has of shared memory: numbers by which its threads tell each other something, a
 * Head, and `bytes` for its row. */
template <int WARPS> struct told {
    int64_t ticket;
    int sum, next, totals[WARPS];
};
template <int WARPS, class Head> struct shared_room {
    told<WARPS> *says;
    Head *head;
    char *row;
    static constexpr __host__ __device__ int rounded(size_t bytes)
    {
        return int((bytes + 15) / 16 * 16);
    }
    static constexpr __host__ __device__ int each(int bytes)
    {
        return rounded(sizeof(told<WARPS>)) + rounded(sizeof(Head)) + rounded((size_t)bytes);
    }
    static __device__ __forceinline__ shared_room of(char *base, int bytes)
    {
        char *const own = base + (WARPS == 1 ? threadIdx.x / WARP * each(bytes) : 0);
        char *const head = own + rounded(sizeof(told<WARPS>));
        return shared_room{reinterpret_cast<told<WARPS> *>(own), reinterpret_cast<Head *>(head),
                           head + rounded(sizeof(Head))};
    }
};

/* Calls launch for the classes up to `last`, the largest first: (class, WARPS as a constant). */
template <int N> struct warps_of {
    enum { WARPS = N };
};
template <class Launch> static void for_classes(int last, Launch launch)
{
    if (last >= 3) launch(3, warps_of<32>());
    if (last >= 2) launch(2, warps_of<16>());
    if (last >= 1) launch(1, warps_of<4>());
    launch(0, warps_of<1>());
}

/* The classes of a card. */
static inline class_bytes classes_of(int device)
{
    enum { LEAST = 48 << 10 };
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    most = (most > LEAST ? most : LEAST) - shared_room<32, largest_head>::each(0);
    const int large = (int)smaller(72 << 10, most);
    return class_bytes{{2 << 10, (int)smaller(22 << 10, large), large, most}};
}

/* What a call has of its workspace. */
static inline row_work row_work_in(const fmm_exec *exec, void *workspace, int64_t rows)
{
    row_lists *const lists = static_cast<row_lists *>(workspace);
    return row_work{lists, reinterpret_cast<int32_t *>(lists + 1), classes_of(exec->index), rows};
}

/* Blocks of a kernel that a card holds at once. What CUDA says is kept for each device, since the
 * host asks before every launch; Key is a type that no other kernel of this file has. */
template <class Key, class Kernel>
static int64_t blocks_held(const fmm_exec *exec, Kernel kernel, int threads, int bytes)
{
    enum { DEVICES = 64 };
    static int known[DEVICES];
    const bool listed = exec->index >= 0 && exec->index < DEVICES;
    int each = listed ? __atomic_load_n(&known[exec->index], __ATOMIC_RELAXED) : 0;
    /* Not behind a launch that failed: cudaFuncSetAttribute would forget why (cuda_leave). */
    if (!each && cudaPeekAtLastError() == cudaSuccess) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, bytes);
        if (listed) __atomic_store_n(&known[exec->index], each, __ATOMIC_RELAXED);
    }
    return int64_t(each < 1 ? 1 : each) * fmm_cuda_processors(exec->index);
}

/* Launches a kernel on the rows of one class: as many blocks as the card holds, or as there can be
 * work for. */
template <int WARPS, class Head, class Kernel, class Args>
static void launch_class(const fmm_exec *exec, Kernel kernel, const row_work &w, int k, int stripes,
                         const Args &args)
{
    typedef group<WARPS> g;
    const int threads = g::BLOCK_OF;
    const int bytes = g::IN_BLOCK * shared_room<WARPS, Head>::each(w.bytes.of[k]);
    const int64_t held = blocks_held<shared_room<WARPS, Head>>(exec, kernel, threads, bytes);
    const unsigned blocks = (unsigned)smaller(held, ceil_div(w.rows * stripes, g::IN_BLOCK));
    kernel<<<blocks, threads, bytes, stream_of(exec)>>>(args, w, k);
}

#endif
