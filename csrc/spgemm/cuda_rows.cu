/* The numeric phase on CUDA: C's values, by warps.
 *
 *     row i of C     its entries are cut into windows, of which a warp computes one at a time
 *     window         its columns go into a table in shared memory (cuda_table.cuh)
 *     row i of A     its products are added to the table's sums (cuda_products.cuh)
 *     window         sums are rounded and written
 *
 *     small rows     a thread each (cuda_small.cuh)
 *     long rows      a team of warps for each window: each takes a part of SPGEMM_TERMS entries of
 *                    A, with sums of its own, which are then added in the order of the parts
 *
 * Each warp finds its window's columns in B's rows by bisection. Nobody waits for warps of another
 * window, and rows that take longest come first.
 *
 * The order of products is that of A's entries, and in a row of B that of its entries. So every sum
 * has its terms in this one order, and its bits are the same for any table, window and run. */
#include "cuda_kept.cuh"
#include "cuda_windows.cuh"

/* ---- rows ---- */

/* Who computes a row. Stripes of a row are computed side by side; stripe s has windows s, s +
 * stripes, ... and one without a window ends at once.
 *
 *     class                   3           2           1          0
 *     windows times members   17 ...      1 ... 16    2 ... 4    1       classes 1, 0: one member
 *     taken by                blocks      blocks      warps      warps, several rows each
 *     stripes                 16          2           4          1
 *     tickets                 first                              last */
enum : unsigned { STRIPES_OF_ROWS = 0x4120 }; /* their logarithms, a digit for each class */
enum { STRIPES_OF_WARPS = 4, STRIPES_OF_BLOCKS = 2 };

/* A row's class, or -1 where it has no entries, or a thread of its own. */
template <class A> struct class_of_row {
    numeric_args s;
    __device__ int operator()(int64_t i) const
    {
        int64_t begin;
        const row_parts parts = parts_of(s, i, true);
        const row_shape r = shape_of(s, i, parts, &begin);
        if (!r.entries) return -1;
        if (s.merges && is_small(s.a, s.b, s.schedule, parts.entries, r.entries)) return -1;
        const int members = parts.members;
        const int64_t each = window_entries<A>(r, least_windows(s, r.entries, members));
        const int64_t tasks = ceil_div(r.entries, each) * members;
        if (members == 1 && tasks <= STRIPES_OF_WARPS) return tasks > 1;
        return tasks > WARPS * STRIPES_OF_BLOCKS ? 3 : 2;
    }
};

/* Warps of a block that compute a window together: they have places own = 0, 1, ... in it. */
struct team {
    int members, own, barrier;
    __device__ __forceinline__ void meet(void) const
    {
        __syncwarp();
        if (members > 1)
            asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(members * WARP) : "memory");
    }
    /* The shape that the team's leader has, for all of the team, which must have met since the last
     * call: each member may have read another one. */
    __device__ __forceinline__ row_shape agreed_shape(const row_shape &r, row_shape *room) const
    {
        if (members == 1) return r;
        if (!own && threadIdx.x % WARP == 0) *room = r;
        meet();
        return *room;
    }
};

/* What is read of a row before its windows. */
struct row_read {
    row_parts parts;
    row_shape shape;
    int64_t begin; /* of its entries of C */
    __device__ __forceinline__ static row_read of(const numeric_args &s, int64_t i, bool in_teams)
    {
        row_read r = {parts_of(s, i, in_teams), {}, 0};
        r.shape = shape_of(s, i, r.parts, &r.begin);
        return r;
    }
};

/* ---- windows ---- */

/* Shared memory of a warp:
 *
 *     chunk      32 entries of A that it has at hand: where their products are
 *     table      of its window */
template <class A> static constexpr __host__ __device__ int warp_bytes(void)
{
    return int(sizeof(chunk<A>)) + ROOM;
}

/* Adds the sums of a team's parts to what was put aside before, in their order, in the first
 * member's table. Hash tables have column j in a slot of their own. */
template <class A>
static __device__ __forceinline__ void put_aside(const table<A> &first, const team &of, int parts)
{
    const bool hashed = first.where == SPGEMM_IN_HASH;
    for (int h = of.own * WARP + threadIdx.x % WARP; h < first.slots; h += of.members * WARP) {
        const int32_t j = hashed ? first.keys()[h] : 0;
        if (j == NO_COLUMN) continue;
        A sum = first.aside(h);
        for (int m = 0; m < parts; m++) {
            const table<A> other = first.moved(m * warp_bytes<A>());
            sum += other.sum(hashed && m ? other.find(j) : h);
        }
        first.aside(h) = sum;
    }
}

/* Writes the sums after the last round. An entry of a ranked table is found by its place; one whose
 * column has no slot gets a 0. */
template <class A>
static __device__ __forceinline__ void write_window(const numeric_args &s, const table<A> &first,
                                                    const row_shape &r, int64_t begin,
                                                    const team &of)
{
    const int entries = (int)r.entries, step = of.members * WARP;
    const bool ranked = r.where == SPGEMM_IN_RANKED;
#pragma unroll 4
    for (int at = of.own * WARP + threadIdx.x % WARP; at < entries; at += step) {
        const int32_t j = ranked ? -1 : __ldg(s.c.idx + begin + at);
        const int slot = ranked ? at : uint32_t(j) < uint32_t(s.c.cols) ? first.find(j) : -1;
        write(s.out, begin + at, slot < 0 ? A(0) : first.total(slot));
    }
}

/* A window of row i, of `r`, whose entries of C begin at `begin`: round after round, in which each
 * member adds the products of one part of A's row. A row of one part needs no team. */
template <class A>
static __device__ __forceinline__ void add_window(const numeric_args &s, const row_parts &parts,
                                                  const row_shape &r, int64_t begin,
                                                  const column_span &span, const team &of, int byte)
{
    bool falls;
    table<A> t = table_of<1, A>(s.c, r, begin, byte + (int)sizeof(chunk<A>), &falls);
    const table<A> first = t.moved(-of.own * warp_bytes<A>()); /* of the first member */
    const int64_t end = parts.begin + parts.entries;
    for (int64_t base = parts.begin; base < end; base += parts.each * of.members) {
        const int64_t from = base + of.own * parts.each, to = from + parts.each;
        add_products(s, &t, of_shared<chunk<A>>(byte), span, from, to < end ? to : end);
        if (parts.entries <= parts.each) break;
        const int64_t ended = ceil_div(end - base, parts.each);
        of.meet();
        put_aside(first, of, ended < of.members ? (int)ended : of.members);
        of.meet();
        for (int h = threadIdx.x % WARP; h < t.slots; h += WARP) t.sum(h) = A(0);
        __syncwarp();
    }
    write_window(s, first, r, begin, of);
    of.meet(); /* before keys are overwritten */
}

/* A window for whose columns no table has room is cut in halves until one has: hashing takes any
 * window of few entries, a dense table one of a single entry. Sums of doubles take more registers,
 * and are faster with a block less (0.95 to 1.02 of the time, H100). */
template <class A>
static __global__ void __launch_bounds__(BLOCK, sizeof(A) == 8 ? 3 : 4)
    numeric_rows(const numeric_args s, const row_work w)
{
    __shared__ row_shape shapes[WARPS];   /* of teams' windows */
    __shared__ row_read reads[WARPS + 1]; /* of each warp's row, and of the block's */
    const int warp = threadIdx.x / WARP, byte = warp * warp_bytes<A>();
    const bool repeats = __ldg(s.schedule) != 1;
    for_rows(w, [&](int64_t i, int k, int stripe) {
        /* A warp that computes alone has no team, also if A has changed since. One thread reads, so
         * that all who work on the row agree on it. */
        const bool block = k > 1;
        const auto meet = [&] { block ? __syncthreads() : __syncwarp(); };
        row_read *const whole = reads + (block ? WARPS : warp);
        meet(); /* all have read what it was before */
        if (threadIdx.x % (block ? BLOCK : WARP) == 0) *whole = row_read::of(s, i, block);
        meet();
        const row_parts parts = whole->parts;
        const row_shape &row = whole->shape;
        const int64_t begin = whole->begin;
        const int members = parts.members, teams = k > 1 ? WARPS / members : 1;
        const team of = {members, warp % members, 1 + warp / members};
        const int64_t each =
            k ? window_entries<A>(row, least_windows(s, row.entries, members)) : row.entries;
        const int own = k > 1 ? stripe * teams + warp / members : stripe;
        for (int64_t first = own * each; first < row.entries;
             first += (teams << w.stripe_bits(k)) * each) {
            const int64_t behind = first + each < row.entries ? first + each : row.entries;
            row_shape r = row;
            for (int64_t at = first; at < behind; at += r.entries) {
                r.entries = behind - at;
                for (;; r.entries = ceil_div(r.entries, 2)) {
                    if (row.rises) narrow_to(s.c, begin + at, &r);
                    if (choose_table<A>(s.where, &r) || r.entries == 1) break;
                }
                r = of.agreed_shape(r, shapes + warp - of.own);
                /* A whole row needs all of B's rows, which need not be searched then. */
                const bool some = r.rises && !repeats && r.entries < row.entries;
                const column_span span = {(int32_t)r.low, some ? (int32_t)r.cols : 0};
                add_window<A>(s, parts, r, begin + at, span, of, byte);
            }
        }
    });
}

/* ---- the phase ---- */

/* The lists of rows, whatever the matrices hold. */
extern "C" size_t fmm_spgemm_rows_workspace(const fmm_call *call)
{
    return row_work_bytes(call->a->rows);
}

template <class A>
static void launch_others(const fmm_exec *exec, const numeric_args &s, const row_work &w)
{
    launch_rows<A>(exec, numeric_rows<A>, w, class_of_row<A>{s}, s, WARPS * warp_bytes<A>());
}

static void launch_others(const fmm_exec *exec, const numeric_args &s, void *workspace)
{
    const row_work w = row_work_in(workspace, s.a.rows, STRIPES_OF_ROWS);
    if (s.out.dtype == FMM_F64)
        launch_others<double>(exec, s, w);
    else
        launch_others<float>(exec, s, w);
}

/* For the symbolic phase of a whole product. Few entries need no lists of rows where windows of C's
 * entries can be taken. */
void fmm_spgemm_other_rows(const fmm_exec *exec, const numeric_args &s, bool windows,
                           void *workspace)
{
    enum { FEW = 1 << 21 };
    if (windows && s.c.nnz <= FEW && s.a.nnz <= INT32_MAX && s.b.nnz <= INT32_MAX)
        fmm_spgemm_add_found(exec, s);
    else
        launch_others(exec, s, workspace);
}

extern "C" fmm_status fmm_spgemm_rows_cuda(const fmm_exec *exec, const fmm_call *call,
                                           spgemm_where where)
{
    int before;
    const fmm_spgemm *of = fmm_spgemm_of(call);
    const numeric_args s = numeric_of(call, where);
    TRY(cuda_enter("spgemm", exec, &before));
    const bool listed = where == SPGEMM_AUTO && !s.masked && of->products &&
                        fmm_spgemm_add_kept(exec, s, of->products, of->kept);
    if (!listed) {
        if (s.merges) fmm_spgemm_small(exec, s, NULL);
        if (where != SPGEMM_AUTO || s.masked || of->kept != 1)
            launch_others(exec, s, exec->workspace);
    }
    return cuda_leave("spgemm", exec, before);
}
