/* The numeric phase on CUDA: C's values, a group of threads for each row.
 *
 *     row i of C     its columns go into a table (cuda_table.cuh), or some of them: a window
 *     row i of A     its products are added to the table's sums (cuda_products.cuh)
 *     row i of C     sums are rounded and written
 *
 *     small rows     a thread each (cuda_small.cuh)
 *
 * The order of products is that of A's entries, and in a row of B that of its entries; threads that
 * have a product early wait for those before them. So every sum has its terms in this one order,
 * and its bits are the same for any table, window, group and run. */
#include "cuda_kept.cuh"
#include "cuda_small.cuh"

/* A sum has at most one term for each entry of A where B's columns rise; else nobody knows. C's
 * columns rise unless they are a mask's: then the first and the last say where its entries are. */
template <class A>
static __device__ __forceinline__ row_shape shape_of(const numeric_args &s, int64_t i,
                                                     const class_bytes &bytes)
{
    int64_t begin, p;
    const int64_t entries = row_range(s.c, i, &begin);
    const bool repeats = __ldg(s.schedule) != 1;
    row_shape r = {s.where, entries, 0, s.b.cols, repeats || row_range(s.a, i, &p) > SPGEMM_TERMS,
                   repeats};
    if (entries && !s.masked) {
        const int32_t low = __ldg(s.c.idx + begin), high = __ldg(s.c.idx + begin + entries - 1);
        if (0 <= low && low <= high && high < s.b.cols)
            r.low = low, r.cols = int64_t(high) - low + 1;
    }
    if (s.where == SPGEMM_AUTO) r.where = choose_where<A>(r, bytes);
    return r;
}

/* Small rows are merged, so that C has all columns and they rise, as a mask's need not. */
static __host__ __device__ __forceinline__ bool has_small_rows(const numeric_args &s)
{
    return !s.masked && (s.where == SPGEMM_AUTO || s.where == SPGEMM_IN_SORTED);
}

template <class A> struct class_of_row {
    numeric_args s;
    class_bytes bytes;
    __device__ int operator()(int64_t i) const
    {
        int64_t begin;
        const int64_t entries = row_range(s.c, i, &begin), own = row_range(s.a, i, &begin);
        if (!entries) return -1;
        if (has_small_rows(s) && is_small(s.a, s.b, s.schedule, own, entries)) return -1;
        const row_shape r = shape_of<A>(s, i, bytes);
        const int fits = bytes.smallest(bytes_of<A>(r, r.where)), work = class_of_work(own);
        return fits > work ? fits : work;
    }
};

/* ---- windows of a row: what its table holds at a time ---- */

/* Entries [begin, end) of C's row are in window number `at`; of a dense table, those of them whose
 * columns lie in [low, low + width). */
struct window {
    int64_t at, begin, end, low, width;
};

/* The window of column j. One that is not among the row's columns counts to the first: its entry
 * gets a 0. */
static __device__ __forceinline__ int window_of(int32_t j, const row_shape &r, int64_t width)
{
    const unsigned at = unsigned(j) - unsigned(r.low);
    return at < unsigned(r.cols) ? int(at / unsigned(width)) : 0;
}

/* The next window of this stripe after number `after`, for a row whose entries begin at `begin`;
 * false behind the last. A dense window in which no entry lies is left out. */
template <int WARPS>
static __device__ __forceinline__ bool next_window(const csr_view &c, const row_shape &r,
                                                   int64_t begin, int64_t capacity, int64_t after,
                                                   int stripes, int stripe, int *least, window *w)
{
    typedef group<WARPS> g;
    if (r.where != SPGEMM_IN_DENSE) {
        w->at = after < 0 ? stripe : after + stripes;
        if (w->at * capacity >= r.entries) return false;
        w->begin = begin + w->at * capacity;
        w->end = w->begin + capacity < begin + r.entries ? w->begin + capacity : begin + r.entries;
        return true;
    }
    w->begin = begin, w->end = begin + r.entries;
    if (r.cols <= capacity) { /* one window has all */
        w->at = 0, w->low = r.low, w->width = r.cols;
        return after < 0 && !stripe;
    }
    int here = NO_COLUMN;
    if (!g::thread()) *least = NO_COLUMN;
    g::sync();
    for (int64_t p = begin + g::thread(); p < begin + r.entries; p += g::THREADS) {
        const int at = window_of(__ldg(c.idx + p), r, capacity);
        if (at > after && at % stripes == stripe && at < here) here = at;
    }
    if (here != NO_COLUMN) atomicMin(least, here);
    g::sync();
    w->at = *least;
    g::sync();
    const int64_t before = w->at * capacity;
    w->low = r.low + before;
    w->width = r.cols - before < capacity ? r.cols - before : capacity;
    return w->at != NO_COLUMN;
}

/* Slots that a class has for entries, or columns, of one window. */
template <class A>
static __device__ __forceinline__ int64_t capacity_of(const row_shape &r, int bytes)
{
    const int64_t slots = bytes / slot_bytes<A>(r.where, r.is_long, r.counted);
    if (r.where == SPGEMM_IN_DENSE) return slots;
    return r.where == SPGEMM_IN_HASH ? slots / 2 : power_of_two(slots + 1) / 2;
}

/* The table of a window, all sums 0. */
template <int WARPS, class A>
static __device__ __forceinline__ table<A> open_window(const csr_view &c, row_shape r,
                                                       const window &w, char *memory)
{
    typedef group<WARPS> g;
    table<A> t;
    r.entries = w.end - w.begin;
    t.low = (int32_t)w.low;
    t.lay_out(r, memory, (int)(r.where == SPGEMM_IN_DENSE ? w.width : slots_of(r)));
    empty_table<WARPS>(t);
    if (r.where == SPGEMM_IN_DENSE) return t;
    bool falls = false;
    for (int64_t at = g::thread(); at < r.entries; at += g::THREADS) {
        const int32_t j = __ldg(c.idx + w.begin + at);
        const bool inside = uint32_t(j) < uint32_t(c.cols);
        if (r.where == SPGEMM_IN_SORTED) {
            t.keys[at] = inside ? j : int32_t(NO_COLUMN);
            falls |= at > 0 && j < __ldg(c.idx + w.begin + at - 1);
            falls |= !inside;
        } else if (inside)
            t.enter(j);
    }
    const bool unsorted = g::any(falls);
    g::sync();
    if (unsorted) sort_keys<WARPS>(t.keys, t.slots);
    return t;
}

/* ---- results of a window ---- */

template <int WARPS, class A>
static __device__ __forceinline__ void write_window(const numeric_args &s, const table<A> &t,
                                                    const row_shape &r, const window &w,
                                                    int64_t capacity)
{
    typedef group<WARPS> g;
    for (int64_t p = w.begin + g::thread(); p < w.end; p += g::THREADS) {
        const int32_t j = __ldg(s.c.idx + p);
        if (r.where == SPGEMM_IN_DENSE && w.width < r.cols && window_of(j, r, capacity) != w.at)
            continue;
        const int slot = uint32_t(j) < uint32_t(s.c.cols) ? t.find(j) : -1;
        write(s.out, p, slot < 0 ? A(0) : t.total(slot));
    }
    g::sync();
}

/* A warp holds its entries of A in registers, a block in shared memory. */
template <int WARPS, class A> struct numeric_head {
    typedef chunk<WARPS, A> type;
};
template <class A> struct numeric_head<1, A> {
    typedef struct {
    } type;
};

template <int WARPS, class A>
static __global__ void __launch_bounds__(group<WARPS>::BLOCK_OF, group<WARPS>::RESIDENT)
    numeric_rows(const numeric_args s, const row_work w, int k)
{
    extern __shared__ __align__(16) char spgemm_shared[];
    typedef typename numeric_head<WARPS, A>::type head;
    const auto room = shared_room<WARPS, head>::of(spgemm_shared, w.bytes.of[k]);
    const int stripes = k == LARGEST ? STRIPES : 1;
    const bool repeats = __ldg(s.schedule) != 1;
    for_rows<WARPS>(w, k, stripes, &room.says->ticket, [&](int64_t i, int stripe) {
        int64_t begin;
        const row_shape r = shape_of<A>(s, i, w.bytes);
        const int64_t capacity = capacity_of<A>(r, w.bytes.of[k]);
        row_range(s.c, i, &begin);
        window here = {-1, 0, 0, 0, 0};
        while (next_window<WARPS>(s.c, r, begin, capacity, here.at, stripes, stripe,
                                  &room.says->next, &here)) {
            table<A> t = open_window<WARPS, A>(s.c, r, here, room.row);
            const bool narrow = r.where == SPGEMM_IN_DENSE && !repeats && here.width < r.cols;
            const column_span span = {(int32_t)here.low, narrow ? (int32_t)here.width : 0};
            if constexpr (WARPS == 1)
                add_by_warp(s, &t, i, repeats);
            else
                add_by_block<WARPS>(s, &t, room.head, span, i);
            write_window<WARPS, A>(s, t, r, here, capacity);
        }
    });
}

/* ---- the phase ---- */

/* The largest class that a row can be in: that of a row with all entries of C, or of A. */
template <class A> static int last_class(const numeric_args &s, const class_bytes &bytes)
{
    const row_shape all = {s.where, s.c.nnz, 0, s.b.cols, true, true};
    const int64_t dense = bytes_of<A>(all, SPGEMM_IN_DENSE),
                  hash = bytes_of<A>(all, SPGEMM_IN_HASH);
    const int fits =
        bytes.smallest(s.where == SPGEMM_AUTO ? smaller(dense, hash) : bytes_of<A>(all, s.where));
    const int work = class_of_work(s.a.nnz);
    return fits > work ? fits : work;
}

template <class A>
static void launch_rows(const fmm_exec *exec, const numeric_args &s, const row_work &w)
{
    launch_bins(exec, w, class_of_row<A>{s, w.bytes});
    for_classes(last_class<A>(s, w.bytes), [&](int k, auto warps) {
        enum { WARPS = decltype(warps)::WARPS };
        launch_class<WARPS, typename numeric_head<WARPS, A>::type>(
            exec, numeric_rows<WARPS, A>, w, k, k == LARGEST ? STRIPES : 1, s);
    });
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
