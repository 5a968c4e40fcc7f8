/* The kernel of `csr_segmented`, `merge` and `coo`: warps that own equal shares of the matrix,
 * whose rows are added up by a segmented scan.
 *
 * A warp owns 128 entries, or 256 in csr_segmented where rows are long, whatever their rows are,
 * and needs nobody else for them:
 *
 *     1   lane l      entries l, l + 32, l + 64, l + 96     columns, values, then 4 gathers of x
 *         lane l      row l of those that begin here        marks its first entry
 *     2   lane l      entries 4l .. 4l + 3                  through shared memory
 *     3   warp        adds up runs from mark to mark, and puts the sums up to each entry back
 *     4   lane l      row l of those that begin here        finds its sum at its last entry
 *
 *     entries   3 . . . | . . 4 .  | 5 . 6 .  | . . . .      a mark, and what goes on
 *     lane      0       | 1        | 2        | 3
 *     left      abcd    | gh       | kl       | mnop         the sum behind a lane's last mark
 *     before    -       | abcd     | gh       | kl           what is open before it, by a scan
 *     sums      ... d=  | ef= g h= | ij= k l= | m n o p=     row 3 ends at f and 4 at h
 *
 * The scan adds what is left of lane after lane as far back as the last mark. Its order is fixed. A
 * row that begins in a warp and ends in another is open at the warp's end: the block adds it up
 * over its warps, and leaves a record of what is open at its own end and of what came before its
 * first mark. A second launch adds the records of such a row in their order. No lane holds another
 * up, whatever the rows' lengths are, and neighbours read neighbouring entries. The code is short
 * for a reason: a warp takes some 300 instructions for 128 entries, which its loads just cover, and
 * with a cold cache instructions come from memory, too. With twice as many it took 1.2 times as
 * long on musae_github and 1.7 times on grids (H200).
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
 *     coo             every 128 entries. A mark is wherever a row differs from the one before, and
 *                     an entry before a mark has its row's sum. A launch before this one writes the
 *                     rows that no entry names.
 *
 * Segmented scans: Blelloch, Heroux and Zagha, CMU-CS-93-173, 1993; on GPUs Sengupta, Harris, Zhang
 * and Owens, Graphics Hardware 2007; of COO Bell and Garland, SC 2009. The merged list: Merrill and
 * Garland, "Merge-Based Parallel Sparse Matrix-Vector Multiplication", SC 2016. */
#pragma once

#include "../matrix/cuda_plan.cuh"
#include "cuda_records.cuh"

static_assert(length_of_share(SEGMENTED) == PLAN_SHARE, "the plan lists where shares begin");

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

/* Where the entries of a row lie in a share. */
struct row_of_share {
    int32_t first; /* its first entry, or NOT_HERE, or EMPTY */
    int32_t last;  /* its last entry, or `count` if that is behind the share */
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
    return row_of_share{int32_t(begin), int32_t(min(end - 1, int64_t(own.count)))};
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
                                                 uint32_t base, row_of_share mine, uint8_t *marks)
{
    const int lane = threadIdx.x % WARP;
    while (true) {
        if (mine.first >= 0) marks[mine.first] = 1;
        base = next_rows(m, own, base);
        if (base >= (uint32_t)own.rows_end) break;
        mine = place_row(own, base + lane, ask_row(m, own, base + lane));
    }
}

/* CSR: finishes the rows that begin and end in a share, and the empty ones, from the sums up to
 * each entry. The result is the number plus one of the row that goes on behind it, or -1. */
template <int EACH, class T, class A>
static __device__ __forceinline__ int32_t finish_rows(const segment_args<T> &m, const share_of &own,
                                                      uint32_t base, row_of_share mine,
                                                      const A *sums)
{
    const int lane = threadIdx.x % WARP;
    int32_t open = -1;
    while (true) {
        const bool whole = mine.first >= 0 && mine.last < own.count;
        if (whole || mine.first == EMPTY)
            finish(m.s, base + lane, whole ? sums[stage_place<EACH>(mine.last)] : A(0));
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

/* COO: brings the rows of a share's entries to shared memory and marks those that differ from the
 * one before; `before` is the row before all of them, or -1. */
template <class T>
static __device__ __forceinline__ void mark_changes(const segment_args<T> &m, const share_of &own,
                                                    int32_t before, int32_t *rows, bool *head)
{
    enum { EACH = each_of(COORDINATES) };
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int e = min(lane + k * WARP, own.count - 1);
        rows[lane + k * WARP] = __ldg(m.s.row + own.begin + e);
    }
    __syncwarp();
    int32_t last = lane ? rows[lane * EACH - 1] : before;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int32_t row = rows[lane * EACH + k];
        head[k] = row != last || own.begin + lane + k == 0;
        last = row;
    }
}

/* COO: writes the rows that end in a share, but for the one that was open before it and the one
 * that its last entry is of. */
template <class T, class A>
static __device__ __forceinline__ void finish_changes(const segment_args<T> &m, const share_of &own,
                                                      int32_t before, const int32_t *rows,
                                                      const A *sums)
{
    enum { EACH = each_of(COORDINATES) };
#pragma unroll 1
    for (int e = threadIdx.x % WARP; e + 1 < own.count; e += WARP)
        if (rows[e] != rows[e + 1] && (rows[e] != before || !own.begin))
            write_row<COORDINATES>(m.s, mark_of(m.s, rows[e]), sums[stage_place<EACH>(e)]);
}

/* ---- sums ---- */

/* Makes a warp's terms, EACH of each lane, sums from the mark before them on. The result has the
 * sum before the first mark and the one behind the last, and 1 as its mark if there is one. */
template <int EACH, class A>
static __device__ __forceinline__ record_of<A> add_runs(const bool *head, A *term)
{
    const int lane = threadIdx.x % WARP;
    bool marked = false, inside[EACH];
    A sum = A(0), first = A(0);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (head[k] && !marked) first = sum;
        marked |= head[k], inside[k] = marked;
        sum = head[k] ? term[k] : sum + term[k];
        term[k] = sum;
    }
    const unsigned marks = __ballot_sync(ALL, marked);
    sum = add_open(sum, marks);
    A before = __shfl_up_sync(ALL, sum, 1);
    if (!lane) before = A(0);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (!inside[k]) term[k] += before;
    record_of<A> left;
    left.tail = __shfl_sync(ALL, sum, WARP - 1);
    left.mark = marks != 0;
    left.first = marks ? __shfl_sync(ALL, first + before, __ffs((int)marks) - 1) : left.tail;
    return left;
}

template <class T, class V, int WAY>
static __global__ void __launch_bounds__(BLOCK, (sizeof(T) <= 4 ? 8 : 6) - 2 * (WAY == LONG_ROWS))
    spmv_segments(const __grid_constant__ segment_args<T> m)
{
    enum { EACH = each_of(WAY), SHARE = length_of_share(WAY) };
    typedef typename sum_of<T>::type A;
    /* Marks of CSR are bytes; COO has the rows of the entries. */
    typedef typename std::conditional<WAY == COORDINATES, int32_t, uint8_t>::type mark;
    __shared__ A stages[TEAM][SHARE + WARP];
    __shared__ __align__(16) mark marks[TEAM][SHARE];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    A *const stage = stages[warp];
    mark *const marked = marks[warp];
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
    bool head[EACH] = {};
    uint32_t at[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) at[k] = (uint32_t)max(min(lane + k * WARP, own.count - 1), 0);
    if (own.count) {
#pragma unroll
        for (int k = 0; k < EACH; k++) j[k] = __ldcs(m.s.a.idx + own.begin + at[k]);
        load_values<V, EACH, 1>(m.s.val, own.begin, at, w);
    }
    if (by_entries(WAY) && some) {
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
        if (lane + k * WARP >= own.count || (uint32_t)j[k] >= (uint32_t)m.s.a.cols) j[k] = -1;
    /* No branch stands around these loads, or the compiler would wait for the rows' ends first. */
    times_x<EACH>(m.s, j, w, term);
    row_of_share row;
    if constexpr (WAY == COORDINATES) {
        if (own.count) mark_changes(m, own, before, marked, head);
    } else {
        row = place_row(own, base + lane, ends);
        for (int k = 0; k < EACH; k += 4)
            reinterpret_cast<uint32_t *>(marked)[lane + k / 4 * WARP] = 0;
        __syncwarp();
        mark_rows(m, own, base, row, marked);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
        stage[stage_place<EACH>(lane) + k * stage_place<EACH>(WARP)] = term[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        term[k] = stage[lane * (EACH + 1) + k];
        if (WAY != COORDINATES) head[k] = marked[lane * EACH + k];
    }
    record_of<A> left = add_runs<EACH>(head, term);
#pragma unroll
    for (int k = 0; k < EACH; k++) stage[lane * (EACH + 1) + k] = term[k];
    __syncwarp();
    if constexpr (WAY == COORDINATES) {
        wait_for_previous();
        finish_changes(m, own, before, marked, stage);
        if (left.mark) left.mark = mark_of(m.s, marked[own.count - 1]);
    } else {
        const int32_t open = finish_rows<EACH>(m, own, base, row, stage);
        if (left.mark) left.mark = open;
    }
    leave_record<WAY>(m, left);
}
