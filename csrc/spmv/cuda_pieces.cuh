/* SpMV in equal pieces of whole rows: how a matrix is cut, for `merge`, `coo` and `csr_segmented`.
 *
 * Entries and ends of rows, merged in order, are a list of nnz + rows items: a row's entries, then
 * its end. Every `size` items there is a border, and the rows that begin between two borders are a
 * piece, which has a block. So a block has few entries where rows are empty, and few rows where
 * they are long; and the rows of a piece are its own, from the first entry to the last:
 *
 *     row 0: a b c        a b c 0 | d 1 2 e | f g h i | j 3 k 4      size = 4 items
 *     row 1: d                    |         |         |              a letter is an entry,
 *     row 2: -            row 0   | 1, 2, 3 |         | 4            a number the end of its row
 *     row 3: e f g h i j
 *     row 4: k            block 1 goes on to j, or leaves f .. j to block 2
 *
 * A row that goes on for a while behind its piece is its block's. If it fills all of the next piece
 * and more, that one has no rows. Of a matrix of many items such a row is then cut (`cuts`): every
 * block of the pieces that it fills adds up what lies there, the last of them up to the row's end,
 * and leaves a record; a second launch adds up the records of a row in their order. A matrix of few
 * items needs no second launch, which would take longer than a long row does.
 *
 * The plan of a CSR lists where pieces begin, since a search is a chain of loads that a small
 * matrix has nothing to hide behind. Without a plan, and in COO, a warp searches and asks 32 places
 * at once. No two blocks write one row, and no order depends on which block comes first.
 *
 * Merrill and Garland, "Merge-Based Parallel Sparse Matrix-Vector Multiplication", SC 2016, for the
 * list and its search; there the border itself cuts rows. */
#pragma once

#include "../matrix/cuda_plan.cuh"
#include "cuda.cuh"

/* Entries of a thread that it asks for at once; entries of a block. */
enum { EACH = 8, PIECE = BLOCK * EACH };
static_assert(int(PIECE) >= int(LARGEST_PIECE), "a block has room for the rows of a piece");

/* Items below which no row is cut. */
enum { FEW_ITEMS = 1 << 18 };

/* How a matrix is cut. */
struct pieces {
    int64_t count;
    int size; /* items of a piece */
    bool cuts;
};
static inline pieces cut(const fmm_csr *a)
{
    return pieces{plan_pieces(a->rows, a->nnz), plan_piece(a->rows, a->nnz),
                  a->rows + a->nnz >= FEW_ITEMS};
}

/* What a block leaves of a row that is cut. */
template <class A> struct record_of {
    A sum;
    int32_t row, pieces; /* where the row begins: its number, and its pieces; else 0 pieces */
};

template <class T> struct piece_args {
    spmv_args<T> s;
    const plan_start *starts; /* of the plan, or NULL */
    record_of<typename sum_of<T>::type> *records;
    pieces cut;
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

/* The first row that begins at item k * size or behind it, and its first entry, found by a warp. */
template <bool COO, class T>
static __device__ __forceinline__ plan_start search_start(const piece_args<T> &m, int64_t k)
{
    const csr_view &a = m.s.a;
    if (k >= m.cut.count) return plan_start{a.nnz, a.rows};
    const int64_t item = k * m.cut.size;
    const int64_t low = max(item - a.nnz, int64_t(0)), high = min(item, a.rows);
    const int64_t row = search(low, high, [&](int64_t r) {
        if constexpr (COO) return __ldg(m.s.row + item - r - 1) >= r;
        return clamp(__ldg(a.ptr + r), 0, a.nnz) + r < item;
    });
    if (row >= a.rows) return plan_start{a.nnz, a.rows};
    if constexpr (!COO) return plan_start{clamp(__ldg(a.ptr + row), 0, a.nnz), row};
    const auto before = [&](int64_t p) { return __ldg(m.s.row + p) < row; };
    return plan_start{search(max(item - row, int64_t(0)), a.nnz, before), row};
}

/* Where a piece begins and where the next one does, inside the matrix whatever the plan holds. */
template <bool COO, class T>
static __device__ __forceinline__ void bounds_of(const piece_args<T> &m, int64_t k,
                                                 plan_start *from, plan_start *to)
{
    __shared__ plan_start found[2];
    const csr_view &a = m.s.a;
    if (m.starts) {
        *from = m.starts[k], *to = m.starts[k + 1];
    } else {
        const int warp = threadIdx.x / WARP;
        if (warp < 2) {
            const plan_start start = search_start<COO>(m, k + warp);
            if (threadIdx.x % WARP == 0) found[warp] = start;
        }
        __syncthreads();
        *from = found[0], *to = found[1];
    }
    from->row = clamp(from->row, 0, a.rows), to->row = clamp(to->row, from->row, a.rows);
    from->entry = clamp(from->entry, 0, a.nnz), to->entry = clamp(to->entry, 0, a.nnz);
}

/* What a row adds up to: into the sums of HYB, or finished. */
template <class T>
static __device__ __forceinline__ void write_row(const spmv_args<T> &s, int64_t i,
                                                 typename sum_of<T>::type sum)
{
    if (s.sums)
        s.sums[i] = sum;
    else
        finish(s, i, sum);
}

/* The second launch. Thread k asks whether a cut row begins in piece k, and its warp adds up the
 * records of each row that does. */
template <class T>
static __global__ void __launch_bounds__(BLOCK) spmv_join(const __grid_constant__ piece_args<T> m)
{
    typedef typename sum_of<T>::type A;
    const int64_t k = this_thread(), lane = threadIdx.x % WARP;
    wait_for_previous();
    const record_of<A> mine = k < m.cut.count ? m.records[k] : record_of<A>{A(0), 0, 0};
    for (unsigned heads = __ballot_sync(ALL, mine.pieces > 0); heads; heads &= heads - 1) {
        const int from = __ffs(heads) - 1;
        const int64_t first = k - lane + from, row = __shfl_sync(ALL, mine.row, from),
                      pieces = __shfl_sync(ALL, mine.pieces, from);
        folded<A> total;
        total.start();
        for (int64_t q = lane; q < min(pieces, m.cut.count - first); q += WARP)
            total.fold(m.records[first + q].sum);
        A sum = total.total();
        for (int far = WARP / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        if (lane == 0) write_row(m.s, row, sum);
    }
}

/* Launches kernel(T(), V()) over the pieces, and the join where rows may be cut. */
template <class Kernel>
static void launch_pieces(const fmm_exec *exec, const fmm_call *call, void *room, void *sums,
                          Kernel kernel)
{
    for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef typename sum_of<T>::type A;
        piece_args<T> m = {spmv_view<T>(call),
                           plan_given(call->a) ? plan_starts(call->a->plan) : NULL,
                           static_cast<record_of<A> *>(room), cut(call->a)};
        m.s.sums = static_cast<A *>(sums);
        const auto run = kernel(x, v);
        run<<<(unsigned)m.cut.count, BLOCK, 0, stream_of(exec)>>>(m);
        if (m.cut.cuts)
            launch_early(exec->index, stream_of(exec), spmv_join<T>, dim3(blocks_for(m.cut.count)),
                         m);
    });
}

/* A record of each piece, if rows may be cut. */
static inline size_t pieces_room(const fmm_call *call)
{
    const pieces c = cut(call->a);
    const bool wide = call->x->dtype == FMM_F64;
    return c.cuts ? (size_t)c.count * (wide ? sizeof(record_of<double>) : sizeof(record_of<float>))
                  : 0;
}
