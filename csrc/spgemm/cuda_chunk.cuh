/* A chunk: the entries of A that a warp has at hand, one in each lane, and the numbers of their
 * products, whichever entries they belong to. They stand in the warp's shared memory. */
#ifndef FMM_SPGEMM_CUDA_CHUNK_CUH
#define FMM_SPGEMM_CUDA_CHUNK_CUH

#include "cuda_table.cuh"

/* ---- the entry of a lane ---- */

/* Columns [low, low + width) of B's rows, if they rise; of others, and where width is 0, all. */
struct column_span {
    int32_t low, width;
};

/* Cuts a row of B, whose columns rise, to a span. Both ends are searched side by side, since each
 * step waits for a load. */
static __device__ __forceinline__ void cut_to(const csr_view &b, const column_span &span,
                                              row_of_b *row)
{
    const int32_t *const columns = b.idx + row->begin;
    const int64_t above = int64_t(span.low) + span.width;
    int low = 0, low_end = (int)row->length, high = 0, high_end = low_end;
    while (low < low_end || high < high_end) {
        const int middle = low + (low_end - low) / 2, other = high + (high_end - high) / 2;
        const int32_t x = low < low_end ? __ldg(columns + middle) : 0;
        const int32_t y = high < high_end ? __ldg(columns + other) : 0;
        if (low < low_end) x < span.low ? low = middle + 1 : low_end = middle;
        if (high < high_end) y < above ? high = other + 1 : high_end = other;
    }
    row->begin += low, row->length = high > low ? high - low : 0;
}

/* Entry p of A: its value, and the part of its row of B that lies in a span. */
template <class A> struct entry_at_hand {
    row_of_b row;
    A factor;
    __device__ __forceinline__ entry_at_hand(const csr_view &a, const csr_view &b,
                                             const edge_view &val, const column_span &span,
                                             int64_t p, int64_t end)
        : row(a, b, p, end), factor(p < end ? edge_value<A>(val, edge_of(val, p), 0) : A(0))
    {
        /* Rows of columns that rise are no longer than 2^31. */
        if (span.width && row.length && row.length <= INT32_MAX / 2) cut_to(b, span, &row);
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

/* ---- numbers ---- */

/* Entries that have products stand next to each other:
 *
 *     entries of A      e0       e1    e2           e3
 *     rows of B         5 6 7    -     40 41        9
 *     product           0 1 2          3  4         5
 *     ends              3              5            6      product t belongs to the first
 *     origin            5              37           4      entry that ends behind it
 */
template <class A> struct numbers {
    int64_t ends[WARP], origin[WARP];
    A factor[WARP]; /* A's values */
};

/* Numbers the products of all lanes' entries; returns how many there are. The warp has met before,
 * and meets here when all is written. Entries without products are left out, so that no two end at
 * one place. */
template <class A>
static __device__ __forceinline__ int64_t number_products(numbers<A> *to,
                                                          const entry_at_hand<A> &own)
{
    const unsigned some = __ballot_sync(ALL, own.row.length > 0);
    const int64_t until = scanned<1, int64_t>(own.row.length, NULL);
    if (own.row.length) {
        const int at = __popc(some & lanes_below());
        to->ends[at] = until;
        to->origin[at] = own.row.begin - (until - own.row.length);
        to->factor[at] = own.factor;
    }
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

#endif
