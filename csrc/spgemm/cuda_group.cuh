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

/* Where the row of B lies that entry p of A names; nothing behind the end. */
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

/* Calls visit(j) for the column of each product of row i of A B, in any order.
 *
 *     short rows of B     lanes 0-3: e0, 4-7: e1, 8-11: e2, ...     several entries of A at once
 *     others              a warp takes every WARPS-th entry of A, and all share the longest rows
 */
template <int WARPS, class Visit>
static __device__ __forceinline__ void for_columns(const csr_view &a, const csr_view &b, int64_t i,
                                                   Visit visit)
{
    typedef group<WARPS> g;
    enum { SHORT = 2, EACH = 4 }; /* loads of a lane that are under way together */
    int64_t begin;
    const int64_t end = row_range(a, i, &begin) + begin;
    for (int64_t p = begin; p < end; p += WARP) {
        const row_of_b row(a, b, p + g::lane(), end);
        const int lanes = WARPS == 1 ? lanes_for(row.length) : WARP;
        if (lanes < WARP) {
            const int rows = WARP / lanes, held = (int)(end - p < WARP ? end - p : WARP);
            const int at = g::lane() % lanes, length = (int)row.length;
            for (int e = 0; e < held; e += SHORT * rows) {
                int32_t j[SHORT];
#pragma unroll
                for (int u = 0; u < SHORT; u++) {
                    const int from = e + u * rows + g::lane() / lanes;
                    const int64_t q = __shfl_sync(ALL, row.begin, from % WARP) + at;
                    const bool inside = at < __shfl_sync(ALL, length, from % WARP) && from < WARP;
                    j[u] = inside ? __ldg(b.idx + q) : -1;
                }
#pragma unroll
                for (int u = 0; u < SHORT; u++)
                    if (uint32_t(j[u]) < uint32_t(b.cols)) visit(j[u]);
            }
            continue;
        }
        const bool is_mine = (p - begin + g::lane()) % WARPS == g::warp();
        unsigned rows = __ballot_sync(ALL, row.length > (is_mine ? 0 : SHARED_ROW));
        for (; rows; rows &= rows - 1) {
            const int e = __ffs(rows) - 1;
            const int64_t q = __shfl_sync(ALL, row.begin, e);
            const int64_t length = __shfl_sync(ALL, row.length, e);
            const bool together = length > SHARED_ROW;
            const int step = together ? g::THREADS : WARP;
            const int64_t own = together ? g::thread() : g::lane();
            for (int64_t t = 0; t < length; t += EACH * step) {
                int32_t j[EACH];
#pragma unroll
                for (int u = 0; u < EACH; u++) {
                    const int64_t at = t + u * step + own;
                    j[u] = at < length ? __ldg(b.idx + q + at) : -1;
                }
#pragma unroll
                for (int u = 0; u < EACH && t + u * step < length; u++)
                    if (uint32_t(j[u]) < uint32_t(b.cols)) visit(j[u]);
            }
        }
    }
}

/* ---- the products of a row, in order ---- */

/* CHUNK entries of A, and where their products lie in B:
 *
 *     entries of A      e0       e1    e2           e3
 *     rows of B         5 6 7    -     40 41        9
 *     product           0 1 2          3  4         5
 *     ends              3        3     5            6      product t belongs to the first
 *     origin            5              37           4      entry that ends behind it
 */
enum { CHUNK = 128 };
template <int WARPS, class A> struct chunk {
    int64_t ends[CHUNK], origin[CHUNK], totals[WARPS];
    A factor[CHUNK]; /* A's values */
};

/* Columns [low, low + width) of B's rows, if they rise; of others, and where width is 0, all. */
struct column_span {
    int32_t low, width;
};

/* The first entry of [begin, end) whose column is not below j. */
static __device__ __forceinline__ int64_t first_at(const csr_view &b, int64_t begin, int64_t end,
                                                   int64_t j)
{
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (__ldg(b.idx + middle) < j)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Fills the chunk from entry p on; returns how many products it has. The group meets before the
 * next call. */
template <int WARPS, class A>
static __device__ __forceinline__ int64_t fill_chunk(chunk<WARPS, A> *to, const csr_view &a,
                                                     const csr_view &b, const edge_view &val,
                                                     const column_span &span, int64_t p,
                                                     int64_t end)
{
    typedef group<WARPS> g;
    const bool holds = g::thread() < CHUNK;
    p = holds ? p + g::thread() : end;
    row_of_b own(a, b, p, end);
    if (p < end) to->factor[g::thread()] = edge_value<A>(val, edge_of(val, p), 0);
    if (span.width && own.length) {
        const int64_t behind = own.begin + own.length, above = int64_t(span.low) + span.width;
        own.begin = first_at(b, own.begin, behind, span.low);
        own.length = first_at(b, own.begin, behind, above) - own.begin;
    }
    const int64_t until = scanned<WARPS>(own.length, to->totals);
    if (holds) {
        to->ends[g::thread()] = until;
        to->origin[g::thread()] = own.begin - (until - own.length);
    }
    g::sync();
    return to->ends[CHUNK - 1];
}

/* Which entry of the chunk product t belongs to. */
template <int WARPS, class A>
static __device__ __forceinline__ int entry_of(const chunk<WARPS, A> *in, int64_t t)
{
    int e = 0;
#pragma unroll
    for (int step = CHUNK / 2; step; step /= 2) e += in->ends[e + step - 1] <= t ? step : 0;
    return e;
}

#endif
