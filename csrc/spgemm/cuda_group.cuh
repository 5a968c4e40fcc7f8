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
    enum { THREADS = WARPS * WARP };
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
template <int WARPS, class T> static __device__ __forceinline__ T scanned(T v, T *totals)
{
    typedef group<WARPS> g;
    for (int d = 1; d < WARP; d *= 2) {
        const T lower = __shfl_up_sync(ALL, v, d);
        v += g::lane() >= d ? lower : 0;
    }
    if (WARPS == 1) return v;
    if (g::lane() == WARP - 1) totals[g::warp()] = v;
    g::sync();
    for (int w = 0; w < g::warp(); w++) v += totals[w];
    return v;
}

/* The sum of the group's numbers, in every thread. `sum` is 0, and the group has met since. */
template <int WARPS> static __device__ __forceinline__ int added(int v, int *sum)
{
    for (int d = WARP / 2; d; d /= 2) v += __shfl_xor_sync(ALL, v, d);
    if (WARPS == 1) return v;
    if (group<WARPS>::lane() == 0 && v) atomicAdd(sum, v);
    group<WARPS>::sync();
    return *sum;
}

/* The smallest power of two that is not below n: slots of a table that is sorted, since a bitonic
 * network has so many keys. */
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

/* Writes n different keys in order: each looks how many are below it. */
template <int WARPS>
static __device__ __forceinline__ void write_ranked(const int32_t *keys, int n, int32_t *to)
{
    for (int at = group<WARPS>::thread(); at < n; at += group<WARPS>::THREADS) {
        const int32_t own = keys[at];
        int below = 0;
#pragma unroll 8
        for (int other = 0; other < n; other++) below += keys[other] < own;
        to[below] = own;
    }
}

/* ---- rows of B that a warp walks along ---- */

/* Where the row of B lies that entry p of A names; nothing behind the end, nor for a column of A
 * that B has no row for. */
struct row_of_b {
    int64_t begin, length;
    __device__ __forceinline__ row_of_b(const csr_view &a, const csr_view &b, int64_t p,
                                        int64_t end)
        : begin(0), length(0)
    {
        if (p >= end) return;
        const int64_t k = __ldg(a.idx + p);
        if (uint64_t(k) < uint64_t(b.rows)) length = row_range(b, k, &begin);
    }
};

/* Lanes that walk along a row of B together, where the warp's rows are so long: a power of two. */
static __device__ __forceinline__ int lanes_for(int64_t length)
{
    if (__any_sync(ALL, length > 8)) return __any_sync(ALL, length > 16) ? WARP : 16;
    return __any_sync(ALL, length > 4) ? 8 : 4;
}

/* Rows of B in which all warps of a group take part, where the order of products does not matter.
 */
enum { SHARED_ROW = 1024 };

/* B as it is, for for_products: an item of a row is a column, or -1 where there is none. */
struct columns_of {
    csr_view b;
    __device__ __forceinline__ row_of_b row(const csr_view &a, int64_t p, int64_t end) const
    {
        return row_of_b(a, b, p, end);
    }
    __device__ __forceinline__ int32_t item(int64_t q, bool wanted) const
    {
        return wanted ? __ldg(b.idx + q) : -1;
    }
};

/* Calls visit(item) for each product of row i of A B, in any order, and for some items that are
 * none. A warp takes every WARPS-th entry of A, 32 of them at once.
 *
 *     short rows of B     lanes 0-3: e0, 4-7: e1, 8-11: e2, ...     several entries of A at once
 *     others              in pieces of 32 items, of which EACH are loaded together
 *     the longest         all warps share them, if A's row has so few entries that each warp looks
 *                         at all of them */
template <int WARPS, class Source, class Visit>
static __device__ __forceinline__ void for_products(const csr_view &a, const Source &b, int64_t i,
                                                    Visit visit)
{
    typedef group<WARPS> g;
    typedef decltype(b.item(0, false)) item;
    enum { SHORT = 2, EACH = 4 }; /* loads of a lane that are under way together */
    int64_t begin;
    const int64_t end = row_range(a, i, &begin) + begin;
    const bool few = WARPS > 1 && end - begin <= WARP; /* all warps look at all entries then */
    for (int64_t p = begin; p < end; p += WARPS * WARP) {
        const row_of_b row = b.row(a, few ? p + g::lane() : p + g::lane() * WARPS + g::warp(), end);
        const int lanes = few ? WARP : lanes_for(row.length);
        if (lanes < WARP) { /* several rows at once, up to the last that has any */
            const int rows = WARP / lanes, held = WARP - __clz(__ballot_sync(ALL, row.length > 0));
            const int at = g::lane() % lanes, length = (int)row.length;
            for (int e = 0; e < held; e += SHORT * rows) {
                item of[SHORT];
                UNROLLED(u, SHORT) {
                    const int from = e + u * rows + g::lane() / lanes;
                    const int64_t q = __shfl_sync(ALL, row.begin, from % WARP) + at;
                    const bool inside = at < __shfl_sync(ALL, length, from % WARP) && from < WARP;
                    of[u] = b.item(q, inside);
                }
                UNROLLED(u, SHORT) visit(of[u]);
            }
            continue;
        }
        /* Pieces of own rows follow each other without a gap, so that EACH loads are always under
         * way; the longest rows come last, an equal share for each thread of the group. */
        const bool is_mine = !few || g::lane() % WARPS == g::warp();
        const bool is_shared = few && row.length > SHARED_ROW;
        unsigned own = __ballot_sync(ALL, is_mine && row.length && !is_shared);
        int64_t at = 0, left = 0; /* of the row at hand */
        while (own || left > 0) {
            item of[EACH];
            UNROLLED(u, EACH) {
                if (left <= 0 && own) {
                    const int e = __ffs(own) - 1;
                    at = __shfl_sync(ALL, row.begin, e), left = __shfl_sync(ALL, row.length, e);
                    own &= own - 1;
                }
                of[u] = b.item(at + g::lane(), g::lane() < left);
                at += WARP, left -= WARP;
            }
            UNROLLED(u, EACH) visit(of[u]);
        }
        for (unsigned rows = __ballot_sync(ALL, is_shared); rows; rows &= rows - 1) {
            const int e = __ffs(rows) - 1;
            const int64_t q = __shfl_sync(ALL, row.begin, e);
            const int64_t length = __shfl_sync(ALL, row.length, e);
            for (int64_t t = g::thread(); t < length; t += EACH * g::THREADS) {
                item of[EACH];
                UNROLLED(u, EACH)
                    of[u] = b.item(q + t + u * g::THREADS, t + u * g::THREADS < length);
                UNROLLED(u, EACH) visit(of[u]);
            }
        }
    }
}

#endif
