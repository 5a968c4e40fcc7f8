/* SpMV in equal pieces: `merge` and `csr_segmented` of CSR, `coo` of COO.
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
 * Where a piece begins, in rows and in entries, each warp finds by a search that asks 32 places of
 * the merge at once. `csr_segmented` cuts by entries alone, so that a piece has as many ends as it
 * happens to have.
 *
 * In a piece, the block's threads first walk over its rows. CSR: each row marks its first entry as
 * a head in shared memory; COO: entries that differ from the one before are heads, and mark their
 * row. A row without entries is written there, so nothing has to clear y. Then thread t owns the
 * entries 8t .. 8t + 7, counted from an aligned one, and all runs are added up (cuda_runs.cuh):
 *
 *     thread      0                 1                 2
 *     entries   | e e e e e e e e | e e e e e e e e | e e e e ...     two 16-byte loads of columns,
 *     heads     | 5 . . 6 . . . . | . . . . . . . . | 8 . . . ...     8 gathers of x under way
 *
 * Blocks take several pieces one after the other, so that large matrices do not leave more records
 * than one block can join.
 *
 * Merrill and Garland, "Merge-Based Parallel Sparse Matrix-Vector Multiplication", SC 2016, for the
 * cut; there threads, too, cut by rows and entries. The heads of csr_segmented are the segment
 * descriptors of Blelloch et al. 1993 and Sengupta et al. 2007. */
#ifndef FMM_SPMV_CUDA_MERGE_CUH
#define FMM_SPMV_CUDA_MERGE_CUH

#include "cuda_runs.cuh"

/* Entries that a block's threads own at a time, and items of a piece: fewer, since its first entry
 * may be the last of eight. Blocks that one launch should have, and pieces that one block may. */
enum { PLACES = BLOCK * EACH, PIECE = PLACES - EACH, BLOCKS_MOST = 4096 };

/* How a matrix is cut. */
struct pieces {
    int64_t count, each; /* of them all, of a block */
    int by_rows;         /* 1: ends of rows count as items */
};
static inline pieces cut(const fmm_csr *a, int by_rows)
{
    pieces c = {ceil_div(a->nnz + by_rows * a->rows, PIECE), 1, by_rows};
    if (c.count < 1) c.count = 1;
    /* No more than CHAIN, since the sum of an open row takes a term from each. */
    c.each = smaller(ceil_div(c.count, BLOCKS_MOST), CHAIN);
    return c;
}
static inline int64_t blocks_of(const pieces &c) { return ceil_div(c.count, c.each); }

template <class T> struct merge_args {
    spmv_args<T> s;
    run_of<typename sum_of<T>::type> *records;
    pieces cut;
    bool together; /* columns, rows and values allow loads of 16 bytes */
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

/* Where piece k begins. It is known to lie behind `from`, and less than a piece behind it if `near`
 * says so. */
template <class T, bool COO>
static __device__ __forceinline__ place begin_of(const merge_args<T> &m, int64_t k, place from,
                                                 bool near)
{
    const csr_view &a = m.s.a;
    const int by_rows = m.cut.by_rows;
    if (k == 0) return place{0, 0};
    const int64_t items = min(k * PIECE, a.nnz + by_rows * a.rows);
    int64_t low = from.row, high = a.rows;
    if (by_rows) {
        low = max(low, items - a.nnz);
        high = min(high, near ? from.row + PIECE : items);
    }
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

/* The terms of a thread's entries p .. p + 7, as far as they lie in the piece. */
template <class V, class T, class A>
static __device__ __forceinline__ void terms_at(const merge_args<T> &m, int64_t p, place from,
                                                place to, A *term)
{
#pragma unroll
    for (int k = 0; k < EACH; k++) term[k] = A(0);
    if (p >= to.p || p + EACH <= from.p) return;
    /* Of values of any type, eight at once would not fit the registers. */
    constexpr int N = std::is_same<V, any_type>::value ? EACH / 2 : EACH;
    const int64_t left = m.s.a.nnz - p;
#pragma unroll
    for (int k = 0; k < EACH; k += N) {
        if (m.together && left >= EACH)
            products<V, 1, N>(m.s, m.s.a.idx, p + k, 0, 1, term + k);
        else if (left > k)
            products<V, N, 1>(m.s, m.s.a.idx, p + k, 1, left - k, term + k);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (p + k < from.p || p + k >= to.p) term[k] = A(0);
}

/* CSR: the rows of a piece mark their first entries in `marks`, which counts from `base`. */
template <class T>
static __device__ __forceinline__ void mark_heads(const spmv_args<T> &s, place from, place to,
                                                  int64_t base, int32_t *marks)
{
    for (int64_t r = from.row + threadIdx.x; r <= to.row && r < s.a.rows; r += BLOCK) {
        int64_t begin;
        const bool some = row_range(s.a, r, &begin) > 0;
        if (some && begin >= from.p && begin < to.p) marks[begin - base] = int32_t(r) + 1;
        if (!some && r < to.row) write_row(s, r, 0);
    }
}

/* COO: which of the entries p .. p + 7 are heads. They mark their rows, counted from the piece's
 * first. A row outside the matrix is none, and its entry adds nothing. */
template <class T, class A>
static __device__ __forceinline__ void find_heads(const merge_args<T> &m, int64_t p, place from,
                                                  place to, int32_t *marks, int32_t *head, A *term)
{
    const spmv_args<T> &s = m.s;
#pragma unroll
    for (int k = 0; k < EACH; k++) head[k] = 0;
    if (p >= to.p || p + EACH <= from.p) return;
    int32_t row[EACH];
    int32_t last = p > 0 ? __ldg(s.row + p - 1) : -1;
    if (m.together && p + EACH <= s.a.nnz) {
        load_together<int32_t, EACH>(s.row + p, row);
    } else {
#pragma unroll
        for (int k = 0; k < EACH; k++) row[k] = p + k < s.a.nnz ? __ldg(s.row + p + k) : -1;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const bool inside = p + k >= from.p && p + k < to.p;
        const bool there = row[k] >= 0 && row[k] < s.a.rows;
        if (!there) term[k] = A(0);
        if (inside && there && row[k] != last) {
            head[k] = row[k] + 1;
            const int64_t mark = row[k] - from.row;
            if (mark >= 0 && mark <= to.row - from.row) marks[mark] = 1;
        }
        last = row[k];
    }
}

template <class T, class V, bool COO>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_merge(const __grid_constant__ merge_args<T> m)
{
    typedef typename sum_of<T>::type A;
    __shared__ __align__(16) int32_t marks[PLACES]; /* of entries, or of COO's rows */
    const spmv_args<T> &s = m.s;
    const int64_t b = blockIdx.x, first = b * m.cut.each,
                  last = min(first + m.cut.each, m.cut.count);
    let_next_start();
    place from = begin_of<T, COO>(m, first, place{0, 0}, false);
    /* The row that is open before the block is another block's too. */
    run_of<A> open = {A(0), has_begun<T, COO>(m, from) ? int32_t(from.row) + 1 : 0};
    const int32_t shared = open.row;
    if (threadIdx.x == 0 && gridDim.x > 1) m.records[2 * b] = open;
    auto close = [&](const run_of<A> &r) {
        if (r.row && r.row == shared)
            m.records[2 * b] = r;
        else if (r.row)
            write_row(s, r.row - 1, r.sum);
    };
    for (int64_t k = first; k < last; k++) {
        const place to = begin_of<T, COO>(m, k + 1, from, true);
        const int64_t base = from.p & ~int64_t(EACH - 1), p = base + threadIdx.x * EACH;
        for (int q = threadIdx.x; q < PLACES; q += BLOCK) marks[q] = 0;
        int32_t head[EACH];
        A term[EACH];
        __syncthreads();
        if constexpr (!COO) mark_heads(s, from, to, base, marks);
        terms_at<V>(m, p, from, to, term);
        if constexpr (COO) find_heads(m, p, from, to, marks, head, term);
        __syncthreads();
        if constexpr (COO) {
            for (int64_t r = from.row + threadIdx.x; r < to.row; r += BLOCK)
                if (!marks[r - from.row] && r + 1 != open.row) write_row(s, r, 0);
        } else {
            memcpy(head, marks + threadIdx.x * EACH, sizeof head);
        }
        add_runs<BLOCK>(head, term, &open, close);
        from = to;
    }
    if (threadIdx.x) return;
    if (gridDim.x > 1)
        m.records[2 * b + 1] = open;
    else
        close(open);
}

/* A small matrix is one piece, and one launch. */
template <bool COO>
static void launch_pieces(const fmm_exec *exec, const fmm_call *call, int by_rows, void *room,
                          void *sums)
{
    const fmm_csr *a = call->a;
    const edge_view val = view_edges(a, call->val);
    for_types(call->x->dtype, val, [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef decltype(v) V;
        typedef typename sum_of<T>::type A;
        merge_args<T> m = {spmv_view<T>(call), static_cast<run_of<A> *>(room), cut(a, by_rows),
                           false};
        const int64_t blocks = blocks_of(m.cut);
        m.s.sums = static_cast<A *>(sums);
        m.together = lies_at(a->idx, 16) && (!COO || lies_at(m.s.row, 16)) &&
                     (std::is_same<V, any_type>::value || lies_at(val.data, 16));
        spmv_merge<T, V, COO><<<(unsigned)blocks, BLOCK, 0, stream_of(exec)>>>(m);
        if (blocks > 1)
            launch_early(exec->index, stream_of(exec), spmv_join<T>, dim3(1),
                         join_args<T>{m.s, m.records, blocks}, JOIN_BLOCK);
    });
}

#endif
