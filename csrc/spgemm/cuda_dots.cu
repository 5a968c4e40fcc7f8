/* Products of rows of two sparse matrices where a third has entries: the gradients of SpGEMM.
 *
 *     row i of x     a table of its columns and values, or of a window of them
 *     row i of a     a tile of entries (i, k) at a time; SHARE lanes take one of them
 *     row k of y     each lane adds every SHARE-th product; the lanes' sums meet in a tree
 *     tile           a partial sum for each entry, to which window after window is added
 *
 * Each output has one owner and one order of terms, which follows from the structures and from the
 * size of windows. Columns that x repeats add in its order.
 *
 * A warp computes a short row, and a block one whose table is large or whose entries in a are many
 * (cuda_classes.cuh). */
#include "../cuda/reference.cuh"
#include "cuda_table.cuh"

enum { SHARE = 8 }; /* lanes that add one product of rows; so a warp has four at a time */

/* The rows of a and x have the same numbers, and a's columns are y's rows. */
struct dots_args {
    csr_view a, x, y;
    edge_view x_val, y_val;
    entry_output out;
};

/* Eight stripes of tiles share a row of class 3; a tile has an entry of a for each thread. */
enum : unsigned { STRIPES_OF_DOTS = 0x3000 };

/* Entries of x that can be hashed in so many bytes: each takes two slots. */
template <class A> static __device__ __forceinline__ int hashed_in(int bytes)
{
    return bytes / slot_bytes<A>(SPGEMM_IN_HASH, false, false) / 2;
}

/* A row's class. */
template <class A> struct class_of_dots {
    dots_args s;
    __device__ int operator()(int64_t i) const
    {
        int64_t begin;
        const int64_t entries = row_range(s.a, i, &begin);
        if (!entries) return -1;
        if (entries <= BLOCK && row_range(s.x, i, &begin) <= hashed_in<A>(ROOM))
            return entries > WARP;
        return entries > 8 * BLOCK ? 3 : 2;
    }
};

/* Row i of x, whose entries begin at `begin`: all of its columns have to be found. They are hashed,
 * unless they rise and a block has room for their ranks. */
template <int WARPS, class A>
static __device__ __forceinline__ row_shape shape_of(const dots_args &s, int64_t i, int64_t *begin)
{
    typedef group<WARPS> g;
    row_shape r = {SPGEMM_IN_HASH, row_range(s.x, i, begin), 0, s.x.cols, false, false, false};
    *begin = agreed<WARPS>(*begin), r.entries = agreed<WARPS>(r.entries);
    if (WARPS == 1 || bytes_of<A>(r, SPGEMM_IN_RANKED) > WARPS * ROOM) return r;
    bool falls = false;
    for (int64_t at = g::thread(); at < r.entries; at += g::THREADS) {
        const int32_t j = __ldg(s.x.idx + *begin + at);
        falls |= uint32_t(j) >= uint32_t(s.x.cols) || (at && j <= __ldg(s.x.idx + *begin + at - 1));
    }
    if (!g::any(falls)) r.where = SPGEMM_IN_RANKED;
    return r;
}

/* Entries [begin, end) of x in a table, and their values. Those of columns that may repeat are
 * added by one warp, in turns. */
template <int WARPS, class A>
static __device__ __forceinline__ table<A> window_of(const dots_args &s, row_shape r, int64_t begin,
                                                     int64_t end, int byte)
{
    typedef group<WARPS> g;
    r.entries = end - begin;
    bool falls;
    table<A> t = table_of<WARPS, A>(s.x, r, begin, byte, &falls);
    const int step = falls ? WARP : g::THREADS;
    for (int64_t first = begin; first < end && (!falls || !g::warp()); first += step) {
        const int64_t p = first + g::thread();
        const int32_t j = p < end ? __ldg(s.x.idx + p) : int32_t(NO_COLUMN);
        const int slot = uint32_t(j) < uint32_t(s.x.cols) ? t.find(j) : -1;
        const A value = slot < 0 ? A(0) : edge_value<A>(s.x_val, edge_of(s.x_val, p), 0);
        if (falls)
            add_in_order(&t, term<A>{slot, rank_in_warp(slot), A(1), value});
        else if (slot >= 0)
            t.sum(slot) = value;
    }
    g::sync();
    return t;
}

/* < the table, row k of y >, in SHARE lanes, all of which return it. A lane's own sum has no more
 * terms in a row than any other (long_sum), and the lanes' sums meet in a tree. */
template <class A>
static __device__ __forceinline__ A dot(const dots_args &s, const table<A> &t, int64_t k)
{
    int64_t begin = 0, length = 0;
    if (uint64_t(k) < uint64_t(s.y.rows)) length = row_range(s.y, k, &begin);
    long_sum<A> sum;
    sum.start();
    for (int64_t q = begin + threadIdx.x % SHARE; q < begin + length; q += SHARE) {
        const int32_t j = __ldg(s.y.idx + q);
        const int slot = uint32_t(j) < uint32_t(s.y.cols) ? t.find(j) : -1;
        if (slot >= 0) sum.add(t.sum(slot), edge_value<A>(s.y_val, edge_of(s.y_val, q), 0));
    }
    A all = sum.total();
    __syncwarp();
    for (int d = SHARE / 2; d; d /= 2) all += __shfl_xor_sync(ALL, all, d);
    return all;
}

/* The tiles of a stripe of row i, by a warp or a block. A row of x of one window stays in the table
 * for all tiles; one of several comes again for each.
 *
 *     tile        for each window of x: table, then AT_ONCE entries of a at a time
 *     partial     sum over windows, in their order; written when the last has come
 *
 * The group meets before a table is overwritten, and before partial sums are. */
template <int WARPS, class A>
static __device__ __forceinline__ void dots_of_row(const dots_args &s, int64_t i, int stripe,
                                                   int stripes, int byte, A *partial)
{
    typedef group<WARPS> g;
    enum { AT_ONCE = g::THREADS / SHARE, TILE = g::THREADS };
    int64_t p0, r0;
    const int64_t entries = agreed<WARPS>(row_range(s.a, i, &p0)), tile = TILE;
    p0 = agreed<WARPS>(p0); /* of the same reading, so that both stay inside a */
    const row_shape r = shape_of<WARPS, A>(s, i, &r0);
    const int64_t capacity =
        r.where == SPGEMM_IN_RANKED ? r.entries : int64_t(hashed_in<A>(WARPS * ROOM));
    const int64_t r_end = r0 + r.entries;
    table<A> t;
    bool open = false;
    for (int64_t first = stripe * tile; first < entries; first += stripes * tile) {
        const int64_t here = entries - first < tile ? entries - first : tile;
        partial[g::thread()] = A(0);
        g::sync();
        for (int64_t at = r0; at < r_end; at += capacity) {
            const int64_t end = at + capacity < r_end ? at + capacity : r_end;
            if (!open || r.entries > capacity) t = window_of<WARPS, A>(s, r, at, end, byte);
            open = true;
            for (int64_t base = 0; base < here; base += AT_ONCE) {
                const int64_t e = base + g::thread() / SHARE;
                const A sum = dot(s, t, e < here ? __ldg(s.a.idx + p0 + first + e) : -1);
                if (e < here && threadIdx.x % SHARE == 0) partial[e] += sum;
            }
            g::sync();
        }
        if (g::thread() < here) write(s.out, p0 + first + g::thread(), partial[g::thread()]);
        g::sync();
    }
}

/* Blocks take the rows of the larger classes, with one table for all of their warps. */
template <class A>
static __global__ void __launch_bounds__(BLOCK, 4) dots_rows(const dots_args s, const row_work w)
{
    __shared__ A partial[BLOCK];
    const int warp = threadIdx.x / WARP;
    for_rows(w, [&](int64_t i, int k, int stripe) {
        if (k > 1)
            dots_of_row<WARPS, A>(s, i, stripe, 1 << w.stripe_bits(k), 0, partial);
        else
            dots_of_row<1, A>(s, i, 0, 1, warp * ROOM, partial + warp * WARP);
    });
}

template <class A>
static void launch_dots(const fmm_exec *exec, const dots_args &s, const row_work &w)
{
    launch_rows<A>(exec, dots_rows<A>, w, class_of_dots<A>{s}, s, WARPS * ROOM);
}

/* The workspace holds the lists of rows. It is asked for here, as the symbolic phase does. */
extern "C" fmm_status fmm_spgemm_dots_cuda(const fmm_exec *exec, const fmm_spgemm_dots_call *call)
{
    int before;
    spgemm_memory m;
    const fmm_csr *a = call->a;
    if (!a->nnz) return FMM_OK;
    TRY(fmm_spgemm_countable(a));
    TRY(fmm_spgemm_ask(exec, row_work_bytes(a->rows), &m));
    /* The host knows nothing of the rows, and waits for nothing: so a gradient can be captured. */
    const dots_args s = {view_csr(a),
                         view_csr(call->x),
                         view_csr(call->y),
                         view_edges(call->x, call->x_val),
                         view_edges(call->y, call->y_val),
                         view_output(a, call->out)};
    TRY(cuda_enter("spgemm", exec, &before));
    const row_work w = row_work_in(m.base, a->rows, STRIPES_OF_DOTS);
    if (call->out->dtype == FMM_F64)
        launch_dots<double>(exec, s, w);
    else
        launch_dots<float>(exec, s, w);
    return cuda_leave("spgemm", exec, before);
}
