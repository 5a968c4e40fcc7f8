/* The numeric phase on CUDA: C's values, by warps.
 *
 *     row i of C     its entries are cut into windows, of which a warp computes one at a time
 *     window         its columns go into a table in shared memory (cuda_table.cuh)
 *     row i of A     its products are added to the table's sums (cuda_products.cuh)
 *     window         sums are rounded and written
 *
 *     small rows     a thread each (cuda_small.cuh)
 *
 * Warps wait for no other warp. A long row has many windows, so that many warps share it, and each
 * finds its own columns in B's rows by bisection. Rows with the most windows come first.
 *
 * The order of products is that of A's entries, and in a row of B that of its entries. So every sum
 * has its terms in this one order, and its bits are the same for any table, window and run. */
#include "cuda_kept.cuh"
#include "cuda_small.cuh"

enum {
    WINDOW = 6 << 10,   /* bytes of a table: four blocks run at once for their registers, and fit */
    ROWS_TOGETHER = 32, /* rows of one window that a warp takes at once, at most */
    WAITING = 4         /* entries of C whose loads are under way together */
};

/* ---- rows ---- */

/* Narrows a row to the columns of entries [begin, begin + r->entries) of C, if they rise. */
static __device__ __forceinline__ void narrow_to(const csr_view &c, int64_t begin, row_shape *r)
{
    const int32_t low = __ldg(c.idx + begin), high = __ldg(c.idx + begin + r->entries - 1);
    r->rises = 0 <= low && low <= high && high < c.cols;
    r->low = r->rises ? low : 0;
    r->cols = r->rises ? int64_t(high) - low + 1 : c.cols;
}

/* A sum has at most one term for each entry of A where B's columns rise; else nobody knows. C's
 * columns rise unless they are a mask's: then the first and the last say where its entries are. */
static __device__ __forceinline__ row_shape shape_of(const numeric_args &s, int64_t i,
                                                     int64_t *begin)
{
    int64_t p;
    const int64_t entries = row_range(s.c, i, begin);
    const bool repeats = __ldg(s.schedule) != 1;
    const bool is_long = row_range(s.a, i, &p) > SPGEMM_TERMS;
    row_shape r = {s.where, entries, 0, s.c.cols, repeats || is_long, repeats, false};
    if (entries && !s.masked) narrow_to(s.c, *begin, &r);
    return r;
}

/* Small rows are merged, so that C has all columns and they rise, as a mask's need not. */
static __host__ __device__ __forceinline__ bool has_small_rows(const numeric_args &s)
{
    return !s.masked && (s.where == SPGEMM_AUTO || s.where == SPGEMM_IN_SORTED);
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

/* How many of a row's entries a window has: as many as fit into a table that `auto` would choose,
 * were the columns evenly spread, with a quarter of room for those that are not; at least as many
 * as can be hashed, which is always possible; and about the same number in each window.
 *
 *     columns apart by            1              9              100
 *     entries of a window         1,152, dense   768, ranked    384, hashed    (float32)
 *
 * Windows of a long row are walked through by a warp each, so a row has `least` windows at least.
 */
template <class A>
static __device__ __forceinline__ int64_t window_entries(const row_shape &r, int64_t least)
{
    const bool dense = r.where == SPGEMM_AUTO || r.where == SPGEMM_IN_DENSE;
    const int64_t hashed = WINDOW / (2 * slot_bytes<A>(SPGEMM_IN_HASH, r.is_long, r.counted));
    const int slot = slot_bytes<A>(SPGEMM_IN_DENSE, r.is_long, r.counted);
    int64_t each = hashed;
    if (dense && r.cols * slot <= WINDOW)
        each = r.entries;
    else if (dense && r.rises) {
        const unsigned apart = unsigned(r.cols) / unsigned(r.entries);
        const int64_t bytes = r.where == SPGEMM_AUTO ? slot + apart / 4 : int64_t(slot) * apart;
        const int64_t even = bytes < WINDOW ? WINDOW * 3 / 4 / int(bytes) : 0;
        if (even > each || r.where == SPGEMM_IN_DENSE) each = even > 0 ? even : 1;
    }
    if (each >= r.entries && least <= 1) return r.entries;
    const int64_t windows = ceil_div(r.entries, each);
    return ceil_div(r.entries, windows > least ? windows : least);
}

/* Stripes of a row are computed side by side; stripe s has windows s, s + stripes, ... A row's
 * class says how many it has, so that a list of rows for each class is all that has to be kept:
 *
 *     class      3               2               1               0
 *     windows    17 and more     5 to 16         2 to 4          1
 *     stripes    64              16              4               1
 *     tickets    first    --->                            --->   last, several rows each
 *
 * A stripe without a window ends at once. The longest rows come first, since their stripes run
 * longest. */
static __host__ __device__ __forceinline__ int stripes_of(int k) { return 1 << 2 * k; }

/* The least number of windows: a row of A that is much longer than others would be the last to end.
 * Where windows cannot read their own part of B's rows alone, more of them would not help. */
static __device__ __forceinline__ int64_t least_windows(const numeric_args &s, int64_t entries,
                                                        int64_t i)
{
    enum { FEWEST = 64 }; /* entries of C that are worth a window */
    int64_t begin;
    const float average = float(s.a.nnz) / float(s.a.rows);
    const int longer = (int)(float(row_range(s.a, i, &begin)) / (2 * average));
    const int64_t most = clamp(entries / FEWEST, 1, stripes_of(LARGEST));
    return s.masked || __ldg(s.schedule) != 1 ? 1 : clamp(longer, 1, most);
}

template <class A> struct class_of_row {
    numeric_args s;
    __device__ int operator()(int64_t i) const
    {
        int64_t begin;
        const row_shape r = shape_of(s, i, &begin);
        if (!r.entries) return -1;
        const int64_t own = row_range(s.a, i, &begin);
        if (has_small_rows(s) && is_small(s.a, s.b, s.schedule, own, r.entries)) return -1;
        const int64_t windows =
            ceil_div(r.entries, window_entries<A>(r, least_windows(s, r.entries, i)));
        return windows <= 1 ? 0 : windows <= stripes_of(1) ? 1 : windows <= stripes_of(2) ? 2 : 3;
    }
};

/* Calls work(row, stripe, stripes) for what this warp takes, a ticket at a time. */
template <class Work>
static __device__ __forceinline__ void for_stripes(const row_work &w, Work work)
{
    int64_t stripes = 0;
    for (int k = LARGEST; k > 0; k--) stripes += int64_t(w.lists->counts[k]) * stripes_of(k);
    const int64_t rows = (int64_t)w.lists->counts[0], warps = int64_t(gridDim.x) * (BLOCK / WARP);
    const int64_t step = clamp(rows / (8 * warps), 1, ROWS_TOGETHER);
    const int64_t tickets = stripes + ceil_div(rows, step);
    for (;;) {
        counter taken = 0;
        if (threadIdx.x % WARP == 0) taken = atomicAdd(w.lists->tickets, (counter)1);
        int64_t at = (int64_t)__shfl_sync(ALL, taken, 0), count = 1;
        if (at >= tickets) return;
        int k = at < stripes ? LARGEST : 0;
        if (k)
            for (int64_t here; at >= (here = int64_t(w.lists->counts[k]) * stripes_of(k)); k--)
                at -= here;
        else
            at = (at - stripes) * step, count = rows - at < step ? rows - at : step;
        for (const int64_t behind = at + count; at < behind; at++)
            work(int64_t(*w.place(k, at >> 2 * k)), int(at & (stripes_of(k) - 1)), stripes_of(k));
    }
}

/* ---- windows ---- */

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
    if (r.where == SPGEMM_IN_DENSE) return t;
    const int entries = (int)r.entries;
    for (int first = threadIdx.x % WARP; first < entries; first += WAITING * WARP) {
        int32_t columns[WAITING], before[WAITING];
#pragma unroll
        for (int u = 0; u < WAITING; u++) {
            const int at = first + u * WARP;
            columns[u] = at < entries ? __ldg(c.idx + begin + at) : -1;
            before[u] = at && at < entries && r.where != SPGEMM_IN_HASH
                            ? __ldg(c.idx + begin + at - 1)
                            : -1;
        }
#pragma unroll
        for (int u = 0; u < WAITING; u++) {
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

/* Writes the sums. An entry of a ranked table is found by its place; one whose column has no slot
 * gets a 0. */
template <class A>
static __device__ __forceinline__ void write_window(const numeric_args &s, const table<A> &t,
                                                    const row_shape &r, int64_t begin)
{
    const int entries = (int)r.entries;
    for (int first = threadIdx.x % WARP; first < entries; first += WAITING * WARP) {
        int32_t columns[WAITING];
#pragma unroll
        for (int u = 0; u < WAITING; u++) {
            const int at = first + u * WARP;
            const bool asked = at < entries && r.where != SPGEMM_IN_RANKED;
            columns[u] = asked ? __ldg(s.c.idx + begin + at) : -1;
        }
#pragma unroll
        for (int u = 0; u < WAITING; u++) {
            const int at = first + u * WARP;
            const int32_t j = columns[u];
            if (at >= entries) break;
            const int slot = r.where == SPGEMM_IN_RANKED        ? at
                             : uint32_t(j) < uint32_t(s.c.cols) ? t.find(j)
                                                                : -1;
            const A sum = slot < 0 ? A(0) : t.total(slot);
            if (s.plain_out)
                static_cast<A *>(s.out.data)[begin + at] = sum;
            else
                write(s.out, begin + at, sum);
        }
    }
    __syncwarp();
}

/* Shared memory of a warp:
 *
 *     chunk      32 entries of A that it has at hand: where their products are
 *     table      of its window */
template <class A> static constexpr __host__ __device__ int warp_bytes(void)
{
    return int(sizeof(chunk<A>)) + WINDOW;
}

/* A window for whose columns no table has room is cut in halves until one has: hashing takes any
 * window of few entries, a dense table one of a single entry. */
template <class A>
static __global__ void __launch_bounds__(BLOCK, 4)
    numeric_rows(const numeric_args s, const row_work w)
{
    const int own = threadIdx.x / WARP * warp_bytes<A>();
    const bool repeats = __ldg(s.schedule) != 1;
    for_stripes(w, [&](int64_t i, int stripe, int stripes) {
        int64_t begin;
        const row_shape row = shape_of(s, i, &begin);
        const int64_t each = window_entries<A>(row, least_windows(s, row.entries, i));
        for (int64_t first = stripe * each; first < row.entries; first += stripes * each) {
            const int64_t behind = first + each < row.entries ? first + each : row.entries;
            row_shape r = row;
            for (int64_t at = first; at < behind; at += r.entries) {
                r.entries = behind - at;
                for (;; r.entries = ceil_div(r.entries, 2)) {
                    if (row.rises) narrow_to(s.c, begin + at, &r);
                    if (choose_table<A>(s.where, &r) || r.entries == 1) break;
                }
                /* A whole row needs all of B's rows, which need not be searched then. */
                const bool some = r.rises && !repeats && r.entries < row.entries;
                const column_span span = {(int32_t)r.low, some ? (int32_t)r.cols : 0};
                table<A> t = open_window<A>(s.c, r, begin + at, own + (int)sizeof(chunk<A>));
                add_products(s, &t, of_shared<chunk<A>>(own), span, i);
                write_window(s, t, r, begin + at);
            }
        }
    });
}

/* ---- the phase ---- */

template <class A>
static void launch_rows(const fmm_exec *exec, const numeric_args &s, const row_work &w)
{
    const int bytes = BLOCK / WARP * warp_bytes<A>();
    int blocks_each = 1;
    cudaFuncSetAttribute(numeric_rows<A>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_each, numeric_rows<A>, BLOCK, bytes);
    const unsigned blocks =
        unsigned(blocks_each < 1 ? 1 : blocks_each) * (unsigned)fmm_cuda_processors(exec->index);
    launch_bins(exec, w, class_of_row<A>{s});
    numeric_rows<A><<<blocks, BLOCK, bytes, stream_of(exec)>>>(s, w);
}

extern "C" size_t fmm_spgemm_rows_workspace(const fmm_call *call)
{
    return row_work_bytes(call->a->rows);
}

static void launch_others(const fmm_exec *exec, const numeric_args &s, void *workspace)
{
    const row_work w = row_work_in(exec, workspace, s.a.rows);
    if (s.out.dtype == FMM_F64)
        launch_rows<double>(exec, s, w);
    else
        launch_rows<float>(exec, s, w);
}

extern "C" void fmm_spgemm_others_cuda(const fmm_exec *exec, const fmm_call *call, void *workspace)
{
    launch_others(exec, numeric_of(call, SPGEMM_AUTO), workspace);
}

extern "C" fmm_status fmm_spgemm_rows_cuda(const fmm_exec *exec, const fmm_call *call,
                                           spgemm_where where)
{
    int before;
    const fmm_spgemm *of = fmm_spgemm_of(call);
    const numeric_args s = numeric_of(call, where);
    TRY(cuda_enter("spgemm", exec, &before));
    const bool listed = where == SPGEMM_AUTO && !s.masked && of->products &&
                        fmm_spgemm_add_listed(exec, s, of->products, of->kept);
    if (!listed) {
        if (has_small_rows(s)) fmm_spgemm_small(exec, s, NULL);
        if (where != SPGEMM_AUTO || s.masked || of->kept != 1)
            launch_others(exec, s, exec->workspace);
    }
    return cuda_leave("spgemm", exec, before);
}
