/* The kernel of `csr_segmented`, `merge` and `coo`: warps that own equal shares of the matrix,
 * whose rows are added up by a segmented scan.
 *
 * A warp owns 128 entries, or 256 in csr_segmented where rows are long, whatever their rows are,
 * and needs nobody else for them:
 *
 *     1   lane l      4 or 8 entries                        columns, values, then gathers of x
 *         lane l      row l of those that begin here        marks its first entry
 *     2   warp        adds up runs from mark to mark, and puts in place of each entry the sum that
 *                     is open in front of it
 *     3   lane l      row l of those that begin here        finds its sum in front of the next mark
 *
 * Where rows are short, a lane has neighbours, which it loads at once, and what is left behind its
 * last mark meets in one scan over the lanes:
 *
 *     entries   3 . . . | . . 4 .  | 5 . 6 .  | . . . .      a mark, and what goes on
 *     lane      0       | 1        | 2        | 3
 *     left      abcd    | gh       | kl       | mnop
 *     ends here         |     3    | 4   5                   3 is abcd + ef, 4 gh, and 5 ij
 *
 * Elsewhere a lane has the entries l, l + 32, l + 64 and so on, so that neighbouring lanes gather
 * what neighbouring columns bring. 32 entries without a mark are only added up, lane by lane;
 * others are scanned, as far back as the last mark. With long rows few have one: reddit-size takes
 * 0.87 of the time of lanes with neighbours (H100). With short rows it is the other way: graphs of
 * less than 16 entries a row would take 1.05 to 1.15 times as long, grids 1.11 to 1.19 (H100). All
 * stays in registers, which leaves L1 to x: where terms went through shared memory, reddit-size
 * took 1.1 times as long.
 *
 * The order is fixed. A row that begins in a warp and ends in another, or at its end, is open
 * there: the block adds it up over its warps, and leaves a record of what is open at its own end
 * and of what came before its first mark. A second launch adds the records of such a row in their
 * order. No lane holds another up, whatever the rows' lengths are, and neighbours read neighbouring
 * entries. The code is short for a reason: a warp takes some 300 instructions for 128 entries,
 * which its loads just cover, and with a cold cache instructions come from memory, too. With twice
 * as many it took 1.2 times as long on musae_github and 1.7 times on grids (H200).
 *
 * The three differ in where shares begin and in how marks are found:
 *
 *     csr_segmented   every 128 entries, or 256 if rows are long. The plan lists the first row
 *                     that begins at or behind each border, since a search is a chain of loads;
 *                     where there is no plan, a launch before this one makes the list.
 *     merge           every 128 items of the list of entries and ends of rows, merged in order; a
 *                     launch before this one finds the rows at the borders:
 *                     row 0: a b c    a b c 0 | d 1 2 e | f g ...    a letter is an entry, a number
 *                     row 1: d                |         |            the end of its row
 *     coo             every 128 entries. A mark is wherever a row differs from the one before. A
 *                     launch before this one writes the rows that no entry names.
 *
 * Segmented scans: Blelloch, Heroux and Zagha, CMU-CS-93-173, 1993; on GPUs Sengupta, Harris, Zhang
 * and Owens, Graphics Hardware 2007; of COO Bell and Garland, SC 2009. The merged list: Merrill and
 * Garland, "Merge-Based Parallel Sparse Matrix-Vector Multiplication", SC 2016. */
#pragma once

#include "../matrix/cuda_plan.cuh"
#include "cuda_records.cuh"

static_assert(length_of_share(SHORT_ROWS) == PLAN_SHARE, "the plan lists where shares begin");

/* What a warp owns: `count` entries from `begin` on, and rows [row, rows_end) that may begin among
 * them, of which those before empties_end are its own if they are empty. */
struct share_of {
    int64_t begin;
    int32_t count, row, rows_end, empties_end;
};

/* The rows that the list has for share k and for the next one. merge's list was made by the launch
 * before this one, whose end no load through the read-only path waits for. */
template <int WAY, class T>
static __device__ __forceinline__ int2 ask_list(const segment_args<T> &m, int k)
{
    enum { STEP = WAY == PATH ? 1 : length_of_share(WAY) / PLAN_SHARE };
    const int32_t *const at = m.starts + int64_t(k) * STEP;
    if (WAY == PATH) return int2{__ldcg(at), __ldcg(at + 1)};
    return int2{__ldg(at), __ldg(at + (k + 1 < m.shares ? STEP : 0))};
}

/* The entries of share k, and of `merge` its rows, which it is cut by. */
template <int WAY, class T>
static __device__ __forceinline__ share_of take_share(const segment_args<T> &m, int64_t k,
                                                      int2 rows)
{
    enum { SHARE = length_of_share(WAY) };
    const csr_view &a = m.s.a;
    share_of own = {k * SHARE, int(min(a.nnz - k * SHARE, int64_t(SHARE))), 0, 0, 0};
    if constexpr (WAY == PATH) {
        own.begin = clamp(k * SHARE - rows.x, 0, a.nnz);
        own.count = int(clamp(min((k + 1) * SHARE - rows.y, a.nnz) - own.begin, 0, SHARE));
        own.row = rows.x, own.empties_end = rows.y;
        own.rows_end = int32_t(min(int64_t(rows.y) + 1, a.rows));
    }
    return own;
}

/* ---- marks ---- */

/* The entry that register k of a lane has. */
template <int WAY> static __device__ __forceinline__ constexpr int entry_of(int lane, int k)
{
    return WAY == SHORT_ROWS ? lane * each_of(WAY) + k : lane + k * WARP;
}

/* Where the entries of a row lie in a share. */
struct row_of_share {
    int32_t first; /* its first entry, or NOT_HERE, or EMPTY */
    int32_t end;   /* the entry behind its last one, or `count` if that is behind the share */
};
enum { NOT_HERE = -1, EMPTY = -2 };

/* A row's ends, asked for before anything waits for them; a row that is not of the share gets such
 * as place_row finds nowhere. */
template <class T>
static __device__ __forceinline__ longlong2 ask_row(const segment_args<T> &m, const share_of &own,
                                                    uint32_t r)
{
    if (r < (uint32_t)own.row || r >= (uint32_t)own.rows_end) return longlong2{-1, 0};
    return longlong2{__ldg(m.s.a.ptr + r), __ldg(m.s.a.ptr + r + 1)};
}
static __device__ __forceinline__ row_of_share place_row(const share_of &own, uint32_t r,
                                                         longlong2 ends)
{
    const int64_t begin = int64_t(uint64_t(ends.x) - uint64_t(own.begin));
    const int64_t end = int64_t(uint64_t(ends.y) - uint64_t(own.begin));
    if (ends.x >= ends.y) return row_of_share{r < (uint32_t)own.empties_end ? EMPTY : NOT_HERE, 0};
    if (uint64_t(begin) >= uint64_t(own.count)) return row_of_share{NOT_HERE, 0};
    return row_of_share{int32_t(begin), int32_t(min(end, int64_t(own.count)))};
}

/* The 32 rows behind those from `base` on. Where there are far more rows than entries, whole slices
 * of empty ones are left to the second launch. */
template <class T>
static __device__ __forceinline__ uint32_t next_rows(const segment_args<T> &m, const share_of &own,
                                                     uint32_t base)
{
    const int64_t *const ptr = m.s.a.ptr;
    base += WARP;
    if (base >= (uint32_t)own.rows_end) return base;
    while (base % SLICE == 0 && base + SLICE <= (uint32_t)own.rows_end &&
           __ldg(ptr + base) == __ldg(ptr + base + SLICE))
        base += SLICE;
    return base;
}

/* CSR: marks the entries at which the rows of a share begin; `mine` is lane l's row base + l. */
template <class T>
static __device__ __forceinline__ void mark_rows(const segment_args<T> &m, const share_of &own,
                                                 uint32_t base, row_of_share mine, unsigned *marks)
{
    const int lane = threadIdx.x % WARP;
    while (true) {
        if (mine.first >= 0) atomicOr(marks + mine.first / WARP, 1u << mine.first % WARP);
        base = next_rows(m, own, base);
        if (base >= (uint32_t)own.rows_end) break;
        mine = place_row(own, base + lane, ask_row(m, own, base + lane));
    }
    __syncwarp();
}

/* CSR: finishes the rows that begin in a share and end before its last entry, and the empty ones,
 * from the sums in front of each mark. The result is the number plus one of the row that goes on,
 * or ends, at the end of the share, or -1. */
template <int WAY, class T, class A>
static __device__ __forceinline__ int32_t finish_rows(const segment_args<T> &m, const share_of &own,
                                                      uint32_t base, row_of_share mine,
                                                      const A *sums)
{
    enum { EACH = each_of(WAY) };
    const int lane = threadIdx.x % WARP;
    int32_t open = -1;
    while (true) {
        const bool whole = mine.first >= 0 && mine.end < own.count;
        A sum = A(0);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int at = WAY == SHORT_ROWS ? mine.end / EACH % WARP : mine.end % WARP;
            const A other = __shfl_sync(ALL, sums[k], at);
            if (whole && mine.end == entry_of<WAY>(at, k)) sum = other;
        }
        if (whole || mine.first == EMPTY) finish(m.s, base + lane, sum);
        const unsigned more = __ballot_sync(ALL, mine.first >= 0 && !whole);
        if (more) open = int32_t(base + __ffs((int)more));
        base = next_rows(m, own, base);
        if (base >= (uint32_t)own.rows_end) return open;
        mine = place_row(own, base + lane, ask_row(m, own, base + lane));
    }
}

/* The number plus one of a row of COO, or -1 if the matrix has no such row. */
template <class T>
static __device__ __forceinline__ int32_t mark_of(const spmv_args<T> &s, int32_t row)
{
    return row >= 0 && row < s.a.rows ? row + 1 : -1;
}

/* COO: marks the entries whose row differs from the one before, which `ended` gets. Before all of
 * them is `last`, which becomes the row of the last entry. */
template <int EACH, class T>
static __device__ __forceinline__ void mark_changes(const segment_args<T> &m, const share_of &own,
                                                    int32_t *last, int32_t *ended, unsigned *marks)
{
    const int lane = threadIdx.x % WARP;
    int32_t rows[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++)
        rows[k] = __ldg(m.s.row + own.begin + min(lane + k * WARP, own.count - 1));
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        ended[k] = __shfl_up_sync(ALL, rows[k], 1);
        if (!lane) ended[k] = *last;
        *last = __shfl_sync(ALL, rows[k], WARP - 1);
        const bool first = own.begin + lane + k == 0;
        const unsigned heads = __ballot_sync(ALL, rows[k] != ended[k] || first);
        if (!lane) marks[k] = heads;
    }
    __syncwarp();
}

/* COO: writes the rows that end in a share in front of a mark, but for the one that began before
 * it, whose mark is the first. */
template <int EACH, class T, class A>
static __device__ __forceinline__ void
finish_changes(const segment_args<T> &m, const int32_t *ended, const unsigned *marks, const A *sums)
{
    const unsigned below = (1u << threadIdx.x % WARP) - 1u;
    bool inside = false;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const bool here = marks[k] & (below + 1u);
        if (here && (inside || marks[k] & below)) write_row(m.s, mark_of(m.s, ended[k]), sums[k]);
        inside |= marks[k] != 0;
    }
}

/* ---- sums ---- */

/* Puts in place of each term in a group with marks the sum in front of it, from the mark before it
 * on; groups without are only added up. The result has the sum before the first mark and the one
 * behind the last, and 1 as its mark if there is one. */
template <int EACH, class A>
static __device__ __forceinline__ record_of<A> add_runs(const unsigned *marks, A *term)
{
    const int lane = threadIdx.x % WARP;
    A rest = A(0),
      open = A(0); /* of groups without marks, each lane its own; behind the last mark */
    record_of<A> left = {A(0), A(0), 0};
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const unsigned heads = marks[k];
        if (!heads) {
            rest += term[k];
            continue;
        }
        open += lanes_sum(rest);
        const A upto = add_open(term[k], heads);
        A before = __shfl_up_sync(ALL, upto, 1);
        if (!lane) before = A(0);
        if (!(heads & ((1u << lane) - 1u))) before += open;
        if (!left.mark) left.first = __shfl_sync(ALL, before, __ffs((int)heads) - 1);
        left.mark = 1, rest = A(0);
        open = __shfl_sync(ALL, upto, WARP - 1);
        term[k] = before;
    }
    left.tail = open + lanes_sum(rest);
    if (!left.mark) left.first = left.tail;
    return left;
}

/* The same where each lane has neighbours: what is left of lane after lane meets in one scan. */
template <int EACH, class A>
static __device__ __forceinline__ record_of<A> add_lanes(const unsigned *marks, A *term)
{
    const int lane = threadIdx.x % WARP, place = lane * EACH;
    const unsigned mine = marks[place / WARP] >> place % WARP & ((1u << EACH) - 1u);
    A sum = A(0), first = A(0);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const A before = sum;
        sum = mine >> k & 1 ? term[k] : sum + term[k];
        term[k] = before;
    }
    const unsigned heads = __ballot_sync(ALL, mine != 0);
    sum = add_open(sum, heads);
    A before = __shfl_up_sync(ALL, sum, 1);
    if (!lane) before = A(0);
#pragma unroll
    for (int k = EACH - 1; k >= 0; k--) {
        if (!(mine & ((1u << k) - 1u))) term[k] += before;
        if (mine >> k & 1) first = term[k];
    }
    record_of<A> left;
    left.tail = __shfl_sync(ALL, sum, WARP - 1);
    left.mark = heads != 0;
    left.first = heads ? __shfl_sync(ALL, first, __ffs((int)heads) - 1) : left.tail;
    return left;
}

/* Blocks of a multiprocessor that registers must allow. Fewer than fit leave the others more of L1,
 * and room for the loads of all entries of a lane. */
template <class T> static constexpr int blocks_of(int way)
{
    if (way <= LONG_ROWS) return way == SHORT_ROWS && sizeof(T) <= 4 ? 6 : 5;
    return sizeof(T) <= 4 ? 8 : 6;
}

template <class T, class V, int WAY>
static __global__ void __launch_bounds__(BLOCK, blocks_of<T>(WAY))
    spmv_segments(const __grid_constant__ segment_args<T> m)
{
    enum { EACH = each_of(WAY) };
    typedef typename sum_of<T>::type A;
    __shared__ unsigned words[TEAM][EACH];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned *const marks = words[warp];
    if (lane < EACH) marks[lane] = 0;
    __syncwarp();
    let_next_start();
    const int which = int(blockIdx.x) * TEAM + warp;
    const bool some = which < m.shares;
    int2 starts = {0, 0};
    if (WAY == PATH) wait_for_previous();
    if (WAY != COORDINATES && some) starts = ask_list<WAY>(m, which);
    share_of own = {0, 0, 0, 0, 0};
    if (some) own = take_share<WAY>(m, which, starts);
    int32_t j[EACH] = {}, before = -1;
    A w[EACH] = {}, term[EACH];
    uint32_t at[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++)
        at[k] = (uint32_t)max(min(entry_of<WAY>(lane, k), own.count - 1), 0);
    if (WAY == SHORT_ROWS && m.wide && own.count == EACH * WARP) {
        load_together<int32_t, EACH, false>(m.s.a.idx + own.begin + at[0], j);
        load_values<V, 1, EACH>(m.s.val, own.begin, at, w);
    } else if (own.count) {
#pragma unroll
        for (int k = 0; k < EACH; k++) j[k] = __ldcs(m.s.a.idx + own.begin + at[k]);
        load_values<V, EACH, 1>(m.s.val, own.begin, at, w);
    }
    if (WAY <= LONG_ROWS && some) {
        const int32_t rows = (int32_t)m.s.a.rows;
        own.row = which ? min(max(starts.x, 0), rows) : 0;
        own.rows_end = own.empties_end = which + 1 < m.shares ? min(max(starts.y, 0), rows) : rows;
    }
    /* Far more rows than entries are walked over from a border of slices on. */
    const uint32_t base = own.rows_end - own.row > SLICE ? own.row / WARP * WARP : own.row;
    longlong2 ends;
    if (WAY != COORDINATES) ends = ask_row(m, own, base + lane);
    if (WAY == COORDINATES && own.begin) before = __ldg(m.s.row + own.begin - 1);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (entry_of<WAY>(lane, k) >= own.count || (uint32_t)j[k] >= (uint32_t)m.s.a.cols)
            j[k] = -1;
    /* No branch stands around these loads, or the compiler would wait for the rows' ends first. */
    times_x<EACH>(m.s, j, w, term);
    record_of<A> left;
    if constexpr (WAY == COORDINATES) {
        int32_t ended[EACH];
        if (own.count) mark_changes<EACH>(m, own, &before, ended, marks);
        left = add_runs<EACH>(marks, term);
        wait_for_previous();
        finish_changes<EACH>(m, ended, marks, term);
        if (left.mark) left.mark = mark_of(m.s, before);
    } else {
        const row_of_share row = place_row(own, base + lane, ends);
        mark_rows(m, own, base, row, marks);
        left = WAY == SHORT_ROWS ? add_lanes<EACH>(marks, term) : add_runs<EACH>(marks, term);
        const int32_t open = finish_rows<WAY>(m, own, base, row, term);
        if (left.mark) left.mark = open;
    }
    leave_record(m, left);
}
