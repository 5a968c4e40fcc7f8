/* Small rows: a thread for each row of C, as meshes and road networks have them.
 *
 *     row i of A        e0      e1     e2       SMALL_A entries at most
 *     rows of B         3 7 9   4 7    2 3      their columns rise
 *     heads             3       4      2        the least is the next column of C, here 2
 *                       3       4      3        then 3: e0's product and e2's, in this order
 *
 * So the thread merges the rows of B. Columns come out in order, and a sum is complete before the
 * next one begins: there is no table, and nothing is searched or sorted. Of one column the products
 * come in the order of A's entries, so that sums have the bits that they have everywhere.
 *
 * Rows of A up to 5, 7, 9 and SMALL_A entries have code of their own, whose heads stay in
 * registers: a warp takes that of its longest row. */
#ifndef FMM_SPGEMM_CUDA_SMALL_CUH
#define FMM_SPGEMM_CUDA_SMALL_CUH

#include "cuda_products.cuh"

/* Entries of a row of A, at most. */
enum { SMALL_A = 12 };

/* Entries of a row of C, or products, at most: as many steps has a merge. Where rows are so few
 * that they do not fill the card, a long merge would be the last to end. */
static __host__ __device__ __forceinline__ int small_limit(int64_t rows)
{
    return rows < 8192 ? 16 : rows < 65536 ? 32 : 96;
}

/* Which values a merge reads: none, of type A in the order of entries, or any. */
enum small_values { NO_VALUES, PLAIN_VALUES, ANY_VALUES };

/* A load without a branch, since loads behind branches wait for each other. */
#define LOAD_OR(T, type, reg)                                                                      \
    static __device__ __forceinline__ T load_or(const T *from, bool wanted, T other)               \
    {                                                                                              \
        asm("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc." type " %0, [%1];}"             \
            : "+" reg(other)                                                                       \
            : "l"(from), "r"(int(wanted)));                                                        \
        return other;                                                                              \
    }
LOAD_OR(int32_t, "s32", "r")
LOAD_OR(float, "f32", "f")
LOAD_OR(double, "f64", "d")
LOAD_OR(int64_t, "s64", "l")
#undef LOAD_OR

/* The length of row k of B, which begins at *begin; 0 where B has no such row. */
static __device__ __forceinline__ int64_t row_or_none(const csr_view &b, int64_t k, int64_t *begin)
{
    const bool is_row = uint64_t(k) < uint64_t(b.rows);
    const int64_t first = load_or(b.ptr + k, is_row, int64_t(0));
    const int64_t end = clamp(load_or(b.ptr + k + 1, is_row, int64_t(0)), 0, b.nnz);
    *begin = clamp(first, 0, b.nnz);
    return end > *begin ? end - *begin : 0;
}
/* The value of entry p, or 0. */
template <class A, small_values VALUES>
static __device__ __forceinline__ A small_value(const edge_view &v, int64_t p, bool wanted)
{
    if (VALUES == PLAIN_VALUES) return load_or(static_cast<const A *>(v.data) + p, wanted, A(0));
    return wanted && VALUES == ANY_VALUES ? edge_value<A>(v, edge_of(v, p), 0) : A(0);
}

/* Merges the rows of B that a row of A names: `own` entries from p on, K at most. The lanes of a
 * mask go on together, each with a row of its own, until the longest has ended. Heads, places and
 * values are arrays of registers; hence a K that is known, and no loop over them that ends early.
 */
template <int K, class A, small_values VALUES, class Put, class Step>
static __device__ __forceinline__ int
merge_heads(unsigned lanes, const csr_view &a, const csr_view &b, const edge_view &a_val,
            const edge_view &b_val, int64_t p, int own, Put put, Step step)
{
    int32_t heads[K], k[K];
    unsigned at[K], end[K]; /* B has less than 2^32 entries: is_small says so */
    A x[K];
    UNROLLED(e, K) {
        k[e] = load_or(a.idx + p + e, e < own, -1);
        x[e] = small_value<A, VALUES>(a_val, p + e, e < own);
    }
    UNROLLED(e, K) {
        int64_t begin;
        const int64_t length = row_or_none(b, k[e], &begin);
        at[e] = unsigned(begin), end[e] = unsigned(begin + length);
    }
    UNROLLED(e, K) heads[e] = load_or(b.idx + at[e], at[e] < end[e], NO_COLUMN);
    for (int n = 0, steps = 0;;) {
        int32_t column = NO_COLUMN;
        UNROLLED(e, K) column = heads[e] < column ? heads[e] : column;
        const bool more = column != NO_COLUMN;
        if (!__any_sync(lanes, more)) return n;
        A y[K], sum = A(0);
        bool takes[K];
        UNROLLED(e, K) { /* whose products are of this column */
            takes[e] = heads[e] == column && more;
            y[e] = small_value<A, VALUES>(b_val, at[e], takes[e]);
        }
        UNROLLED(e, K) { /* their next heads are asked for before the values are waited for */
            at[e] += takes[e];
            const int32_t next = load_or(b.idx + at[e], takes[e] && at[e] < end[e], NO_COLUMN);
            heads[e] = takes[e] ? next : heads[e];
        }
        UNROLLED(e, K) sum = takes[e] ? multiply_add(x[e], y[e], sum) : sum;
        if (more) put(n++, column, sum);
        step(++steps);
    }
}

/* Calls put(n, column, sum) for entry n of the row of C, n = 0, 1, ..., and returns how many there
 * are; lanes call step(n) together after each. Where columns of B fall, because B has changed,
 * columns of C repeat; still every step takes a product at least. */
template <class A, small_values VALUES, class Put, class Step>
static __device__ __forceinline__ int
merge_row(unsigned lanes, const csr_view &a, const csr_view &b, const edge_view &a_val,
          const edge_view &b_val, int64_t p, int own, Put put, Step step)
{
    const auto all_up_to = [&](int most) { return __all_sync(lanes, own <= most); };
    if (all_up_to(5))
        return merge_heads<5, A, VALUES>(lanes, a, b, a_val, b_val, p, own, put, step);
    if (all_up_to(7))
        return merge_heads<7, A, VALUES>(lanes, a, b, a_val, b_val, p, own, put, step);
    if (all_up_to(9))
        return merge_heads<9, A, VALUES>(lanes, a, b, a_val, b_val, p, own, put, step);
    return merge_heads<SMALL_A, A, VALUES>(lanes, a, b, a_val, b_val, p, own, put, step);
}

/* Whether a row of A with `own` entries and `most` of C, or products, is small. */
static __device__ __forceinline__ bool is_small(const csr_view &a, const csr_view &b,
                                                const int64_t *schedule, int64_t own, int64_t most)
{
    return own <= SMALL_A && most <= small_limit(a.rows) && b.nnz <= UINT32_MAX &&
           __ldg(schedule) == 1;
}

/* Whether the value of entry p is number p, of the type of sums. */
static inline bool is_plain(const fmm_csr *m, const fmm_dense *val, fmm_dtype result)
{
    const fmm_dtype sums = result == FMM_F64 ? FMM_F64 : FMM_F32;
    return !m->eid && val && val->data && val->dtype == sums && val->row_stride == 1;
}

/* What kernels of the numeric phase take. Rows are merged where C has all columns and they rise, as
 * a mask's need not. */
static inline numeric_args numeric_of(const fmm_call *call, spgemm_where where)
{
    const fmm_spgemm *of = fmm_spgemm_of(call);
    return numeric_args{view_csr(call->a),
                        view_csr(of->b),
                        view_csr(of->c),
                        view_edges(call->a, call->val),
                        view_edges(of->b, &of->b_val),
                        of->schedule,
                        view_output(of->c, call->y),
                        where,
                        of->masked,
                        !of->masked && (where == SPGEMM_AUTO || where == SPGEMM_IN_SORTED),
                        is_plain(of->b, &of->b_val, call->y->dtype),
                        is_plain(call->a, call->val, call->y->dtype)};
}

/* Computes the small rows of C, whose ptr is known: their values unless `out` has no data, and
 * their columns where idx is given. */
void fmm_spgemm_small(const fmm_exec *exec, const numeric_args &s, int32_t *idx);

#endif
