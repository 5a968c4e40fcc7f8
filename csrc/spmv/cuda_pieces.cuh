/* SpMV in equal pieces: how a matrix is cut, for `merge`, `coo` and `csr_segmented`.
 *
 * Ends of rows and entries, merged in order, are a list of rows + nnz items: a row's entries, then
 * its end. Cut into equal pieces, it gives every block the same work whatever the matrix is: a
 * piece has few entries where rows are empty, and few rows where they are long.
 *
 *     row 0: a b c        a b c 0 | d 1 2 e | f g h i | j 3          piece = 4 items
 *     row 1: d                    |         |         |              a letter is an entry,
 *     row 2: -            piece 0 | piece 1 | piece 2 | piece 3      a number the end of its row
 *     row 3: e f g h i j
 *
 * Where a piece begins, in rows and in entries, a warp finds by a search that asks 32 places of the
 * merge at once. `csr_segmented` cuts by entries alone, so that a piece has as many ends as it
 * happens to have.
 *
 * Blocks take several pieces one after the other, so that large matrices do not leave more records
 * (cuda_runs.cuh) than one block can join.
 *
 * Merrill and Garland, "Merge-Based Parallel Sparse Matrix-Vector Multiplication", SC 2016. */
#pragma once

#include "cuda_runs.cuh"

/* Items of a piece, at most; and of small matrices, whose pieces should occupy more of the card.
 * Blocks that one launch should have. */
enum { PIECE = BLOCK * EACH, SMALL_PIECE = 512, SMALL = 1 << 18, BLOCKS_MOST = 8192 };

/* How a matrix is cut. */
struct pieces {
    int64_t count, each; /* of them all, of a block */
    int size;            /* items of a piece */
    int by_rows;         /* 1: ends of rows count as items */
};
static inline pieces cut(const fmm_csr *a, int by_rows)
{
    const int64_t items = a->nnz + by_rows * a->rows;
    pieces c = {1, 1, items < SMALL ? SMALL_PIECE : PIECE, by_rows};
    if (items > c.size) c.count = ceil_div(items, c.size);
    /* No more than CHAIN, since the sum of an open row takes a term from each. */
    c.each = smaller(ceil_div(c.count, BLOCKS_MOST), CHAIN);
    return c;
}
static inline int64_t blocks_of(const pieces &c) { return ceil_div(c.count, c.each); }

template <class T> struct merge_args {
    spmv_args<T> s;
    run_of<typename sum_of<T>::type> *records;
    pieces cut;
};

struct place {
    int64_t row, p;
};

/* The first number in [low, high] for which before() is false, found by a warp: it is true up to
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

/* Where piece k begins. */
template <class T, bool COO>
static __device__ __forceinline__ place begin_of(const merge_args<T> &m, int64_t k)
{
    const csr_view &a = m.s.a;
    const int by_rows = m.cut.by_rows;
    if (k == 0) return place{0, 0};
    const int64_t items = min(k * m.cut.size, a.nnz + by_rows * a.rows);
    const int64_t low = by_rows ? max(items - a.nnz, int64_t(0)) : 0;
    const int64_t high = by_rows ? min(items, a.rows) : a.rows;
    const int64_t row = search(low, high, [&](int64_t r) {
        if constexpr (COO) return __ldg(m.s.row + items - r - 1) > r;
        return clamp(__ldg(a.ptr + r + 1), 0, a.nnz) <= items - by_rows * (r + 1);
    });
    return place{row, items - by_rows * row};
}

/* Whether the row at a place has entries before it. */
template <class T, bool COO>
static __device__ __forceinline__ bool has_begun(const merge_args<T> &m, place at)
{
    if (at.row >= m.s.a.rows || at.p == 0) return false;
    if constexpr (COO) return __ldg(m.s.row + at.p - 1) == at.row;
    return __ldg(m.s.a.ptr + at.row) < at.p;
}

/* Where piece k begins and ends. A block finds the bounds of several pieces at once, a warp each;
 * they stay in shared memory until it comes to the pieces behind them. */
template <class T, bool COO>
static __device__ __forceinline__ void bounds_of(const merge_args<T> &m, int64_t k, int64_t first,
                                                 int64_t last, place *from, place *to)
{
    enum { WARPS = BLOCK / WARP };
    __shared__ place starts[WARPS];
    const int ahead = int(k - first) % (WARPS - 1), warp = threadIdx.x / WARP;
    if (ahead == 0) {
        const place found = begin_of<T, COO>(m, min(k + warp, last));
        if (threadIdx.x % WARP == 0) starts[warp] = found;
        __syncthreads();
    }
    *from = starts[ahead], *to = starts[ahead + 1];
}

/* The products of a piece's entries, to shared memory. Neighbouring threads take neighbouring
 * entries, whose columns are often neighbours, too. */
template <class V, class T, class A>
static __device__ __forceinline__ void multiply(const spmv_args<T> &s, place from, place to,
                                                A *terms)
{
    const int64_t first = from.p + threadIdx.x;
    if (first >= to.p) return;
    const int count = (int(to.p - first) + BLOCK - 1) / BLOCK;
    A term[EACH];
    products<V, EACH, 1>(s, s.a.idx, first, BLOCK, count, term);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < count) terms[threadIdx.x + k * BLOCK] = term[k];
}

/* Launches a kernel over the pieces, and the one that joins their records. A small matrix is one
 * piece, and one launch. kernel(T(), V()) gives the first kernel. */
template <class Kernel>
static void launch_pieces(const fmm_exec *exec, const fmm_call *call, int by_rows, void *room,
                          void *sums, Kernel kernel)
{
    for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef typename sum_of<T>::type A;
        merge_args<T> m = {spmv_view<T>(call), static_cast<run_of<A> *>(room),
                           cut(call->a, by_rows)};
        const int64_t blocks = blocks_of(m.cut);
        m.s.sums = static_cast<A *>(sums);
        const auto run = kernel(x, v);
        run<<<(unsigned)blocks, BLOCK, 0, stream_of(exec)>>>(m);
        if (blocks > 1)
            launch_early(exec->index, stream_of(exec), spmv_join<T>, dim3(1),
                         join_args<T>{m.s, m.records, blocks}, JOIN_BLOCK);
    });
}

/* Two records of each block, if there is more than one. */
static inline size_t pieces_room(const fmm_call *call, int by_rows)
{
    const int64_t blocks = blocks_of(cut(call->a, by_rows));
    return blocks > 1 ? records_bytes(blocks, call->x->dtype == FMM_F64) : 0;
}
