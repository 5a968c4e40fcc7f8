/* Messages that stay with their entries, for one element type T.
 *
 * A warp takes 32 neighbouring entries, whatever rows they lie in. Each lane looks up one of them:
 * its row, by a search in ptr, where an operand belongs to rows, its column and its edge. Then the
 * lanes tell each other.
 *
 *     messages_kept      out[e,:] = lhs op rhs               COLS lanes span the features of an
 *                                                            entry, 32 / COLS entries at once
 *     messages_summed    out[e,c] = sum over the features    `lanes` lanes share the terms of an
 *                        that out lacks, for each other c    entry, and meet in a tree
 *
 *     look up            | p + 0 | p + 1 | ... | p + 31 |    a lane each
 *     take               | p + 0         | p + 1        |    here with 16 lanes for an entry, next
 *                        | p + 2         | p + 3        |    and so on
 *
 * An entry belongs to one warp, and its terms meet in one order: the same bits every time. No
 * accumulator adds more than 512 terms. An entry whose column lies outside the matrix gets 0; an
 * edge that does not exist is not written. */
#pragma once

#include "../cuda/search.cuh"
#include "cuda_terms.cuh"

/* Where an entry stands; the edge is -1 where there is nothing to write, the column where there is
 * nothing to read. */
struct place {
    int32_t row, col, edge;
};

template <class T> static __device__ __forceinline__ place look_up(const messages_args<T> &s)
{
    const int64_t p = this_thread();
    place w = {0, -1, -1};
    if (p >= s.a.nnz || !s.a.rows) return w;
    const int64_t edge = edge_at(s.val, p);
    if (is_edge(s.val, edge)) w.edge = int32_t(edge);
    w.col = s.cols ? __ldg(s.a.idx + p) : 0;
    if ((uint32_t)w.col >= (uint32_t)s.a.cols) w.col = -1;
    if (s.rows) w.row = int32_t(row_of(s.a, p));
    return w;
}

/* The place that a lane of the group of `lanes` looked up. */
static __device__ __forceinline__ place told(const place &mine, int lane, int lanes)
{
    return place{__shfl_sync(ALL, mine.row, lane, lanes), __shfl_sync(ALL, mine.col, lane, lanes),
                 __shfl_sync(ALL, mine.edge, lane, lanes)};
}

/* The element of an operand at `from` in its row 0, in the row that belongs to a place. */
template <class T>
static __device__ __forceinline__ const T *element_at(const side &s, const char *from,
                                                      const place &w)
{
    const int32_t row = s.at == FMM_AT_ROW ? w.row : s.at == FMM_AT_COL ? w.col : w.edge;
    return reinterpret_cast<const T *>(from ? row_at(from, uint32_t(row), s.row) : NULL);
}

/* Tile by tile of the features; where each operand has its pack is found once a tile. Of the 32
 * entries SPLIT are taken at once, and FLY such steps are in flight. */
template <class T, int VEC, int COLS, int N, int VEC_RHS>
static __global__ void __launch_bounds__(BLOCK, 4)
    messages_kept(const __grid_constant__ messages_args<T> s)
{
    typedef typename sum_of<T>::type A;
    constexpr int SPLIT = WARP / COLS, FLY = COLS < 4 ? COLS : 4;
    const int lane = threadIdx.x % WARP, slot = lane / COLS;
    const place mine = look_up(s);
    for (int32_t tile = 0; tile < s.features; tile += COLS * VEC) {
        const int32_t column = tile + lane % COLS * VEC;
        const bool inside = column < s.features;
        const char *from[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            from[k] = s.of[k].data;
            if (inside && from[k]) from[k] += offset_of<T>(s.of[k], s.axis, column);
        }
        for (int c = 0; c < COLS; c += FLY) {
            operands<T, VEC, VEC_RHS, N> given[FLY];
            place w[FLY];
#pragma unroll
            for (int f = 0; f < FLY; f++) {
                w[f] = told(mine, (c + f) * SPLIT + slot, WARP);
                given[f].load_from(inside && w[f].col >= 0 && w[f].edge >= 0,
                                   [&](int k) { return element_at<T>(s.of[k], from[k], w[f]); });
            }
#pragma unroll
            for (int f = 0; f < FLY; f++) {
                A term[VEC];
                const bool counts = given[f].terms(s.op, s.mask_op, term) && w[f].col >= 0;
#pragma unroll
                for (int v = 0; v < VEC; v++) term[v] = counts ? term[v] : A(0);
                if (inside && w[f].edge >= 0)
                    store<T, VEC>(s.out + w[f].edge * s.out_row + column, term);
            }
        }
    }
}

/* For each feature that out has, terms EACH * lanes at a time: their places in the operands serve
 * all entries of the warp, which follow inside. The sums of a round lie in all lanes of a group;
 * the one whose entry it is keeps it, and begins a new part after 512 of them. */
template <class T, int N>
static __global__ void __launch_bounds__(BLOCK, 3)
    messages_summed(const __grid_constant__ messages_args<T> s)
{
    typedef typename sum_of<T>::type A;
    constexpr int EACH = 4; /* terms of a lane at once */
    const int lane = threadIdx.x % s.lanes;
    const place mine = look_up(s);
    for (int32_t c = 0; c < s.features; c++) {
        A total = 0, part = 0; /* of the lane's own entry */
        int parts = 0;
        for (int64_t q = lane; q < s.sums + lane; q += EACH * s.lanes) {
            const char *from[N][EACH];
#pragma unroll
            for (int k = 0; k < N; k++)
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const int64_t at = min(q + i * s.lanes, int64_t(s.sums - 1));
                    from[k][i] = s.of[k].data;
                    if (from[k][i])
                        from[k][i] += offset_of<T>(s.of[k], s.kept, c) +
                                      offset_of<T>(s.of[k], s.lost, int32_t(at));
                }
#pragma unroll 2
            for (int r = 0; r < s.lanes; r++) {
                const place w = told(mine, r, s.lanes);
                operands<T, 1, 1, N> given[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    given[i].load_from(
                        w.col >= 0 && w.edge >= 0 && q + i * s.lanes < s.sums,
                        [&](int k) { return element_at<T>(s.of[k], from[k][i], w); });
                A sum = 0, term;
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (given[i].terms(s.op, s.mask_op, &term) && w.col >= 0 &&
                        q + i * s.lanes < s.sums)
                        sum += term;
                for (int d = s.lanes / 2; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
                if (r == lane) part += sum;
            }
            if (++parts % CHAIN == 0) total += part, part = 0;
        }
        total += part;
        if (mine.edge >= 0) store<T, 1>(s.out + mine.edge * s.out_row + c, &total);
    }
}
