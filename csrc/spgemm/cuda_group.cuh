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

/* Gives every thread what the group's first one has. A block has to agree in this way on what it
 * read of a matrix before that decides where it meets: another stream may write the matrix
 * meanwhile, and warps that read different numbers would wait for each other forever. The lanes of
 * a warp agree without, since one load of one address gives all of them the same. */
template <int WARPS, class T> static __device__ __forceinline__ T agreed(T v)
{
    if (WARPS == 1) return v;
    __shared__ T first;
    group<WARPS>::sync(); /* all have read what it was before */
    if (!group<WARPS>::thread()) first = v;
    group<WARPS>::sync();
    return first;
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

static __device__ __forceinline__ unsigned sum_of_lanes(unsigned n)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL, n);
#else
    for (int d = WARP / 2; d; d /= 2) n += __shfl_xor_sync(ALL, n, d);
    return n;
#endif
}

static __device__ __forceinline__ int max_of_lanes(int n)
{
    for (int d = WARP / 2; d; d /= 2) n = max(n, __shfl_xor_sync(ALL, n, d));
    return n;
}

/* Products of a warp's entries of A, one of each lane, in their order. Entries that have products
 * stand next to each other:
 *
 *     entries of A      e0       e1    e2           e3
 *     rows of B         5 6 7    -     40 41        9
 *     product           0 1 2          3  4         5
 *     ends              3              5            6      product t belongs to the first
 *     origin            5              37           4      entry that ends behind it
 */
struct numbers {
    int64_t ends[WARP], origin[WARP];
};

/* Numbers the products of all lanes' rows of B; returns how many there are. The warp has met
 * before, and meets here when all is written. Entries without products are left out, so that no two
 * end at one place. */
static __device__ __forceinline__ int64_t number_products(numbers *to, const row_of_b &row)
{
    const unsigned some = __ballot_sync(ALL, row.length > 0);
    const int64_t until = scanned<1, int64_t>(row.length, NULL);
    const int at = __popc(some & lanes_below());
    if (row.length) to->ends[at] = until, to->origin[at] = row.begin - (until - row.length);
    __syncwarp();
    return __shfl_sync(ALL, until, WARP - 1);
}

/* Which entry product t + lane belongs to; `end` is that of entry number `lane`.
 *
 *     ends - t       -2    1     4          entries 0, 1, 2; one has ended before t
 *     bits           01001000...            an entry ends before product t + 1, and t + 4
 *     lane           0  1  2  3  4
 *     entry          1  2  2  2  3          those ended before t, and bits up to the lane's own */
template <class I> static __device__ __forceinline__ int entry_of_lane(I end, I t)
{
    const I left = end - t;
    const int before = __popc(__ballot_sync(ALL, left <= 0));
    const unsigned ends = or_of_lanes(left > 0 && left < WARP ? 1u << left : 0);
    return before + __popc(ends & ((2u << threadIdx.x % WARP) - 1));
}

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
 * none. Each warp numbers the products of 32 entries of A; EACH of a lane are loaded together.
 *
 *     few entries     all warps number the same, and take every WARPS-th part of the products
 *     others          a warp takes every WARPS-th entry */
template <int WARPS, class Source, class Visit>
static __device__ __forceinline__ void for_products(const csr_view &a, const Source &b, int64_t i,
                                                    numbers *room, Visit visit)
{
    typedef group<WARPS> g;
    enum { EACH = 4, PART = EACH * WARP };
    int64_t begin;
    const int64_t end = row_range(a, i, &begin) + begin;
    const bool few = WARPS > 1 && end - begin <= WARP;
    const int first = few ? g::warp() * PART : 0, step = few ? WARPS * PART : PART;
    for (int64_t p = begin; p < end; p += WARPS * WARP) {
        const row_of_b row = b.row(a, few ? p + g::lane() : p + g::lane() * WARPS + g::warp(), end);
        const int64_t products = number_products(room, row);
        const int entries = __popc(__ballot_sync(ALL, row.length > 0));
        const int64_t own_end = g::lane() < entries ? room->ends[g::lane()] : INT64_MAX;
        for (int64_t t = first; t < products; t += step) {
            decltype(b.item(0, false)) of[EACH];
            UNROLLED(u, EACH) {
                const int64_t now = t + u * WARP;
                const int e = entry_of_lane(own_end, now);
                const bool inside = now + g::lane() < products;
                of[u] = b.item(inside ? room->origin[e] + now + g::lane() : 0, inside);
            }
            UNROLLED(u, EACH) visit(of[u]);
        }
        __syncwarp(); /* before the next products are numbered */
    }
}

#endif
