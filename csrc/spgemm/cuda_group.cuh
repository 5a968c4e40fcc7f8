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

/* Calls visit(j) for the column of each product of row i of A B, in any order. A warp takes every
 * WARPS-th entry of A, 32 of them at once.
 *
 *     short rows of B     lanes 0-3: e0, 4-7: e1, 8-11: e2, ...     several entries of A at once
 *     others              in pieces of 32 columns, of which EACH are loaded together
 *     the longest         all warps share them, if A's row has so few entries that each warp looks
 *                         at all of them */
template <int WARPS, class Visit>
static __device__ __forceinline__ void for_columns(const csr_view &a, const csr_view &b, int64_t i,
                                                   Visit visit)
{
    typedef group<WARPS> g;
    enum { SHORT = 2, EACH = 4 }; /* loads of a lane that are under way together */
    int64_t begin;
    const int64_t end = row_range(a, i, &begin) + begin;
    const bool few = WARPS > 1 && end - begin <= WARP; /* all warps look at all entries then */
    for (int64_t p = begin; p < end; p += WARPS * WARP) {
        const row_of_b row(a, b, few ? p + g::lane() : p + g::lane() * WARPS + g::warp(), end);
        const int lanes = few ? WARP : lanes_for(row.length);
        if (lanes < WARP) {
            const int rows = WARP / lanes, held = WARP - __clz(__ballot_sync(ALL, row.length > 0));
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
        const bool is_mine = !few || g::lane() % WARPS == g::warp();
        const bool is_shared = few && row.length > SHARED_ROW;
        unsigned own = __ballot_sync(ALL, is_mine && row.length && !is_shared);
        int64_t at = 0, left = 0; /* of the row at hand */
        while (own || left > 0) {
            int32_t j[EACH];
#pragma unroll
            for (int u = 0; u < EACH; u++) {
                if (left <= 0 && own) {
                    const int e = __ffs(own) - 1;
                    at = __shfl_sync(ALL, row.begin, e), left = __shfl_sync(ALL, row.length, e);
                    own &= own - 1;
                }
                j[u] = g::lane() < left ? __ldg(b.idx + at + g::lane()) : -1;
                at += WARP, left -= WARP;
            }
#pragma unroll
            for (int u = 0; u < EACH; u++)
                if (uint32_t(j[u]) < uint32_t(b.cols)) visit(j[u]);
        }
        for (unsigned rows = __ballot_sync(ALL, is_shared); rows; rows &= rows - 1) {
            const int e = __ffs(rows) - 1;
            const int64_t q = __shfl_sync(ALL, row.begin, e);
            const int64_t length = __shfl_sync(ALL, row.length, e);
            for (int64_t t = g::thread(); t < length; t += EACH * g::THREADS) {
                int32_t j[EACH];
#pragma unroll
                for (int u = 0; u < EACH; u++)
                    j[u] = t + u * g::THREADS < length ? __ldg(b.idx + q + t + u * g::THREADS) : -1;
#pragma unroll
                for (int u = 0; u < EACH; u++)
                    if (uint32_t(j[u]) < uint32_t(b.cols)) visit(j[u]);
            }
        }
    }
}

/* ---- the products of a row, in order ---- */

/* Entries of A that a warp has at hand, of which those that have products stand next to each other:
 *
 *     entries of A      e0       e1    e2           e3
 *     rows of B         5 6 7    -     40 41        9
 *     product           0 1 2          3  4         5
 *     ends              3              5            6      product t belongs to the first
 *     origin            5              37           4      entry that ends behind it
 */
template <class A> struct chunk {
    int64_t ends[WARP], origin[WARP];
    A factor[WARP]; /* A's values */
};
/* How many entries of a chunk have products, and how many products they have. */
struct chunk_size {
    int entries;
    int64_t products;
};

/* Columns [low, low + width) of B's rows, if they rise; of others, and where width is 0, all. */
struct column_span {
    int32_t low, width;
};

/* Cuts a row of B, whose columns rise, to a span. Both ends are searched side by side, since each
 * step waits for a load. */
static __device__ __forceinline__ void cut_to(const csr_view &b, const column_span &span,
                                              row_of_b *row)
{
    const int64_t above = int64_t(span.low) + span.width;
    int64_t low = row->begin, low_end = low + row->length, high = low, high_end = low_end;
    while (low < low_end || high < high_end) {
        const int64_t middle = low + (low_end - low) / 2, other = high + (high_end - high) / 2;
        const int32_t x = low < low_end ? __ldg(b.idx + middle) : 0;
        const int32_t y = high < high_end ? __ldg(b.idx + other) : 0;
        if (low < low_end) x < span.low ? low = middle + 1 : low_end = middle;
        if (high < high_end) y < above ? high = other + 1 : high_end = other;
    }
    row->begin = low, row->length = high > low ? high - low : 0;
}

/* Fills the chunk from entry p of A on, an entry a lane. The warp has met before, and meets here
 * when all is written. Entries without products are left out, so that no two end at one place. */
template <class A>
static __device__ __forceinline__ chunk_size fill_chunk(chunk<A> *to, const csr_view &a,
                                                        const csr_view &b, const edge_view &val,
                                                        const column_span &span, int64_t p,
                                                        int64_t end)
{
    p += threadIdx.x % WARP;
    row_of_b own(a, b, p, end);
    const A factor = p < end ? edge_value<A>(val, edge_of(val, p), 0) : A(0);
    if (span.width && own.length) cut_to(b, span, &own);
    const unsigned some = __ballot_sync(ALL, own.length > 0);
    const int64_t until = scanned<1, int64_t>(own.length, NULL);
    if (own.length) {
        const int at = __popc(some & lanes_below());
        to->ends[at] = until;
        to->origin[at] = own.begin - (until - own.length);
        to->factor[at] = factor;
    }
    __syncwarp();
    return chunk_size{__popc(some), __shfl_sync(ALL, until, WARP - 1)};
}

/* The bits that any lane has. */
static __device__ __forceinline__ unsigned or_of_lanes(unsigned bits)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(ALL, bits);
#else
    for (int d = WARP / 2; d; d /= 2) bits |= __shfl_xor_sync(ALL, bits, d);
    return bits;
#endif
}

/* Which entry of the chunk product t + lane belongs to; `end` is that of entry number `lane`.
 *
 *     ends - t       -2    1     4          entries 0, 1, 2; one has ended before t
 *     bits           01001000...            an entry ends before product t + 1, and t + 4
 *     lane           0  1  2  3  4
 *     entry          1  2  2  2  3          those ended before t, and bits up to the lane's own */
static __device__ __forceinline__ int entry_of_lane(int64_t end, int64_t t)
{
    const int64_t left = end - t;
    const int before = __popc(__ballot_sync(ALL, left <= 0));
    const unsigned ends = or_of_lanes(left > 0 && left < WARP ? 1u << left : 0);
    return before + __popc(ends & ((2u << threadIdx.x % WARP) - 1));
}

/* What a block has beside its row's memory and what its threads tell each other, at most. */
struct largest_head {
    char bytes[4 << 10];
};

#endif
