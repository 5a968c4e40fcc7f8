/* Classes: rows that need about the same shared memory, and the launches that compute them.
 *
 *     class        0       1       2        3        4
 *     a row has    warp    warp    128 thr  512 thr  1024 threads
 *     memory       1 KiB   4 KiB   20 KiB   60 KiB   what the card has
 *
 *     lists    counts | cursors | tickets            per class
 *     order    rows of class 0 | class 1 | ...       4 bytes a row: all the memory that a call
 * takes
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

enum { CLASSES = 5, LARGEST = CLASSES - 1, STRIPES = 8, MOST_ROWS_A_TICKET = 32 };

typedef unsigned long long counter; /* what atomicAdd takes */

struct row_lists {
    counter counts[CLASSES], cursors[CLASSES], tickets[CLASSES];
};

/* Bytes of shared memory that the rows of each class have, by value to kernels. */
struct class_bytes {
    int of[CLASSES];
    /* The first class in which so many bytes fit, or the largest. */
    __host__ __device__ int smallest(int64_t bytes) const
    {
        int k = 0;
        while (k < LARGEST && of[k] < bytes) k++;
        return k;
    }
};

/* The least class of a row of A with so many entries: a long one is too much for one warp. */
static __device__ __forceinline__ int class_of_work(int64_t entries)
{
    return entries <= 512 ? 0 : entries <= 4096 ? 2 : entries <= 65536 ? 3 : LARGEST;
}

/* What the kernels of a phase take beside their operands. */
struct row_work {
    row_lists *lists;
    int32_t *order;
    class_bytes bytes;
    int64_t rows;
};

static inline size_t row_work_bytes(int64_t rows)
{
    return sizeof(row_lists) + (size_t)rows * sizeof(int32_t);
}

/* ---- rows into classes ---- */

/* class_of(i) is a row's class, or -1 where there is nothing to do. The first of two launches
 * counts, the second, which has `order`, places. Rows of a warp take their places together. */
template <class ClassOf>
static __global__ void __launch_bounds__(BLOCK)
    bin_rows(const row_work w, const ClassOf class_of, bool place)
{
    counter *const counters = place ? w.lists->cursors : w.lists->counts;
    const int lane = threadIdx.x % WARP;
    for (int64_t first = this_thread() - lane; first < w.rows; first += all_threads()) {
        const int64_t i = first + lane;
        const int k = i < w.rows ? class_of(i) : -1;
        const unsigned peers = __match_any_sync(ALL, k);
        const int leader = __ffs(peers) - 1;
        counter at = 0;
        if (k >= 0 && lane == leader) at = atomicAdd(counters + k, (counter)__popc(peers));
        at = __shfl_sync(ALL, at, leader) + __popc(peers & lanes_below());
        if (!place || k < 0) continue;
        for (int below = 0; below < k; below++) at += w.lists->counts[below];
        w.order[at] = (int32_t)i;
    }
}

template <class ClassOf>
static void launch_bins(const fmm_exec *exec, const row_work &w, const ClassOf &class_of)
{
    const unsigned blocks = (unsigned)smaller(ceil_div(w.rows, BLOCK), 1 << 12);
    cudaMemsetAsync(w.lists, 0, sizeof *w.lists, stream_of(exec));
    bin_rows<<<blocks, BLOCK, 0, stream_of(exec)>>>(w, class_of, false);
    bin_rows<<<blocks, BLOCK, 0, stream_of(exec)>>>(w, class_of, true);
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
    const int32_t *order = w.order;
    for (int below = 0; below < k; below++) order += w.lists->counts[below];
    for (;;) {
        if (!g::thread()) *shared = (int64_t)atomicAdd(w.lists->tickets + k, (counter)step);
        g::sync();
        const int64_t first = *shared;
        g::sync();
        if (first >= items) return;
        const int64_t last = first + step < items ? first + step : items;
        for (int64_t item = first; item < last; item++)
            work(int64_t(order[item / stripes]), int(item % stripes));
    }
}

/* What a group has of shared memory: a chunk, then `bytes` for its row. */
template <int WARPS, class A> struct shared_room {
    chunk<WARPS, A> *products;
    char *row;
    static constexpr __host__ __device__ int chunk_bytes(void)
    {
        return (sizeof(chunk<WARPS, A>) + 15) / 16 * 16;
    }
    static constexpr __host__ __device__ int each(int bytes)
    {
        return chunk_bytes() + (bytes + 15) / 16 * 16;
    }
    static __device__ __forceinline__ shared_room of(char *base, int bytes)
    {
        char *const own = base + (WARPS == 1 ? threadIdx.x / WARP * each(bytes) : 0);
        return shared_room{reinterpret_cast<chunk<WARPS, A> *>(own), own + chunk_bytes()};
    }
};

/* Calls launch for each class, largest first: (class, WARPS as a constant). */
template <int N> struct warps_of {
    enum { WARPS = N };
};
template <class Launch> static void for_classes(Launch launch)
{
    launch(4, warps_of<32>());
    launch(3, warps_of<16>());
    launch(2, warps_of<4>());
    launch(1, warps_of<1>());
    launch(0, warps_of<1>());
}

/* The classes of a card. All kernels of a phase have chunks with factors of at most 8 bytes. */
static inline class_bytes classes_of(int device)
{
    enum { RESERVED = 1 << 10, LEAST = 48 << 10 };
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    most = (most > LEAST ? most : LEAST) - RESERVED - shared_room<32, double>::chunk_bytes();
    const int large = (int)smaller(60 << 10, most);
    return class_bytes{{1 << 10, 4 << 10, (int)smaller(20 << 10, large), large, most}};
}

/* What a call has of its workspace. */
static inline row_work row_work_in(const fmm_exec *exec, void *workspace, int64_t rows)
{
    row_lists *const lists = static_cast<row_lists *>(workspace);
    return row_work{lists, reinterpret_cast<int32_t *>(lists + 1), classes_of(exec->index), rows};
}

/* Launches a kernel on the rows of one class: as many blocks as the card holds, or as there can be
 * work for. */
template <int WARPS, class A, class Kernel, class Args>
static void launch_class(const fmm_exec *exec, Kernel kernel, const row_work &w, int k, int stripes,
                         const Args &args)
{
    typedef group<WARPS> g;
    const int threads = g::BLOCK_OF;
    const int bytes = g::IN_BLOCK * shared_room<WARPS, A>::each(w.bytes.of[k]);
    int blocks_each = 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_each, kernel, threads, bytes);
    const int64_t held =
        int64_t(blocks_each < 1 ? 1 : blocks_each) * fmm_cuda_processors(exec->index);
    const unsigned blocks = (unsigned)smaller(held, ceil_div(w.rows * stripes, g::IN_BLOCK));
    kernel<<<blocks, threads, bytes, stream_of(exec)>>>(args, w, k);
}

#endif
