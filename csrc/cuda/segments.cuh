/* What the `segments` kernels of all operators share: how work comes to groups of lanes.
 *
 * The plan (matrix/cuda_plan.cuh) orders the rows of a matrix by length and cuts long rows into
 * pieces. What a group of lanes takes at once is an item: a piece of a long row, or a bundle of
 * short rows, which the group takes one after the other.
 *
 *     plan's order    | long rows, cut in pieces | one by one | 2 | 4 | 8 at a time | empty |
 *     items           | p p p p p p p p p p p p  | b b b b b b | b b | b b | b b b   |
 *                       |                              |
 *     warp 0          | group 0 | group 1 | ...    LANES lanes each, one item and one head
 *
 * Lane k of a group looks up the k-th row of the bundle, so that the group waits for `order` and
 * `ptr` once per bundle and not once per row. While a row is summed, the entries of the next one
 * are already on their way. So a short row costs about what its entries cost.
 *
 * The groups of a warp run the same loop, as often as the longest of them needs. So every shuffle
 * has all lanes, and entries behind a group's own end are column -1, which loads nothing. */
#pragma once

#include "../matrix/cuda_plan.cuh"
#include "device.h"

/* How a group of lanes is made for a row of the far operand, whose rows it gathers: LANES lanes
 * span it with PER packs of VEC elements each, and the packs of a lane are STEP columns apart. FLY
 * rows are in flight at a time, and a multiprocessor must have registers for BLOCKS blocks. Entries
 * go round in shared memory where STAGED, which is where rows are long enough for eight loads. */
template <class T_, int VEC_, int LANES_, int PER_, int FLY_, int BLOCKS_> struct group_shape {
    typedef T_ T;
    typedef typename sum_of<T>::type A;
    static constexpr int VEC = VEC_, LANES = LANES_, PER = PER_, FLY = FLY_, BLOCKS = BLOCKS_;
    static constexpr int STEP = LANES * VEC;
    static constexpr bool STAGED = FLY == 8 && VEC * sizeof(T) == 16 && LANES >= FLY;
    template <int N> using flying = group_shape<T_, VEC_, LANES_, PER_, N, BLOCKS_>;
};

/* The part of every kernel's arguments that says how its work is dealt out. */
struct dealt {
    csr_view a;
    edge_view val;
    plan_view plan;
    uint64_t per_head;    /* 2^64 / heads, rounded up: item_of */
    int32_t heads, shift; /* bundles have at most 2^shift rows */
};

/* ---- what the plan says, clamped to what there is room for ---- */

struct plan_counts {
    int32_t hubs, long_rows, segments, ends[BUNDLES + 1];
};
static __device__ __forceinline__ plan_counts read_counts(const csr_view &a, const plan_view &plan)
{
    const int4 *const words = reinterpret_cast<const int4 *>(plan.header);
    const int4 w1 = __ldg(words + 1), w2 = __ldg(words + 2), w3 = __ldg(words + 3);
    const int32_t rows = (int32_t)a.rows;
    plan_counts n;
    n.long_rows = max(0, min(w1.w, plan.long_rows_max));
    n.hubs = max(0, min(w1.z, n.long_rows));
    n.segments = max(0, min(w2.x, plan.segments_max));
    n.ends[0] = max(n.long_rows, min(w2.y, rows));
    n.ends[1] = max(n.ends[0], min(w2.z, rows));
    n.ends[2] = max(n.ends[1], min(w2.w, rows));
    n.ends[3] = max(n.ends[2], min(w3.x, rows));
    return n;
}

/* ---- items ---- */

/* An item: rows order[from .. from + count), or a piece of a long row if count is 0. `from` is then
 * its number among the pieces, and after find_span the slot of its sums. */
struct item_view {
    int32_t from, count;
};

/* Pieces come first, which take longest, then the classes of rows in the plan's order. A class of
 * short rows has bundles of 2^size of them; its last one may have fewer. */
static __device__ __forceinline__ item_view find_item(const plan_counts &n, int64_t item, int shift)
{
    item_view found = {0, -1};
    if (item < n.segments) return item_view{(int32_t)item, 0};
    int64_t left = item - n.segments;
    int32_t begin = n.long_rows;
#pragma unroll
    for (int class_ = 0; class_ <= BUNDLES; class_++) {
        const int size = min(class_, shift), rows = n.ends[class_] - begin;
        const int64_t bundles = (int64_t(rows) + (1 << size) - 1) >> size;
        if (found.count < 0 && left < bundles) {
            found.from = begin + (int32_t)(left << size);
            found.count = min(1 << size, n.ends[class_] - found.from);
        }
        left -= bundles;
        begin = n.ends[class_];
    }
    return found;
}
static __device__ __forceinline__ int64_t count_items(const plan_counts &n, int shift)
{
    int64_t items = n.segments;
    int32_t begin = n.long_rows;
#pragma unroll
    for (int class_ = 0; class_ <= BUNDLES; class_++) {
        const int size = min(class_, shift);
        items += (int64_t(n.ends[class_] - begin) + (1 << size) - 1) >> size;
        begin = n.ends[class_];
    }
    return items;
}

/* The entries of a row, or of a piece of one. */
struct span {
    int64_t begin;
    int32_t length, row;
};

/* Those of the k-th row of an item; none behind its last row. A piece needs nothing of ptr. */
static __device__ __forceinline__ span find_span(const csr_view &a, const plan_view &plan,
                                                 item_view *item, int k)
{
    span s = {0, 0, 0};
    if (item->count == 0) {
        const uint4 piece = __ldg(plan.segments + item->from); /* pack_piece wrote it */
        item->from = (int32_t)min(piece.y, uint32_t(plan.segments_max - 1));
        if (k) return s;
        s.row = (int32_t)min(int64_t(piece.x), a.rows - 1);
        s.begin = min((int64_t(piece.w) << 16) | (piece.z >> 16), a.nnz);
        s.length = (int32_t)min(int64_t(piece.z & 65535), a.nnz - s.begin);
    } else if (k < item->count) {
        s.row = (int32_t)clamp(__ldg(plan.order + item->from + k), 0, a.rows - 1);
        const int64_t length = row_range(a, s.row, &s.begin);
        s.length = (int32_t)min(length, int64_t(INT32_MAX) / 2);
    }
    return s;
}

/* The row that lane k of the group looked up. */
template <int LANES> static __device__ __forceinline__ span span_of_lane(const span &s, int k)
{
    span other;
    other.begin = __shfl_sync(ALL, s.begin, k, LANES);
    other.length = __shfl_sync(ALL, s.length, k, LANES);
    other.row = __shfl_sync(ALL, s.row, k, LANES);
    return other;
}

/* The largest over the groups of a warp. */
template <int LANES> static __device__ __forceinline__ int most_in_warp(int v)
{
#pragma unroll
    for (int d = LANES; d < WARP; d *= 2) v = max(v, __shfl_xor_sync(ALL, v, d));
    return v;
}

/* item / heads, by heads' reciprocal: exact while item * heads < 2^64. */
static inline uint64_t reciprocal(int64_t heads) { return UINT64_MAX / (uint64_t)heads + 1; }
template <class N>
static __device__ __forceinline__ int64_t item_of(int64_t item, N heads, uint64_t per_head)
{
    return heads == 1 ? item : (int64_t)__umul64hi((uint64_t)item, per_head);
}

/* ---- what one group has to do ---- */

template <int LANES> struct task {
    plan_counts counts;
    int64_t number; /* of the item */
    item_view item;
    span mine; /* the lane's row of the item */
    int32_t head;
    int lane, rows; /* rows: as many as the longest item of the warp has */
};

/* Where heads are taken one by one, groups that are neighbours have the same item and different
 * heads, so that their loads of idx, and of a row of all heads, fall together. */
template <int LANES, bool BY_HEAD = true>
static __device__ __forceinline__ task<LANES> find_task(const dealt &s)
{
    task<LANES> t;
    t.lane = threadIdx.x % LANES;
    const int64_t group = this_thread() / LANES;
    t.counts = read_counts(s.a, s.plan);
    t.number = BY_HEAD ? item_of(group, s.heads, s.per_head) : group;
    t.head = BY_HEAD ? int32_t(group - t.number * s.heads) : 0;
    t.item = find_item(t.counts, t.number, s.shift);
    t.mine = find_span(s.a, s.plan, &t.item, t.lane);
    t.rows = most_in_warp<LANES>(max(t.item.count, t.item.count == 0));
    return t;
}

/* Rows without entries are no part of any item. The group of item k writes an even share of them,
 * while its first loads are under way; where there are no items at all, that of item 0 writes them
 * all. */
template <class Args, class Write>
static __device__ __forceinline__ void for_empty_rows(const Args &s, const plan_counts &n,
                                                      int64_t items, int64_t k, Write write)
{
    for (int64_t e = k; e < s.a.rows - n.ends[BUNDLES]; e += max(items, int64_t(1))) {
        if (k >= items && k) break;
        write((int32_t)clamp(__ldg(s.plan.order + n.ends[BUNDLES] + e), 0, s.a.rows - 1));
    }
}
/* The share of a task. */
template <int LANES, class Write>
static __device__ __forceinline__ void for_empty_rows(const dealt &s, const task<LANES> &t,
                                                      Write write)
{
    for_empty_rows(s, t.counts, count_items(t.counts, s.shift), t.number, write);
}

/* Where a lane fetches next: its entry, and how many entries its group's row has from there on. */
template <int LANES, class Index = int64_t> struct cursor {
    Index from;
    int32_t left;

    /* To the entry `own` of the r-th row. Behind the group's last row there is nothing. */
    __device__ __forceinline__ void go_to(const span &mine, int r, int own)
    {
        from = Index(__shfl_sync(ALL, Index(mine.begin), r, LANES)) + own;
        left = __shfl_sync(ALL, mine.length, r, LANES);
        left = (r < LANES ? left : 0) - own; /* shuffles count lanes modulo LANES */
    }
};

/* What becomes of a pack of sums of the r-th row: those of a piece go to slot(), from which the
 * join adds them up; those of a whole row are finished and written. */
template <class T, int VEC, int LANES, class A, class Slot, class Finish>
static __device__ __forceinline__ void hand_over(const task<LANES> &t, int r, A *sums, T *to,
                                                 Slot slot, Finish finish)
{
    if (t.item.count == 0 && r == 0) {
        keep<A, VEC>(slot(), sums);
    } else if (r < t.item.count) {
        UNROLLED(v, VEC) sums[v] = finish(sums[v]);
        store<T, VEC>(to, sums);
    }
}

/* Where sums of more than CHAIN entries are put aside, at each CHAIN-th of them; `by` scales what
 * is there. This is rarely used, so it should take no registers, of which it would need as many
 * again as the sums do. The compiler leaves an array in local memory if it cannot tell where an
 * access goes, and it does not know that blockDim.z is 1. */
template <class A, int N> struct sums_aside {
    A sums[N];
    __device__ __forceinline__ A *hidden(void) { return sums + (blockDim.z - 1); }
    __device__ __forceinline__ void put(A *from, bool first, A by = A(1))
    {
        A *const to = hidden();
        if (!first) /* one branch for all, so that the loads are in flight together */
            UNROLLED(i, N) from[i] = fma(to[i], by, from[i]);
        UNROLLED(i, N) to[i] = from[i], from[i] = A(0);
    }
    __device__ __forceinline__ void take(A *to, A by = A(1))
    {
        const A *const from = hidden();
        UNROLLED(i, N) to[i] = fma(from[i], by, to[i]);
    }
};

/* ---- on the host: how a call is dealt out ---- */

static inline dealt deal(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                         int64_t heads)
{
    return dealt{view_csr(a),       view_edges(a, val), plan_for_call(exec, a),
                 reciprocal(heads), (int32_t)heads,     0};
}

/* How often a card is filled by a group for each row and tile of columns. */
static inline double card_fills(const fmm_exec *exec, int64_t rows, int64_t tiles, int lanes)
{
    enum { THREADS = 4 * BLOCK }; /* of a multiprocessor */
    return double(rows) * double(tiles) * lanes / (THREADS * fmm_cuda_processors(exec->index));
}

/* Bundles of at most 2^shift rows, and of no more than a group has lanes. A group waits for five
 * loads, one after the other, before it adds its first entry; a bundle waits once, and the next
 * row's loads begin while the rows of this one arrive. So bundles grow with how often the rows fill
 * the card, counted once for each tile of columns. With two rows where it is filled twice, and four
 * where it is three times or more, SpMM took 0.70 to 0.95 of the time (H200; 16,000 to 38,000 rows
 * of 6 to 15 entries, 64 to 512 columns), and attention's forward 0.78 to 0.92. Bundles of eight
 * made SpMM of 512 columns slower, so only matrices of very many rows have them. */
static inline int bundle_shift(const fmm_exec *exec, int64_t rows, int64_t tiles, int lanes)
{
    const double fills = card_fills(exec, rows, tiles, lanes);
    int shift = fills < 1.5 ? 0 : fills < 3 ? 1 : rows < 262144 ? 2 : BUNDLES;
    while (1 << shift > lanes) shift--;
    return shift;
}

/* A bound on the number of items: groups behind the last item cost a launch, though they find
 * nothing to do. There are at most rows >> shift bundles of 2^shift rows, and each class of rows
 * may end in a bundle that is not full. A bundle of fewer rows has more than 32 entries in all,
 * since its rows are the longer. A piece has half a segment, which is 16 entries at least, on the
 * average over its row. Nor are there more items than rows and pieces. */
static inline int64_t items_max(const plan_view &plan, int64_t rows, int64_t nnz, int shift)
{
    const int64_t full = nnz / SINGLE + plan.segments_max / 2 + (rows >> shift);
    return smaller(full, rows + plan.segments_max) + BUNDLES + 1;
}

/* Settles the size of bundles, and says how many blocks a launch of groups of LANES lanes takes, of
 * which each tile of columns has its own. */
static inline unsigned deal_blocks(const fmm_exec *exec, dealt *s, int lanes, int64_t tiles)
{
    s->shift = bundle_shift(exec, s->a.rows, tiles * s->heads, lanes);
    const int64_t items = items_max(s->plan, s->a.rows, s->a.nnz, s->shift) * int64_t(s->heads);
    return blocks_for(items * lanes);
}

/* Whether fewer columns at a time pay: the far operand, whose rows have so many bytes, is beyond
 * the second cache, and each row of it is read many times, so that more of the rows stay there. */
static inline bool few_columns_pay(int device, int64_t nnz, int64_t rows, int64_t row_bytes)
{
    return nnz > 32 * rows && rows > fmm_cuda_second_cache(device) / (row_bytes + 1);
}

/* Whether the kernels' grids reach over a matrix: one group of at most a warp for each piece, row
 * and head, and tiles of at least 8 columns along the grid's other axis. */
static inline bool segments_reach(const fmm_csr *a, int64_t heads, int64_t feat)
{
    if (!plan_possible(a->rows, a->nnz) || heads > INT32_MAX || feat > 65535 * INT64_C(8))
        return false;
    const int64_t items = plan_segments_max(size_of_plan(a)) + a->rows + BUNDLES + 1;
    return items <= int64_t(INT32_MAX) * (BLOCK / WARP) / (heads ? heads : 1);
}

/* ---- on the host: how an operand lies ---- */

/* Whether rows of d can be gathered: their distance in bytes is a 32-bit factor in the kernels'
 * address arithmetic. */
static inline bool can_gather(const fmm_dense *d)
{
    return d->rows < 2 || d->row_stride <= int64_t(UINT32_MAX / fmm_dtype_bytes(d->dtype));
}

/* Whether a view can be accessed `vec` elements at a time. */
static inline bool lies_in_packs(const fmm_dense *d, size_t bytes, int64_t vec)
{
    return (uintptr_t)d->data % (bytes * (size_t)vec) == 0 && d->feat % vec == 0 &&
           (d->rows < 2 || d->row_stride % vec == 0) && (d->heads < 2 || d->head_stride % vec == 0);
}

/* Heads that share their values, or have none, are just more columns where they lie side by side.
 */
static inline fmm_dense flat_heads(const fmm_dense *d)
{
    fmm_dense f = *d;
    f.feat *= f.heads;
    f.heads = 1;
    return f;
}
static inline bool can_be_flat(const fmm_dense *d)
{
    return d->heads == 1 || d->head_stride == d->feat;
}
