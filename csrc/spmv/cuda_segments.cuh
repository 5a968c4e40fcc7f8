/* The kernel of `csr_segmented`, `merge` and `coo`: warps that own equal shares of the matrix,
 * whose rows are added up by a segmented scan.
 *
 * A warp owns SHARE = 128 entries, whatever their rows are, and needs nobody else for them:
 *
 *     1   lane l      entries l, l + 32, l + 64, l + 96     columns, values, then 4 gathers of x
 *         lane l      row l of those that begin here        marks its first entry with its number;
 *                                                           an empty row is finished at once
 *     2   lane l      entries 4l .. 4l + 3                  through shared memory
 *     3   warp        adds up runs from mark to mark
 *
 *     entries   3 . . . | . . 4 .  | 5 . 6 .  | . . . .      a mark, and what goes on
 *     lane      0       | 1        | 2        | 3
 *     left      3: abcd | 4: gh    | 6: kl    | mnop         the sum behind a lane's last mark
 *     before      -     | 3: abcd  | 4: gh    | 6: kl        what is open before it, by a scan
 *     ends              | 3        | 4, 5     |
 *
 * The scan adds what is left of lane after lane as far back as the last mark. Its order is fixed. A
 * row that begins in a warp and ends in another is open at the warp's end: the block adds it up
 * over its warps, and leaves a record of what is open at its own end and of what came before its
 * first mark. A second launch adds the records of such a row in their order. No lane holds another
 * up, whatever the rows' lengths are, and neighbours read neighbouring entries.
 *
 * The three differ in where shares begin and in how marks are found:
 *
 *     csr_segmented   every 128 entries. The plan lists the first row that begins at or behind
 *                     each border, since a search is a chain of loads; without one a warp searches.
 *     merge           every 128 items of the list of entries and ends of rows, merged in order:
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

static_assert(int(SHARE) == int(PLAN_SHARE), "the plan lists where shares begin");
/* What a warp owns: entries [begin, end), and rows [row, rows_end) that may begin among them, of
 * which those before empties_end are its own if they are empty. */
struct share_of {
    int64_t begin, end, row, rows_end, empties_end;
};

/* The first number in [low, high) for which before() is false, found by a warp: it is true up to
 * there. */
template <class Before>
static __device__ __forceinline__ int64_t search(int64_t low, int64_t high, Before before)
{
    const int64_t lane = threadIdx.x % WARP;
    while (low < high) {
        const int64_t step = (high - low + WARP - 1) / WARP, at = low + (lane + 1) * step - 1;
        const int64_t yes = __popc(__ballot_sync(ALL, at < high && before(at)));
        high = min(high, low + (yes + 1) * step - 1);
        low += yes * step;
    }
    return low;
}

/* What the plan says of share k, asked for before anything waits. */
template <class T>
static __device__ __forceinline__ int2 ask_plan(const segment_args<T> &m, int64_t k)
{
    if (!m.starts || k >= m.shares) return int2{0, 0};
    return int2{__ldg(m.starts + k), __ldg(m.starts + k + 1)};
}

/* The first row that begins at share k's first entry or behind it. */
template <class T>
static __device__ __forceinline__ int64_t start_of(const segment_args<T> &m, int64_t k, int said)
{
    const csr_view &a = m.s.a;
    if (k <= 0 || k >= m.shares) return k <= 0 ? 0 : a.rows;
    if (m.starts) return clamp(said, 0, a.rows);
    return search(0, a.rows, [&](int64_t r) { return __ldg(a.ptr + r) < k * SHARE; });
}

/* The row that item k * SHARE of the merged list belongs to, or ends. */
template <class T>
static __device__ __forceinline__ int64_t path_of(const segment_args<T> &m, int64_t k)
{
    const csr_view &a = m.s.a;
    const int64_t item = min(k * SHARE, a.nnz + a.rows);
    return search(max(item - a.nnz, int64_t(0)), min(item, a.rows),
                  [&](int64_t r) { return clamp(__ldg(a.ptr + r + 1), 0, a.nnz) + r + 1 <= item; });
}

/* The entries of share k, and of `merge` its rows, which it is cut by. */
template <int WAY, class T>
static __device__ __forceinline__ share_of take_share(const segment_args<T> &m, int64_t k)
{
    const csr_view &a = m.s.a;
    if (k >= m.shares) return share_of{0, 0, 0, 0, 0};
    share_of own = {k * SHARE, min((k + 1) * SHARE, a.nnz), 0, 0, 0};
    if constexpr (WAY == PATH) {
        own.row = path_of(m, k);
        own.empties_end = path_of(m, k + 1);
        own.begin = clamp(k * SHARE - own.row, 0, a.nnz);
        own.end =
            clamp((k + 1) * SHARE - own.empties_end, own.begin, min(own.begin + SHARE, a.nnz));
        own.rows_end = min(own.empties_end + 1, a.rows);
    }
    return own;
}

/* ---- marks ---- */

/* Lane l's row among the first 32 of a share: where it begins and ends, asked for early. */
struct row_ends {
    int64_t begin, end;
};
template <class T>
static __device__ __forceinline__ row_ends ask_row(const segment_args<T> &m, const share_of &own,
                                                   int64_t r)
{
    if (r < own.row || r >= own.rows_end) return row_ends{-1, -1};
    return row_ends{__ldg(m.s.a.ptr + r), __ldg(m.s.a.ptr + r + 1)};
}

/* CSR: marks the entries at which rows begin, and finishes empty rows. Where there are far more
 * rows than entries, whole slices of empty ones are left to the second launch. */
template <class T, class A>
static __device__ __forceinline__ void mark_rows(const segment_args<T> &m, const share_of &own,
                                                 int64_t base, row_ends mine, A zero,
                                                 int32_t *marks)
{
    const int64_t *const ptr = m.s.a.ptr;
    while (base < own.rows_end) {
        const int64_t r = base + threadIdx.x % WARP;
        if (mine.begin < mine.end && mine.begin >= own.begin && mine.begin < own.end)
            marks[mine.begin - own.begin] = int32_t(r + 1);
        else if (mine.begin >= mine.end && r >= own.row && r < own.empties_end)
            write_row(m.s, int32_t(r + 1), zero);
        base += WARP;
        while (base % SLICE == 0 && base + SLICE <= own.rows_end &&
               __ldg(ptr + base) == __ldg(ptr + base + SLICE))
            base += SLICE;
        mine = ask_row(m, own, base + threadIdx.x % WARP);
    }
}

/* COO: the marks of a lane's entries. */
template <class T>
static __device__ __forceinline__ void mark_changes(const segment_args<T> &m, const share_of &own,
                                                    int32_t *marks, int32_t *head)
{
    const int lane = threadIdx.x % WARP, last = int(own.end - own.begin) - 1;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        marks[lane + k * WARP] = __ldg(m.s.row + own.begin + min(lane + k * WARP, last));
    __syncwarp();
    int32_t before = lane        ? marks[lane * EACH - 1]
                     : own.begin ? __ldg(m.s.row + own.begin - 1)
                                 : -1;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int32_t row = marks[lane * EACH + k];
        const bool starts = row != before || (own.begin + lane + k == 0);
        head[k] = !starts ? 0 : row >= 0 && row < m.s.a.rows ? row + 1 : -1;
        before = row;
    }
}

/* ---- sums ---- */

/* Adds up a warp's terms, four of each lane. Rows that end here are written, but for the one that
 * was open before; the result says what the first mark found open, and what is open at the end. */
template <class T, class A>
static __device__ __forceinline__ record_of<A> add_runs(const spmv_args<T> &s, const int32_t *head,
                                                        const A *term)
{
    const int lane = threadIdx.x % WARP;
    int32_t mark = 0;
    A sum = A(0), first = A(0);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (head[k]) {
            if (mark)
                write_row(s, mark, sum);
            else
                first = sum;
            mark = head[k], sum = term[k];
        } else {
            sum += term[k];
        }
    }
    const unsigned marked = __ballot_sync(ALL, mark != 0), below = marked & ((1u << lane) - 1);
    const unsigned upto = below | (marked & (1u << lane));
    /* What is open behind a lane: its own, and that of the lanes back to the last mark. */
    const int back = upto ? lane - (31 - __clz((int)upto)) : lane;
#pragma unroll
    for (int far = 1; far < WARP; far *= 2) {
        const A other = __shfl_up_sync(ALL, sum, far);
        if (far <= back) sum += other;
    }
    const A before = __shfl_up_sync(ALL, sum, 1);
    if (lane && mark) first += before;
    const int32_t open = __shfl_sync(ALL, mark, below ? 31 - __clz((int)below) : 0);
    if (mark && below) write_row(s, open, first);
    record_of<A> left;
    left.tail = __shfl_sync(ALL, sum, WARP - 1);
    left.mark = __shfl_sync(ALL, mark, marked ? 31 - __clz((int)marked) : 0);
    left.first = __shfl_sync(ALL, first, marked ? __ffs((int)marked) - 1 : 0);
    if (!marked) left.first = left.tail;
    return left;
}

template <class T, class V, int WAY>
static __global__ void __launch_bounds__(BLOCK, sizeof(T) <= 4 ? 8 : 6)
    spmv_segments(const __grid_constant__ segment_args<T> m)
{
    typedef typename sum_of<T>::type A;
    enum { PAD = SHARE / EACH }; /* a place more for each lane: their reads meet all banks */
    __shared__ A terms[TEAM][SHARE + PAD];
    __shared__ __align__(16) int32_t marks[TEAM][SHARE];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    A *const mine = terms[warp];
    let_next_start();
    const int64_t which = int64_t(blockIdx.x) * TEAM + warp;
    const int2 said = ask_plan(m, which);
    share_of own = take_share<WAY>(m, which);
    const int count = int(own.end - own.begin);
    int32_t head[EACH] = {}, j[EACH];
    A w[EACH], term[EACH] = {};
    uint32_t at[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) at[k] = (uint32_t)max(min(lane + k * WARP, count - 1), 0);
    if (count)
        fetch<V, EACH, 1>(m.s, m.s.a.idx, own.begin, at, (count - lane + WARP - 1) / WARP, j, w);
    if (WAY == SEGMENTED && which < m.shares) {
        own.row = start_of(m, which, said.x);
        own.rows_end = own.empties_end = start_of(m, which + 1, said.y);
    }
    /* Far more rows than entries are walked over from a border of slices on. */
    const int64_t base = own.rows_end - own.row > SLICE ? own.row / WARP * WARP : own.row;
    const row_ends ends = ask_row(m, own, base + lane);
    if (count) times_x<EACH>(m.s, j, w, term);
    if constexpr (WAY == COORDINATES) {
        if (count) mark_changes(m, own, marks[warp], head);
        wait_for_previous();
    } else {
        int4 *const four = reinterpret_cast<int4 *>(marks[warp]);
        four[lane] = int4{0, 0, 0, 0};
        __syncwarp();
        mark_rows(m, own, base, ends, A(0), marks[warp]);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) mine[lane + k * WARP + (lane + k * WARP) / EACH] = term[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < EACH; k++) term[k] = mine[lane * (EACH + 1) + k];
    if constexpr (WAY != COORDINATES) {
        const int4 four = reinterpret_cast<int4 *>(marks[warp])[lane];
        head[0] = four.x, head[1] = four.y, head[2] = four.z, head[3] = four.w;
    }
    leave_record(m, add_runs(m.s, head, term));
}

/* ---- launches ---- */

static inline int64_t shares_of(const fmm_call *call, int way)
{
    const int64_t items = call->a->nnz + (way == PATH ? call->a->rows : 0);
    return items > SHARE ? ceil_div(items, SHARE) : 1;
}
static inline size_t records_room(const fmm_call *call, int way)
{
    const int64_t blocks = ceil_div(shares_of(call, way), TEAM);
    const bool wide = call->x->dtype == FMM_F64;
    return blocks > 1
               ? (size_t)blocks * (wide ? sizeof(record_of<double>) : sizeof(record_of<float>))
               : 0;
}

/* sums: NULL, or what takes the sums of rows in place of y. */
template <int WAY>
static void launch_segments(const fmm_exec *exec, const fmm_call *call, void *room, void *sums)
{
    for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef typename sum_of<T>::type A;
        segment_args<T> m = {spmv_view<T>(call), NULL, static_cast<record_of<A> *>(room),
                             shares_of(call, WAY), 0};
        m.s.sums = static_cast<A *>(sums);
        m.blocks = ceil_div(m.shares, TEAM);
        if (WAY == SEGMENTED && plan_given(call->a)) m.starts = plan_starts(call->a->plan);
        const dim3 grid((unsigned)m.blocks), rows(blocks_for(call->a->rows));
        const cudaStream_t stream = stream_of(exec);
        const auto kernel = spmv_segments<T, decltype(v), WAY>;
        if (WAY == COORDINATES) {
            spmv_no_entries<T><<<rows, BLOCK, 0, stream>>>(m);
            launch_early(exec->index, stream, kernel, grid, m);
        } else {
            kernel<<<grid, BLOCK, 0, stream>>>(m);
        }
        const int64_t slices = WAY == SEGMENTED ? call->a->rows / SLICE * WARP : 0;
        if (m.blocks > 1 || slices)
            launch_early(exec->index, stream, spmv_join<T, WAY>,
                         dim3(blocks_for(m.blocks > slices ? m.blocks : slices)), m);
    });
}
