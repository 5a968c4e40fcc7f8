/* Windows of C's entries, each of which a warp computes where a plan keeps its products
 * (cuda_kept.cu).
 *
 *     entries of C   0 ......... | width ......... | 2 width ...     whatever rows they are of
 *     A              the entries of these rows, in order
 *     B              of each of them the products that fall into the window: its columns of C are
 *                    from one to another, and so is this part of B's row, since columns rise
 *
 * So all windows are about as much work, long rows are shared and short ones taken together. */
#ifndef FMM_SPGEMM_CUDA_ENTRIES_CUH
#define FMM_SPGEMM_CUDA_ENTRIES_CUH

#include "../cuda/search.cuh"
#include "cuda_products.cuh"

enum { ENTRY_WARPS = 4 }; /* of a block */

/* The width of windows follows from the number of C's entries: the longer they are, the longer are
 * the parts of B's rows, but a card wants some windows for each warp that it holds, and more where
 * rows are uneven. */
static inline int width_for(int64_t entries)
{
    return entries <= 1 << 20 ? 64 : entries <= 1 << 26 ? 256 : 512;
}

/* The row of entry p, which a warp looks for: each step asks in 32 places at once which rows end
 * before it, where bisection would take five steps that wait for each other. */
static __device__ __forceinline__ int64_t row_of_warp(const csr_view &a, int64_t p)
{
    int64_t low = 0;
    for (int64_t left = a.rows - 1; left > 0;) {
        const int64_t step = ceil_div(left, WARP), at = threadIdx.x % WARP * step;
        const bool before = at < left && __ldg(a.ptr + 1 + low + at) <= p;
        const int64_t passed = __popc(__ballot_sync(ALL, before));
        if (!passed) break;
        low += (passed - 1) * step + 1, left -= (passed - 1) * step + 1;
        if (left > step - 1) left = step - 1;
    }
    return low;
}

/* A window's entries of C [low, high), their rows [first, last], and the entries of A in these. */
struct window_rows {
    int64_t low, high, first, last, begin, end;
    __device__ __forceinline__ window_rows(const csr_view &a, const csr_view &c, int64_t w,
                                           int width)
        : low(w * width), high(low + width < c.nnz ? low + width : c.nnz)
    {
        first = row_of_warp(c, low), last = row_of_warp(c, high - 1);
        end = row_range(a, last, &begin) + begin;
        row_range(a, first, &begin);
    }
    /* The row of entry p of A. */
    __device__ __forceinline__ int64_t row(const csr_view &a, int64_t p) const
    {
        return first + first_at_least(a.ptr + first + 1, 1, last - first, p + 1);
    }
    /* Row i's entries of C in the window: from *from on. */
    __device__ __forceinline__ int entries(const csr_view &c, int64_t i, int64_t *from) const
    {
        const int64_t until = row_range(c, i, from) + *from, stop = until < high ? until : high;
        if (*from < low) *from = low;
        return stop > *from ? int(stop - *from) : 0;
    }
    /* The products of entry p of A, in row i, that fall into the window. */
    __device__ __forceinline__ row_of_b products(const csr_view &a, const csr_view &b,
                                                 const csr_view &c, int64_t p, int64_t i) const
    {
        int64_t from, all;
        const int64_t length = row_range(c, i, &all);
        const int here = entries(c, i, &from);
        row_of_b row(a, b, p, here ? end : 0);
        if (!row.length || here == length) return row;
        const int32_t least = __ldg(c.idx + from), most = __ldg(c.idx + from + here - 1);
        cut_to(b, column_span{least, int32_t(unsigned(most) - unsigned(least) + 1)}, &row);
        return row;
    }
};

/* The value of entry p. Plain ones are of type A, in the order of entries. */
template <class A, bool PLAIN>
static __device__ __forceinline__ A value_of(const edge_view &v, int64_t p)
{
    return PLAIN ? __ldg(static_cast<const A *>(v.data) + p) : edge_value<A>(v, edge_of(v, p), 0);
}

/* A warp's sums, and what was put aside of them. */
template <class A> struct entry_sums {
    A *sums, *aside;
    int width;

    /* Adds a product of each lane of a mask, turn after turn; -1 is none. */
    __device__ __forceinline__ void add(int slot, int turn, A x, A y)
    {
        for (int now = 0; __any_sync(ALL, turn >= now); now++) {
            if (turn == now) sums[slot] = multiply_add(x, y, sums[slot]);
            __syncwarp();
        }
    }
    __device__ __forceinline__ void put_aside(void)
    {
        for (int h = threadIdx.x % WARP; h < width; h += WARP) aside[h] += sums[h], sums[h] = A(0);
        __syncwarp();
    }
};

#endif
