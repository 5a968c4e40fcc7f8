/* The kernel of `merge`, `csr_segmented` and `coo`: products first, then rows, in shared memory.
 *
 * A block owns a piece (cuda_pieces.cuh):
 *
 *     1   thread t      entries t, t + 256, ...       8 gathers of x under way; products to `terms`
 *         thread t      rows t, t + 256, ...          where they begin and end, to `begin`, `end`
 *     2   all threads   what the last row has beyond the first 2,048 entries, if it has
 *     3   2^s lanes     row after row                 sums of short rows; long ones go on a list
 *     4   warp w        rows w, w + 8, ... of the list
 *
 *     terms     p p p | p p p p p p p p p p | p | p p          one product for each entry
 *     rows        3           10               1    2  ...     of the piece: s follows from their
 *                                                              mean; the 10 is long, and waits
 *
 * Neighbouring threads read neighbouring entries, whose columns are often neighbours too. The lanes
 * of a row, and so the order of its terms, follow from the piece alone. `csr_segmented` does steps
 * 3 and 4 by a segmented scan (cuda_runs.cuh), which takes as long whatever the rows are.
 *
 * CSR says where rows begin. Of COO, an entry whose row differs from the one before it begins a
 * row, and one that differs from the one behind it ends one; rows that no entry names are empty. So
 * every row of y is written, and nothing clears it before.
 *
 * Merrill and Garland, SC 2016, for the cut; Greathouse and Daga, "Efficient Sparse Matrix-Vector
 * Multiplication on GPUs Using the CSR Storage Format", SC 2014, for products in shared memory. */
#pragma once

#include "cuda_runs.cuh"

/* Entries of a lane beyond which a row waits for a warp. */
enum { LONG = 16 };

/* Who shares the work how. */
enum piece_way { MERGE, SEGMENTED, COORDINATES };

/* What a block knows of its piece. */
template <class A> struct piece_room {
    A terms[PIECE];
    uint16_t begin[PIECE], end[PIECE]; /* of rows, among the terms */
    uint16_t waiting[PIECE / LONG];    /* long rows */
    int waiters;
    A rest; /* of the last row, what it has beyond the terms */
};

/* The products of `count` entries, to shared memory; zeros behind them. */
template <class V, class T, class A>
static __device__ __forceinline__ void multiply(const spmv_args<T> &s, int64_t from, int count,
                                                A *terms)
{
    A term[EACH] = {};
    const int first = threadIdx.x;
    if (first < count)
        products<V, EACH, 1>(s, s.a.idx, from + first, BLOCK, (count - first + BLOCK - 1) / BLOCK,
                             term);
#pragma unroll
    for (int k = 0; k < EACH; k++) terms[first + k * BLOCK] = term[k];
}

/* CSR: where the rows of a piece begin and end among its first `count` entries. */
template <class T, class A>
static __device__ __forceinline__ void find_rows(const spmv_args<T> &s, const plan_start &from,
                                                 int rows, int count, piece_room<A> *room)
{
    for (int r = threadIdx.x; r < rows; r += BLOCK) {
        int64_t begin;
        const int64_t end = row_range(s.a, from.row + r, &begin) + begin;
        room->begin[r] = (uint16_t)clamp(begin - from.entry, 0, count);
        room->end[r] = (uint16_t)clamp(end - from.entry, 0, count);
    }
}

/* COO: the same. An entry of a row that is not among the piece's is nobody's. */
template <class T, class A>
static __device__ __forceinline__ void find_rows_coo(const spmv_args<T> &s, const plan_start &from,
                                                     int rows, int count, piece_room<A> *room)
{
    for (int r = threadIdx.x; r < rows; r += BLOCK) room->begin[r] = room->end[r] = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int at = threadIdx.x + k * BLOCK;
        if (at >= count) break;
        const int32_t *const here = s.row + from.entry + at;
        const int32_t row = __ldg(here);
        const int64_t r = row - from.row;
        if (r < 0 || r >= rows) continue;
        if (at == 0 || __ldg(here - 1) != row) room->begin[r] = (uint16_t)at;
        if (at == count - 1 || __ldg(here + 1) != row) room->end[r] = uint16_t(at + 1);
    }
}

/* 2^shift lanes for each row of the piece, so that a lane has some four terms. Sums go to
 * close(row, sum); long rows go on the list. */
template <class A, class Close>
static __device__ __forceinline__ void sum_short(piece_room<A> *room, int rows, int count,
                                                 Close close)
{
    int shift = 0;
    while (shift < 5 && count >> shift > 6 * rows) shift++;
    const int lanes = 1 << shift, lane = threadIdx.x & (lanes - 1);
    for (int t = threadIdx.x; (t - int(threadIdx.x % WARP)) >> shift < rows; t += BLOCK) {
        const int r = t >> shift;
        const int begin = r < rows ? room->begin[r] : 0, end = r < rows ? room->end[r] : 0;
        const bool is_long = lanes < WARP && end - begin > LONG << shift;
        A sum = A(0);
        if (!is_long)
            for (int k = begin + lane; k < end; k += lanes) sum += room->terms[k];
        for (int far = lanes / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        if (lane || r >= rows) continue;
        if (!is_long) {
            close(r, sum);
        } else { /* of forged rows, which overlap, there may be too many: those are lost */
            const int at = atomicAdd(&room->waiters, 1);
            if (at < PIECE / LONG) room->waiting[at] = (uint16_t)r;
        }
    }
}

/* A warp for each row of the list. */
template <class A, class Close>
static __device__ __forceinline__ void sum_long(piece_room<A> *room, Close close)
{
    const int waiters = min(room->waiters, PIECE / LONG);
    for (int w = threadIdx.x / WARP; w < waiters; w += BLOCK / WARP) {
        const int r = room->waiting[w], end = room->end[r];
        A sum = A(0);
        for (int k = room->begin[r] + threadIdx.x % WARP; k < end; k += WARP) sum += room->terms[k];
        for (int far = WARP / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        if (threadIdx.x % WARP == 0) close(r, sum);
    }
}

/* The same by a scan. Each row marks its first term with its number, plus one. */
template <class A, class Close>
static __device__ __forceinline__ void scan_rows(piece_room<A> *room, int rows, Close close)
{
    __shared__ uint16_t marks[PIECE];
    for (int k = threadIdx.x; k < PIECE; k += BLOCK) marks[k] = 0;
    __syncthreads();
    for (int r = threadIdx.x; r < rows; r += BLOCK) {
        if (room->begin[r] < room->end[r])
            marks[room->begin[r]] = uint16_t(r + 1);
        else
            close(r, A(0));
    }
    __syncthreads();
    int32_t head[EACH];
    A term[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) head[k] = marks[threadIdx.x * EACH + k];
    memcpy(term, room->terms + threadIdx.x * EACH, sizeof term);
    add_runs(head, term, close);
}

template <class T, class V, int WAY>
static __global__ void __launch_bounds__(BLOCK, std::is_same<V, any_type>::value ? 4 : 5)
    spmv_pieces(const __grid_constant__ piece_args<T> m)
{
    typedef typename sum_of<T>::type A;
    __shared__ __align__(16) piece_room<A> room;
    const spmv_args<T> &s = m.s;
    const int64_t k = blockIdx.x, size = m.cut.size;
    let_next_start();
    plan_start from, to;
    bounds_of<WAY == COORDINATES>(m, k, &from, &to);
    const int rows = (int)min(to.row - from.row, int64_t(PIECE));
    /* The item behind the last row says how many of the pieces behind this one that row fills. */
    const int64_t open = to.row - 1, behind_it = to.entry + to.row;
    const int64_t fills = m.cut.cuts ? max(behind_it / size - k, int64_t(0)) : 0;
    const bool goes_on = fills > 1, middle = rows == 0 && fills > 0;
    if (middle) from.entry = clamp(k * size - open, 0, s.a.nnz);
    if (goes_on) to.entry = clamp((k + 1) * size - open, 0, s.a.nnz);
    const int64_t all = rows || middle ? max(to.entry - from.entry, int64_t(0)) : 0;
    const int count = middle ? 0 : (int)min(all, int64_t(PIECE));
    if (threadIdx.x == 0) {
        room.waiters = 0, room.rest = A(0);
        if (m.cut.cuts) m.records[k] = {A(0), (int32_t)open, rows && goes_on ? (int32_t)fills : 0};
    }
    if (rows) {
        multiply<V>(s, from.entry, count, room.terms);
        if constexpr (WAY == COORDINATES)
            find_rows_coo(s, from, rows, count, &room);
        else
            find_rows(s, from, rows, count, &room);
    }
    if (all > count) {
        const int64_t first = from.entry + count + threadIdx.x;
        A rest;
        sum_steps<V, 1>(s, s.a.idx, first, BLOCK,
                        ceil_div(max(to.entry - first, int64_t(0)), BLOCK), &rest);
        rest = block_sum(rest);
        if (threadIdx.x == 0) room.rest = rest;
        if (threadIdx.x == 0 && middle) m.records[k].sum = rest;
    }
    if (!rows) return;
    __syncthreads();
    const auto close = [&](int r, A sum) {
        if (r == rows - 1) sum += room.rest;
        if (r == rows - 1 && goes_on)
            m.records[k].sum = sum;
        else
            write_row(s, from.row + r, sum);
    };
    if constexpr (WAY == SEGMENTED) {
        scan_rows(&room, rows, close);
    } else {
        sum_short(&room, rows, count, close);
        __syncthreads();
        sum_long(&room, close);
    }
}

template <int WAY>
static void launch_way(const fmm_exec *exec, const fmm_call *call, void *room, void *sums)
{
    launch_pieces(exec, call, room, sums,
                  [](auto x, auto v) { return spmv_pieces<decltype(x), decltype(v), WAY>; });
}
