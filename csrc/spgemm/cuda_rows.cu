/* The numeric phase on CUDA: C's values, by warps.
 *
 *     small rows     a thread each (cuda_small.cuh)
 *     entries of C   0 ......... | width ......... | 2 width ...     a warp each, whatever the rows
 *     rows           r0 | r1 |   r2     | r3 |  r4 ...
 *                    a warp computes the rows that begin in its part, and of rows that are longer
 *                    than a part, as r2, what lies in it
 *     window         what it computes at a time: a row's columns go into a table in shared memory
 *                    (cuda_table.cuh), as many as fit; the row's products are added to the table's
 *                    sums (cuda_products.cuh), which are then rounded and written
 *
 * Parts follow from C's entries alone, so that no list of rows is made before, and nobody waits for
 * another warp. The order of products is that of A's entries, and in a row of B that of its
 * entries. So every sum has its terms in this one order, and its bits are the same for any table,
 * window and run. */
#include "../cuda/search.cuh"
#include "cuda_kept.cuh"
#include "cuda_small.cuh"

enum {
    ROW_WARPS = 4,    /* of a block */
    RESIDENT = 8,     /* blocks that run at once, for their registers */
    WINDOW = 6 << 10, /* bytes of a table: those of so many blocks fit */
    HASHED = 384,     /* float sums that are hashed there */
    WAITING = 4       /* entries of C whose loads are under way together */
};

/* ---- windows ---- */

/* Narrows a row to the columns of entries [begin, begin + r->entries) of C, if they rise, as those
 * of a mask need not. */
static __device__ __forceinline__ void narrow_to(const csr_view &c, int64_t begin, row_shape *r)
{
    const int32_t low = __ldg(c.idx + begin), high = __ldg(c.idx + begin + r->entries - 1);
    r->rises = 0 <= low && low <= high && high < c.cols;
    r->low = r->rises ? low : 0;
    r->cols = r->rises ? int64_t(high) - low + 1 : c.cols;
}

/* Chooses the table of a window, in r; false where none fits, so that the window has to be cut.
 * Few entries are sorted. A dense table is found without a search, a ranked one with one read, but
 * both need memory for all columns between the first and the last. */
template <class A>
static __device__ __forceinline__ bool choose_table(spgemm_where wanted, row_shape *r)
{
    const int64_t dense = bytes_of<A>(*r, SPGEMM_IN_DENSE);
    const bool any = wanted == SPGEMM_AUTO, ranked = any && r->rises;
    r->where = SPGEMM_IN_HASH;
    if (wanted == SPGEMM_IN_SORTED ||
        (any && r->entries <= TINY && bytes_of<A>(*r, SPGEMM_IN_SORTED) < dense))
        r->where = SPGEMM_IN_SORTED;
    else if ((any || wanted == SPGEMM_IN_DENSE) && (dense <= WINDOW || (!any && r->rises)))
        r->where = SPGEMM_IN_DENSE;
    else if (ranked && bytes_of<A>(*r, SPGEMM_IN_RANKED) <= WINDOW)
        r->where = SPGEMM_IN_RANKED;
    return bytes_of<A>(*r, r->where) <= WINDOW;
}

/* The table of entries [begin, begin + r.entries) of C, all sums 0. Sorted keys have to rise, as
 * those of a mask need not: then they are sorted here. */
template <class A>
static __device__ __forceinline__ table<A> open_window(const csr_view &c, const row_shape &r,
                                                       int64_t begin, int byte)
{
    table<A> t;
    bool falls = false;
    t.lay_out(r, byte, (int)slots_of(r));
    empty_table<1>(t);
    if (r.where == SPGEMM_IN_DENSE) return t; /* which knows no columns */
    const int entries = (int)r.entries;
    for (int first = threadIdx.x % WARP; first < entries; first += WAITING * WARP) {
        int32_t columns[WAITING], before[WAITING];
        UNROLLED(u, WAITING) {
            const int at = first + u * WARP;
            columns[u] = at < entries ? __ldg(c.idx + begin + at) : -1;
            before[u] = at && at < entries && r.where != SPGEMM_IN_HASH
                            ? __ldg(c.idx + begin + at - 1)
                            : -1;
        }
        UNROLLED(u, WAITING) {
            const int at = first + u * WARP;
            const int32_t j = columns[u];
            const bool inside = uint32_t(j) < uint32_t(c.cols);
            if (at >= entries) break;
            if (r.where == SPGEMM_IN_SORTED) {
                t.keys()[at] = inside ? j : int32_t(NO_COLUMN);
                falls |= !inside || (at > 0 && j < before[u]);
            } else if (r.where == SPGEMM_IN_RANKED)
                t.enter_ranked(j, before[u], at);
            else if (inside)
                t.enter(j);
        }
    }
    const bool unsorted = __any_sync(ALL, falls);
    __syncwarp();
    if (unsorted) sort_keys<1>(t.keys(), t.slots);
    return t;
}

/* Writes the sums of entries [begin, begin + r.entries) of C. An entry of a ranked table is found
 * by its place; one whose column has no slot gets a 0. */
template <class A>
static __device__ __forceinline__ void write_window(const numeric_args &s, const table<A> &t,
                                                    const row_shape &r, int64_t begin)
{
    const int entries = (int)r.entries;
    const bool ranked = r.where == SPGEMM_IN_RANKED;
    for (int base = threadIdx.x % WARP; base < entries; base += WAITING * WARP) {
        int32_t columns[WAITING];
        UNROLLED(u, WAITING) {
            const int at = base + u * WARP;
            columns[u] = at < entries && !ranked ? __ldg(s.c.idx + begin + at) : -1;
        }
        UNROLLED(u, WAITING) {
            const int at = base + u * WARP;
            const int32_t j = columns[u];
            if (at >= entries) break;
            const int slot = ranked ? at : uint32_t(j) < uint32_t(s.c.cols) ? t.find(j) : -1;
            const A sum = slot < 0 ? A(0) : t.total(slot);
            if (s.plain_out)
                static_cast<A *>(s.out.data)[begin + at] = sum;
            else
                write(s.out, begin + at, sum);
        }
    }
    __syncwarp(); /* before the next window's table is laid out */
}

/* ---- rows ---- */

/* Shared memory of a warp: 32 entries of A that it has at hand, and the table of its window. */
template <class A> static constexpr __host__ __device__ int warp_bytes(void)
{
    return int(sizeof(chunk<A>)) + WINDOW;
}

/* Entries [begin, end) of C, which are of row i, window by window. A window for whose columns no
 * table has room is cut in halves until one has: hashing takes any window of few entries, a dense
 * table one of a single entry.
 *
 * A sum has at most one term for each entry of A where B's columns rise, and is put aside after
 * SPGEMM_TERMS of them; where they repeat, sums count their terms. */
template <class A>
static __device__ __forceinline__ void add_row(const numeric_args &s, int64_t i, int64_t begin,
                                               int64_t end, int byte)
{
    int64_t of_c, p;
    const bool repeats = __ldg(s.schedule) != 1;
    const int64_t entries = row_range(s.c, i, &of_c), own = row_range(s.a, i, &p);
    const int64_t each = repeats ? own : int64_t(SPGEMM_TERMS);
    row_shape r = {s.where, end - begin, 0, s.c.cols, repeats || own > each, repeats, false};
    for (int64_t at = begin; at < end; at += r.entries, r.entries *= 2) {
        if (r.entries > end - at) r.entries = end - at;
        for (;; r.entries = ceil_div(r.entries, 2)) {
            if (!s.masked) narrow_to(s.c, at, &r);
            if (choose_table<A>(s.where, &r) || r.entries == 1) break;
        }
        /* A whole row needs all of B's rows, which need not be searched then. */
        const bool some = r.rises && !repeats && r.entries < entries;
        const column_span span = {(int32_t)r.low, some ? (int32_t)r.cols : 0};
        table<A> t = open_window<A>(s.c, r, at, byte + (int)sizeof(chunk<A>));
        for (int64_t from = p; from < p + own; from += each) {
            for (int h = threadIdx.x % WARP; from > p && h < t.slots; h += WARP) t.put_aside(h);
            __syncwarp();
            const int64_t to = from + each < p + own ? from + each : p + own;
            add_products(s, &t, of_shared<chunk<A>>(byte), span, from, to);
        }
        write_window(s, t, r, at);
    }
}

/* A lane looks at a row each, so that those which others compute cost little. */
template <class A>
static __global__ void __launch_bounds__(ROW_WARPS *WARP, RESIDENT)
    numeric_rows(const numeric_args s, int width)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    /* Where each part reads all of a row's products, it is as long as a table allows. */
    if (width < HASHED && (s.masked || __ldg(s.schedule) != 1)) width = HASHED;
    const int64_t low = (int64_t(blockIdx.x) * ROW_WARPS + warp) * width;
    if (low >= s.c.nnz) return;
    const int64_t high = low + width < s.c.nnz ? low + width : s.c.nnz;
    bool ends = false; /* whether a row begins behind the part */
    for (int64_t base = row_of(s.c, low); base < s.c.rows && !ends; base += WARP) {
        int64_t begin = s.c.nnz, end = 0, p;
        const int64_t i = base + lane;
        if (i < s.c.rows) end = row_range(s.c, i, &begin), end += begin;
        ends = __any_sync(ALL, begin >= high);
        bool is_mine = begin < end;
        if (!ends && !__any_sync(ALL, is_mine)) { /* behind many empty rows */
            const int64_t full = row_of(s.c, __shfl_sync(ALL, begin, 0));
            base = full > base + WARP ? full - WARP : base;
            continue;
        }
        if (is_mine && s.merges)
            is_mine = !is_small(s.a, s.b, s.schedule, row_range(s.a, i, &p), end - begin);
        if (end - begin > width) begin = begin > low ? begin : low, end = end < high ? end : high;
        is_mine = is_mine && low <= begin && begin < end && begin < high;
        for (unsigned left = __ballot_sync(ALL, is_mine); left; left &= left - 1) {
            const int from = __ffs(left) - 1;
            const int64_t first = __shfl_sync(ALL, begin, from);
            add_row<A>(s, base + from, first, __shfl_sync(ALL, end, from), warp * warp_bytes<A>());
        }
    }
}

/* ---- the phase ---- */

/* Parts are as long as a table would have entries, were C's columns evenly spread, with a quarter
 * of room for those that are not; longer where rows are short, which are not cut then; or shorter,
 * so that each warp that the card holds has some parts, since they take different times.
 *
 *     columns apart by        1              9              100
 *     entries of a part       1,152, dense   768, ranked    384, hashed    (float32) */
void fmm_spgemm_other_rows(const fmm_exec *exec, const numeric_args &s)
{
    enum { LEAST = 64, MOST = 1152, EACH = 4 };
    const int64_t warps = int64_t(fmm_cuda_processors(exec->index)) * RESIDENT * ROW_WARPS;
    const int64_t sum = s.out.dtype == FMM_F64 ? 8 : 4, apart = s.c.rows * s.c.cols / s.c.nnz;
    const int64_t even = s.c.nnz / (EACH * warps), fit = WINDOW * 3 / 4 / (sum + apart / 4);
    const bool is_short = s.c.nnz / s.c.rows < HASHED / 2;
    const int64_t most = smaller(even, is_short ? MOST : fit < HASHED ? HASHED * 4 / sum : fit);
    const int width = most < LEAST ? LEAST : (int)most;
    const unsigned blocks = (unsigned)ceil_div(s.c.nnz, width * ROW_WARPS);
    if (s.out.dtype == FMM_F64)
        numeric_rows<double>
            <<<blocks, ROW_WARPS * WARP, ROW_WARPS * warp_bytes<double>(), stream_of(exec)>>>(
                s, width);
    else
        numeric_rows<float>
            <<<blocks, ROW_WARPS * WARP, ROW_WARPS * warp_bytes<float>(), stream_of(exec)>>>(s,
                                                                                             width);
}

/* Where a plan knows where products go, nothing is searched; 1 says that all rows are small. */
extern "C" fmm_status fmm_spgemm_rows_cuda(const fmm_exec *exec, const fmm_call *call,
                                           spgemm_where where)
{
    int before;
    const fmm_spgemm *of = fmm_spgemm_of(call);
    const numeric_args s = numeric_of(call, where);
    const bool plans = where == SPGEMM_AUTO && !s.masked && of->products;
    TRY(cuda_enter("spgemm", exec, &before));
    if (!plans || !fmm_spgemm_add_kept(exec, s, of->products, of->kept)) {
        if (s.merges) fmm_spgemm_small(exec, s, NULL);
        if (!plans || of->kept != 1) fmm_spgemm_other_rows(exec, s);
    }
    return cuda_leave("spgemm", exec, before);
}
