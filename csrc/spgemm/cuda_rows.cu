/* The numeric phase on CUDA: C's values, a group of threads for each row.
 *
 *     row i of C     its columns go into a table (cuda_table.cuh)
 *     row i of A     a chunk of entries at a time, whose products are numbered (cuda_group.cuh)
 *     products       a batch at a time:   thread     0  1  2  3 ...
 *                      all threads        load j, b, find the slot, rank those that share it
 *                      warp after warp    add, in the order of lanes
 *     row i of C     sums are rounded and written
 *
 * The order of products is that of A's entries, and in a row of B that of its entries; threads that
 * have a product early wait for those before them. So every sum has its terms in this one order,
 * and its bits are the same for any table, window, group and run. What takes long, the loads and
 * the search, is done by all threads at once; only the additions take turns. */
#include "cuda_table.cuh"

struct numeric_args {
    csr_view a, b, c;
    edge_view a_val, b_val;
    const int64_t *schedule;
    entry_output out;
    spgemm_where where;
};

/* A sum has at most one term for each entry of A where B's columns rise; else nobody knows. */
template <class A>
static __device__ __forceinline__ row_shape shape_of(const numeric_args &s, int64_t i,
                                                     const class_bytes &bytes)
{
    int64_t begin;
    const int64_t entries = row_range(s.c, i, &begin);
    const bool repeats = __ldg(s.schedule) != 1;
    row_shape r = {s.where, entries, s.b.cols, repeats || row_range(s.a, i, &begin) > SPGEMM_TERMS};
    if (s.where == SPGEMM_AUTO) r.where = choose_where<A>(r, bytes);
    return r;
}

template <class A> struct class_of_row {
    numeric_args s;
    class_bytes bytes;
    __device__ int operator()(int64_t i) const
    {
        int64_t begin;
        const row_shape r = shape_of<A>(s, i, bytes);
        if (!r.entries) return -1;
        const int fits = bytes.smallest(bytes_of<A>(r, r.where));
        const int work = class_of_work(row_range(s.a, i, &begin));
        return fits > work ? fits : work;
    }
};

/* ---- windows of a row: what its table holds at a time ---- */

/* Entries [begin, end) of C's row are in window number `at`; of a dense table, those of them whose
 * columns lie in [low, low + width). */
struct window {
    int64_t at, begin, end, low, width;
};

/* The window that a column outside of the matrix counts to: its entry gets a 0. */
static __device__ __forceinline__ int64_t window_of(int32_t j, int64_t cols, int64_t width)
{
    return uint32_t(j) < uint32_t(cols) ? j / width : 0;
}

/* The next window of this stripe after number `after`, for a row whose entries begin at `begin`;
 * false behind the last. A dense window in which no entry lies is left out. */
template <int WARPS>
static __device__ __forceinline__ bool
next_window(const csr_view &c, const row_shape &r, int64_t begin, int64_t capacity, int64_t after,
            int stripes, int stripe, int64_t *shared, window *w)
{
    typedef group<WARPS> g;
    if (r.where != SPGEMM_IN_DENSE) {
        w->at = after < 0 ? stripe : after + stripes;
        if (w->at * capacity >= r.entries) return false;
        w->begin = begin + w->at * capacity;
        w->end = w->begin + capacity < begin + r.entries ? w->begin + capacity : begin + r.entries;
        return true;
    }
    int *const least = reinterpret_cast<int *>(shared);
    int here = NO_COLUMN;
    if (!g::thread()) *least = NO_COLUMN;
    g::sync();
    for (int64_t p = begin + g::thread(); p < begin + r.entries; p += g::THREADS) {
        const int64_t at = window_of(__ldg(c.idx + p), c.cols, capacity);
        if (at > after && at % stripes == stripe && at < here) here = (int)at;
    }
    if (here != NO_COLUMN) atomicMin(least, here);
    g::sync();
    w->at = *least;
    g::sync();
    w->begin = begin, w->end = begin + r.entries;
    w->low = w->at * capacity;
    w->width = c.cols - w->low < capacity ? c.cols - w->low : capacity;
    return w->at != NO_COLUMN;
}

/* Slots that a class has for entries, or columns, of one window. */
template <class A>
static __device__ __forceinline__ int64_t capacity_of(const row_shape &r, int bytes)
{
    const int64_t slots = bytes / slot_bytes<A>(r.where, r.is_long);
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

/* ---- one window of one row ---- */

template <int WARPS, class A>
static __device__ __forceinline__ void add_products(const numeric_args &s, table<A> *t,
                                                    chunk<WARPS, A> *room, int64_t i)
{
    typedef group<WARPS> g;
    enum { EACH = 2, TURN = WARP * EACH }; /* products of a lane, of a warp */
    int64_t begin;
    const int64_t end = row_range(s.a, i, &begin) + begin;
    for (int64_t p = begin; p < end; p += g::THREADS) {
        const int64_t products = fill_chunk<WARPS, A>(room, s.a, s.b, &s.a_val, p, end);
        for (int64_t first = 0; first < products; first += g::THREADS * EACH) {
            term<A> terms[EACH];
            int32_t columns[EACH];
#pragma unroll
            for (int u = 0; u < EACH; u++) { /* loads first, so that they are under way together */
                const int64_t product = first + g::warp() * TURN + u * WARP + g::lane();
                columns[u] = -1;
                if (product >= products) continue;
                const int e = entry_of<WARPS, A>(room, product);
                const int64_t q = room->origin[e] + product;
                columns[u] = __ldg(s.b.idx + q);
                terms[u].x = room->factor[e];
                terms[u].y = edge_value<A>(s.b_val, edge_of(s.b_val, q), 0);
            }
#pragma unroll
            for (int u = 0; u < EACH; u++) {
                const bool inside = uint32_t(columns[u]) < uint32_t(s.b.cols);
                terms[u].slot = inside ? t->find(columns[u]) : -1;
                terms[u].rank = rank_in_warp(terms[u].slot);
            }
            const int64_t turns = ceil_div(products - first, TURN);
            take_turns<WARPS, EACH>(t, terms, turns < WARPS ? (int)turns : WARPS);
        }
        g::sync();
    }
}

template <int WARPS, class A>
static __device__ __forceinline__ void write_window(const numeric_args &s, const table<A> &t,
                                                    const row_shape &r, const window &w,
                                                    int64_t capacity)
{
    typedef group<WARPS> g;
    for (int64_t p = w.begin + g::thread(); p < w.end; p += g::THREADS) {
        const int32_t j = __ldg(s.c.idx + p);
        if (r.where == SPGEMM_IN_DENSE && window_of(j, s.c.cols, capacity) != w.at) continue;
        const int slot = uint32_t(j) < uint32_t(s.c.cols) ? t.find(j) : -1;
        write(s.out, p, slot < 0 ? A(0) : t.total(slot));
    }
    g::sync();
}

template <int WARPS, class A>
static __global__ void __launch_bounds__(group<WARPS>::BLOCK_OF, group<WARPS>::RESIDENT)
    numeric_rows(const numeric_args s, const row_work w, int k)
{
    extern __shared__ __align__(16) char spgemm_shared[];
    const auto room = shared_room<WARPS, A>::of(spgemm_shared, w.bytes.of[k]);
    const int stripes = k == LARGEST ? STRIPES : 1;
    int64_t *const shared = &room.products->shared;
    for_rows<WARPS>(w, k, stripes, shared, [&](int64_t i, int stripe) {
        int64_t begin;
        const row_shape r = shape_of<A>(s, i, w.bytes);
        const int64_t capacity = capacity_of<A>(r, w.bytes.of[k]);
        row_range(s.c, i, &begin);
        window here = {-1, 0, 0, 0, 0};
        while (
            next_window<WARPS>(s.c, r, begin, capacity, here.at, stripes, stripe, shared, &here)) {
            table<A> t = open_window<WARPS, A>(s.c, r, here, room.row);
            add_products<WARPS, A>(s, &t, room.products, i);
            write_window<WARPS, A>(s, t, r, here, capacity);
        }
    });
}

/* ---- the phase ---- */

template <class A>
static void launch_rows(const fmm_exec *exec, const numeric_args &s, const row_work &w)
{
    launch_bins(exec, w, class_of_row<A>{s, w.bytes});
    for_classes([&](int k, auto warps) {
        enum { WARPS = decltype(warps)::WARPS };
        launch_class<WARPS, A>(exec, numeric_rows<WARPS, A>, w, k, k == LARGEST ? STRIPES : 1, s);
    });
}

extern "C" size_t fmm_spgemm_rows_workspace(const fmm_call *call)
{
    return row_work_bytes(call->a->rows);
}

extern "C" fmm_status fmm_spgemm_rows_cuda(const fmm_exec *exec, const fmm_call *call,
                                           spgemm_where where)
{
    int before;
    const fmm_spgemm *of = fmm_spgemm_of(call);
    const numeric_args s = {view_csr(call->a),
                            view_csr(of->b),
                            view_csr(of->c),
                            view_edges(call->a, call->val),
                            view_edges(of->b, &of->b_val),
                            of->schedule,
                            view_output(of->c, call->y),
                            where};
    TRY(cuda_enter("spgemm", exec, &before));
    const row_work w = row_work_in(exec, exec->workspace, call->a->rows);
    if (call->y->dtype == FMM_F64)
        launch_rows<double>(exec, s, w);
    else
        launch_rows<float>(exec, s, w);
    return cuda_leave("spgemm", exec, before);
}
