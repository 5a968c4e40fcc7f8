/* Groups: the threads that compute one row of C together, a warp or a whole block.
 *
 *     WARPS = 1    a block of BLOCK threads has eight groups; they meet by __syncwarp
 *     WARPS > 1    the block is the group; it meets by __syncthreads
 *
 * Here is what a group does as one: meet, scan, sort, and walk over the products of a row. */
#ifndef FMM_SPGEMM_CUDA_GROUP_CUH
#define FMM_SPGEMM_CUDA_GROUP_CUH

#include "../cuda/common.cuh"

extern "C" {
#include "cuda.h"
}

/* No column has this number, since a matrix has at most 2^31 - 1 columns. */
enum : int32_t { NO_COLUMN = INT32_MAX };

template <int WARPS> struct group {
    enum { THREADS = WARPS * WARP, IN_BLOCK = WARPS == 1 ? BLOCK / WARP : 1 };
    /* Threads of a block, and blocks for which a multiprocessor has registers at least. */
    enum { BLOCK_OF = IN_BLOCK * THREADS, RESIDENT = 1024 / BLOCK_OF };
    static __device__ __forceinline__ int thread(void) { return threadIdx.x % THREADS; }
    static __device__ __forceinline__ int lane(void) { return threadIdx.x % WARP; }
    static __device__ __forceinline__ int warp(void) { return thread() / WARP; }
    static __device__ __forceinline__ void sync(void)
    {
        if (WARPS == 1)
            __syncwarp();
        else
            __syncthreads();
    }
    static __device__ __forceinline__ bool any(bool condition)
    {
        return WARPS == 1 ? __any_sync(ALL, condition) : __syncthreads_or(condition);
    }
};

/* Lanes of lower number than this one. */
static __device__ __forceinline__ unsigned lanes_below(void)
{
    return (1u << threadIdx.x % WARP) - 1;
}

/* The sum of the group's numbers up to this thread's. `totals` has room for each warp; the group
 * meets before it is used again. */
template <int WARPS> static __device__ __forceinline__ int64_t scanned(int64_t v, int64_t *totals)
{
    typedef group<WARPS> g;
    for (int d = 1; d < WARP; d *= 2) {
        const int64_t lower = __shfl_up_sync(ALL, v, d);
        v += g::lane() >= d ? lower : 0;
    }
    if (WARPS == 1) return v;
    if (g::lane() == WARP - 1) totals[g::warp()] = v;
    g::sync();
    for (int w = 0; w < g::warp(); w++) v += totals[w];
    return v;
}

/* The smallest power of two that is not below n. */
static __host__ __device__ inline int64_t power_of_two(int64_t n)
{
    int64_t power = 1;
    while (power < n) power *= 2;
    return power;
}

/* Sorts n keys, a power of two of them, by a bitonic network. */
template <int WARPS> static __device__ __noinline__ void sort_keys(int32_t *keys, int n)
{
    typedef group<WARPS> g;
    for (int run = 2; run <= n; run *= 2)
        for (int apart = run / 2; apart; apart /= 2) {
            for (int t = g::thread(); t < n / 2; t += g::THREADS) {
                const int low = 2 * t - (t & (apart - 1)), high = low + apart;
                const int32_t x = keys[low], y = keys[high];
                if ((x > y) == !(low & run)) keys[low] = y, keys[high] = x;
            }
            g::sync();
        }
}

/* ---- the products of a row ---- */

/* As many entries of A as the group has threads, and where their products lie in B:
 *
 *     entries of A      e0       e1    e2           e3
 *     rows of B         5 6 7    -     40 41        9
 *     product           0 1 2          3  4         5
 *     ends              3        3     5            6      product t belongs to the first
 *     origin            5              37           4      entry that ends behind it
 */
template <int WARPS, class A> struct chunk {
    int64_t ends[group<WARPS>::THREADS], origin[group<WARPS>::THREADS], totals[WARPS];
    A factor[group<WARPS>::THREADS]; /* A's values */
    int64_t shared;                  /* what one thread tells the others */
};

/* Fills the chunk from entry p on; returns how many products it has. Without factors where val is
 * NULL. The group meets before the next call. */
template <int WARPS, class A>
static __device__ __forceinline__ int64_t fill_chunk(chunk<WARPS, A> *to, const csr_view &a,
                                                     const csr_view &b, const edge_view *val,
                                                     int64_t p, int64_t end)
{
    typedef group<WARPS> g;
    int64_t begin = 0, length = 0;
    p += g::thread();
    if (p < end) {
        const int64_t k = __ldg(a.idx + p);
        if (uint64_t(k) < uint64_t(b.rows)) length = row_range(b, k, &begin);
        if (val) to->factor[g::thread()] = edge_value<A>(*val, edge_of(*val, p), 0);
    }
    const int64_t until = scanned<WARPS>(length, to->totals);
    to->ends[g::thread()] = until;
    to->origin[g::thread()] = begin - (until - length);
    g::sync();
    return to->ends[g::THREADS - 1];
}

/* Which entry of the chunk product t belongs to. */
template <int WARPS, class A>
static __device__ __forceinline__ int entry_of(const chunk<WARPS, A> *in, int64_t t)
{
    int e = 0;
#pragma unroll
    for (int step = group<WARPS>::THREADS / 2; step; step /= 2)
        e += in->ends[e + step - 1] <= t ? step : 0;
    return e;
}

/* Calls visit(j) for the column of each product of row i of A B, in any order. */
template <int WARPS, class A, class Visit>
static __device__ __forceinline__ void for_columns(chunk<WARPS, A> *room, const csr_view &a,
                                                   const csr_view &b, int64_t i, Visit visit)
{
    typedef group<WARPS> g;
    int64_t begin;
    const int64_t end = row_range(a, i, &begin) + begin;
    for (int64_t p = begin; p < end; p += g::THREADS) {
        const int64_t products = fill_chunk<WARPS, A>(room, a, b, NULL, p, end);
        for (int64_t t = g::thread(); t < products; t += g::THREADS) {
            const int32_t j = __ldg(b.idx + room->origin[entry_of<WARPS, A>(room, t)] + t);
            if (uint32_t(j) < uint32_t(b.cols)) visit(j);
        }
        g::sync();
    }
}

#endif
