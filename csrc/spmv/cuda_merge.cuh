/* The kernel of `merge` (CSR) and `coo`: products first, then rows, in shared memory.
 *
 * A block owns neighbouring pieces (cuda_pieces.cuh), and takes one after the other:
 *
 *     1   thread t      entries t, t + 256, ...       8 gathers of x under way; products to `terms`
 *         thread t      rows t, t + 256, ...          where they begin and end, to `spans`
 *     2   2^s lanes     row after row                 sums of short rows; long ones go on a list
 *     3   warp w        rows w, w + 8, ... of the list
 *
 *     terms     p p p | p p p p p p p p p p | p | p p          one product for each entry
 *     rows        3           10               1    2  ...     of the piece: s follows from their
 *                                                              mean; the 10 is long, and waits
 *
 * Neighbouring threads read neighbouring entries, whose columns are often neighbours too. A row
 * that goes on in the next piece is carried there, and one that goes on in another block becomes a
 * record. The lanes of a row, and so the order of its terms, follow from the piece alone.
 *
 * CSR says where rows begin. Of COO, an entry whose row differs from the one before it begins a
 * span, and one that differs from the one behind it ends one; rows that no entry names have an
 * empty span. So every row of y is written, and nothing clears it before.
 *
 * Merrill and Garland, SC 2016, for the cut; Greathouse and Daga, "Efficient Sparse Matrix-Vector
 * Multiplication on GPUs Using the CSR Storage Format", SC 2014, for products in shared memory. */
#pragma once

#include "cuda_pieces.cuh"

/* Entries of a lane beyond which a row waits for a warp. */
enum { LONG = 16 };

/* What a block knows of the piece that it works on. */
template <class A> struct piece_room {
    A terms[PIECE];
    uint16_t begin[PIECE + 1], end[PIECE + 1]; /* of rows, among the terms */
    uint16_t waiting[PIECE / LONG];            /* long rows */
    int waiters;
    A carry[2]; /* what the row has that is open before the piece, and behind it */
};

/* CSR: where the rows of a piece begin and end, as far as they lie in it. */
template <class T, class A>
static __device__ __forceinline__ void find_spans(const spmv_args<T> &s, place from, place to,
                                                  int rows, piece_room<A> *room)
{
    const int64_t last = to.p - from.p;
    for (int r = threadIdx.x; r < rows; r += BLOCK) {
        int64_t begin;
        const int64_t length = row_range(s.a, from.row + r, &begin);
        room->begin[r] = (uint16_t)clamp(begin - from.p, 0, last);
        room->end[r] = (uint16_t)clamp(begin + length - from.p, 0, last);
    }
}

/* COO: the same. An entry of a row that is not among the piece's is nobody's. */
template <class T, class A>
static __device__ __forceinline__ void find_spans_coo(const spmv_args<T> &s, place from, place to,
                                                      int rows, piece_room<A> *room)
{
    for (int r = threadIdx.x; r < rows; r += BLOCK) room->begin[r] = room->end[r] = 0;
    __syncthreads();
    const int count = int(to.p - from.p);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int at = threadIdx.x + k * BLOCK;
        if (at >= count) break;
        const int32_t *const here = s.row + from.p + at;
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

template <class T, class V, bool COO>
static __global__ void __launch_bounds__(BLOCK, 8)
    spmv_merge(const __grid_constant__ merge_args<T> m)
{
    typedef typename sum_of<T>::type A;
    __shared__ piece_room<A> room;
    const spmv_args<T> &s = m.s;
    const int64_t b = blockIdx.x, first = b * m.cut.each,
                  last = min(first + m.cut.each, m.cut.count);
    let_next_start();
    place from, to = {0, 0};
    int32_t shared = 0; /* the row that is open before the block, plus one: another block's too */
    if (threadIdx.x == 0) room.waiters = 0, room.carry[first & 1] = A(0);
    for (int64_t k = first; k < last; k++) {
        bounds_of<T, COO>(m, k, first, last, &from, &to);
        if (k == first) {
            shared = has_begun<T, COO>(m, from) ? int32_t(from.row) + 1 : 0;
            if (threadIdx.x == 0 && gridDim.x > 1) m.records[2 * b] = run_of<A>{A(0), shared};
        }
        const int rows = (int)min(to.row - from.row + 1, s.a.rows - from.row);
        if constexpr (COO)
            find_spans_coo(s, from, to, rows, &room);
        else
            find_spans(s, from, to, rows, &room);
        multiply<V>(s, from, to, room.terms);
        __syncthreads();
        auto close = [&](int r, A sum) {
            const int64_t row = from.row + r;
            if (r == 0) sum += room.carry[k & 1];
            if (row == to.row)
                room.carry[~k & 1] = sum;
            else if (row + 1 == shared)
                m.records[2 * b] = run_of<A>{sum, shared};
            else
                write_row(s, row, sum);
        };
        sum_short(&room, rows, int(to.p - from.p), close);
        __syncthreads();
        sum_long(&room, close);
        __syncthreads();
        if (threadIdx.x == 0) room.waiters = 0;
    }
    if (threadIdx.x == 0 && gridDim.x > 1)
        m.records[2 * b + 1] = has_begun<T, COO>(m, to)
                                   ? run_of<A>{room.carry[last & 1], int32_t(to.row) + 1}
                                   : run_of<A>{A(0), 0};
}

template <bool COO>
static void launch_merge(const fmm_exec *exec, const fmm_call *call, void *room, void *sums)
{
    launch_pieces(exec, call, 1, room, sums,
                  [](auto x, auto v) { return spmv_merge<decltype(x), decltype(v), COO>; });
}
