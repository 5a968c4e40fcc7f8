/* How a row of C is cut, so that many warps can share it and its sums fit into shared memory.
 *
 *     row i of A     e0 ... e127 | e128 ... e255 | ...      parts, a warp of a team each
 *     row i of C     c0 ... c767 | c768 ...                 windows, a team each
 *
 * Parts follow from the 512-term rule alone, of which SPGEMM_TERMS is a quarter: sums of parts are
 * added in order. Windows follow from what a table takes (cuda_table.cuh); they do not change any
 * sum. */
#ifndef FMM_SPGEMM_CUDA_WINDOWS_CUH
#define FMM_SPGEMM_CUDA_WINDOWS_CUH

#include "cuda_products.cuh"
#include "cuda_small.cuh"

/* Narrows a row to the columns of entries [begin, begin + r->entries) of C, if they rise. */
static __device__ __forceinline__ void narrow_to(const csr_view &c, int64_t begin, row_shape *r)
{
    const int32_t low = __ldg(c.idx + begin), high = __ldg(c.idx + begin + r->entries - 1);
    r->rises = 0 <= low && low <= high && high < c.cols;
    r->low = r->rises ? low : 0;
    r->cols = r->rises ? int64_t(high) - low + 1 : c.cols;
}

/* Parts of row i of A: of SPGEMM_TERMS entries each. A sum has at most one term for each entry of A
 * where B's columns rise; else nobody knows, and the row is one part, whose sums count terms.
 *
 * A team has a warp for each part, if the block has so many. */
struct row_parts {
    int64_t begin, entries, each;
    int members;
};
static __device__ __forceinline__ row_parts parts_of(const numeric_args &s, int64_t i,
                                                     bool in_teams)
{
    row_parts p = {};
    p.entries = row_range(s.a, i, &p.begin), p.members = 1;
    p.each = __ldg(s.schedule) == 1 ? SPGEMM_TERMS : p.entries;
    while (in_teams && p.members < WARPS && p.members * p.each < p.entries) p.members *= 2;
    return p;
}

/* C's columns rise unless they are a mask's: then the first and the last say where its entries are.
 * Sums that are put aside have room of their own. */
static __device__ __forceinline__ row_shape shape_of(const numeric_args &s, int64_t i,
                                                     const row_parts &parts, int64_t *begin)
{
    const int64_t entries = row_range(s.c, i, begin);
    const bool repeats = __ldg(s.schedule) != 1;
    const bool aside = repeats || parts.entries > parts.each;
    row_shape r = {s.where, entries, 0, s.c.cols, aside, repeats, false};
    if (entries && !s.masked) narrow_to(s.c, *begin, &r);
    return r;
}

/* Chooses the table of a window, in r; false where none fits, so that the window has to be cut. A
 * dense table is found without a search, a ranked one with one read, but both need memory for all
 * columns between the first and the last. */
template <class A>
static __device__ __forceinline__ bool choose_table(spgemm_where wanted, row_shape *r)
{
    const bool any = wanted == SPGEMM_AUTO, fits = bytes_of<A>(*r, SPGEMM_IN_DENSE) <= ROOM;
    r->where = SPGEMM_IN_HASH;
    if (wanted == SPGEMM_IN_SORTED)
        r->where = SPGEMM_IN_SORTED;
    else if (any ? fits : wanted == SPGEMM_IN_DENSE && (fits || r->rises))
        r->where = SPGEMM_IN_DENSE;
    else if (any && r->rises && bytes_of<A>(*r, SPGEMM_IN_RANKED) <= ROOM)
        r->where = SPGEMM_IN_RANKED;
    return bytes_of<A>(*r, r->where) <= ROOM;
}

/* How many of a row's entries a window has: as many as fit into a table that `auto` would choose,
 * were the columns evenly spread, with a quarter of room for those that are not; at least as many
 * as can be hashed, which is always possible; and about the same number in each window.
 *
 *     columns apart by            1              9              100
 *     entries of a window         1,152, dense   768, ranked    384, hashed    (float32)
 *
 * Their number is a multiple of `least`: of a block's teams, which compute as many at once. */
template <class A>
static __device__ __forceinline__ int64_t window_entries(const row_shape &r, int64_t least)
{
    const bool dense = r.where == SPGEMM_AUTO || r.where == SPGEMM_IN_DENSE;
    const int64_t hashed = ROOM / (2 * slot_bytes<A>(SPGEMM_IN_HASH, r.is_long, r.counted));
    const int slot = slot_bytes<A>(SPGEMM_IN_DENSE, r.is_long, r.counted);
    int64_t each = hashed;
    if (dense && r.cols * slot <= ROOM)
        each = r.entries;
    else if (dense && r.rises) {
        const unsigned apart = unsigned(r.cols) / unsigned(r.entries);
        const int64_t bytes = r.where == SPGEMM_AUTO ? slot + apart / 4 : int64_t(slot) * apart;
        const int64_t even = bytes < ROOM ? ROOM * 3 / 4 / int(bytes) : 0;
        if (even > each || r.where == SPGEMM_IN_DENSE) each = even > 0 ? even : 1;
    }
    if (each >= r.entries && least <= 1) return r.entries;
    return ceil_div(r.entries, ceil_div(ceil_div(r.entries, each), least) * least);
}

/* The least number of windows: a block should not have idle warps, unless the windows were tiny, or
 * cannot read their own part of B's rows alone. */
static __device__ __forceinline__ int64_t least_windows(const numeric_args &s, int64_t entries,
                                                        int members)
{
    enum { FEWEST = 64 }; /* entries of C that are worth a window */
    return members == 1 || s.masked ? 1 : clamp(entries / FEWEST, 1, WARPS / members);
}

#endif
