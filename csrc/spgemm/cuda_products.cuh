/* The products of a row of C, added to its table in the order of A's entries.
 *
 *     by a warp     one row of B after the other, or several short ones at once, ranked
 *     by a block    a chunk of A's entries, whose products are numbered, a batch at a time:
 *
 *                       threads      t0 t1 t2 t3 t4 t5 t6 t7     all load b and find their sums
 *                       entry of A   e0 e0 e0 e0 e1 e1 e2 e2
 *                       turns        e0's add | e1's add | e2's add
 *
 * Where B's columns rise, no two products of one entry share a sum, so a turn is a plain addition.
 * Where they repeat, and where rows of B are so short that an entry is not worth a turn, warps take
 * turns, and lanes that share a sum add by rank. The order of terms is the same in each case. */
#ifndef FMM_SPGEMM_CUDA_PRODUCTS_CUH
#define FMM_SPGEMM_CUDA_PRODUCTS_CUH

#include "cuda_table.cuh"

struct numeric_args {
    csr_view a, b, c;
    edge_view a_val, b_val;
    const int64_t *schedule;
    entry_output out;
    spgemm_where where;
    bool masked;
};

/* A term of column j at entry q of B, or none where j lies outside. */
template <class A>
static __device__ __forceinline__ term<A> term_of(const numeric_args &s, const table<A> &t,
                                                  int32_t j, A x, A y)
{
    const bool inside = uint32_t(j) < uint32_t(s.b.cols);
    return term<A>{inside ? t.find(j) : -1, 0, x, y};
}
template <class A> static __device__ __forceinline__ A value_of(const numeric_args &s, int64_t q)
{
    return edge_value<A>(s.b_val, edge_of(s.b_val, q), 0);
}

/* Adds one row of B, entries [q, q + length), by a warp. No column stands twice in it. */
template <class A>
static __device__ __forceinline__ void add_row(const numeric_args &s, table<A> *t, int64_t q,
                                               int64_t length, A x)
{
    enum { EACH = 2 }; /* loads that are under way together */
    for (int64_t first = 0; first < length; first += EACH * WARP) {
        int32_t j[EACH];
        A y[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const int64_t at = first + u * WARP + threadIdx.x % WARP;
            j[u] = at < length ? __ldg(s.b.idx + q + at) : -1;
            y[u] = at < length ? value_of<A>(s, q + at) : A(0);
        }
#pragma unroll
        for (int u = 0; u < EACH && first + u * WARP < length; u++) {
            const term<A> one = term_of(s, *t, j[u], x, y[u]);
            if (one.slot >= 0) t->add(one.slot, one.x, one.y);
        }
    }
}

/* Whether sums are put aside before entry number `at` of A's row. */
template <class A> static __device__ __forceinline__ bool is_block(const table<A> &t, int64_t at)
{
    return t.is_long && !t.counted && at && at % SPGEMM_TERMS == 0;
}

/* The products of row i, by a warp: several short rows of B at once, or one row after the other. */
template <class A>
static __device__ __forceinline__ void add_by_warp(const numeric_args &s, table<A> *t, int64_t i,
                                                   bool repeats)
{
    const int lane = threadIdx.x % WARP;
    int64_t begin;
    const int64_t end = row_range(s.a, i, &begin) + begin;
    for (int64_t p = begin; p < end; p += WARP) {
        if (is_block(*t, p - begin)) put_aside<1>(*t);
        const row_of_b own(s.a, s.b, p + lane, end);
        const A factor = p + lane < end ? edge_value<A>(s.a_val, edge_of(s.a_val, p + lane), 0) : 0;
        const int held = (int)(end - p < WARP ? end - p : WARP);
        const int lanes = lanes_for(own.length), rows = WARP / lanes;
        for (int e = 0; e < held; e += rows) {
            const int from = e + lane / lanes;
            const int64_t q = __shfl_sync(ALL, own.begin, from % WARP);
            const int64_t length = __shfl_sync(ALL, own.length, from % WARP);
            const A x = __shfl_sync(ALL, factor, from % WARP);
            if (lanes == WARP && !repeats) {
                add_row(s, t, q, length, x);
                __syncwarp();
                continue;
            }
            const int64_t longest = lanes == WARP ? length : lanes;
            for (int64_t at = lane % lanes; at - lane % lanes < longest; at += lanes) {
                const bool inside = from < WARP && at < length;
                const int32_t j = inside ? __ldg(s.b.idx + q + at) : -1;
                term<A> one = term_of(s, *t, j, x, inside ? value_of<A>(s, q + at) : A(0));
                one.rank = rank_in_warp(one.slot);
                add_in_order(t, one);
            }
        }
    }
}

/* The products of a chunk whose rows of B are short, or whose columns repeat, by a block: all
 * products of the chunk are numbered, and warp after warp adds, in the order of lanes. */
template <int WARPS, class A>
static __device__ __forceinline__ void add_numbered(const numeric_args &s, table<A> *t,
                                                    const chunk<WARPS, A> *room, int64_t products)
{
    typedef group<WARPS> g;
    enum { EACH = 2, TURN = WARP * EACH }; /* products of a lane, of a warp */
    for (int64_t first = 0; first < products; first += g::THREADS * EACH) {
        term<A> terms[EACH];
        int32_t columns[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) { /* loads first, so that they are under way together */
            const int64_t product = first + g::warp() * TURN + u * WARP + g::lane();
            columns[u] = -1;
            if (product >= products) continue;
            const int e = entry_of<WARPS, A>(room, product);
            const int64_t q = room->origin[e] + product;
            columns[u] = __ldg(s.b.idx + q);
            terms[u].x = room->factor[e];
            terms[u].y = value_of<A>(s, q);
        }
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            terms[u] = term_of(s, *t, columns[u], terms[u].x, terms[u].y);
            terms[u].rank = rank_in_warp(terms[u].slot);
        }
        const int64_t turns = ceil_div(products - first, TURN);
        take_turns<WARPS, EACH>(t, terms, turns < WARPS ? (int)turns : WARPS);
    }
}

/* The products of a chunk by a block, where no column stands twice in a row of B: all threads load
 * products, and those of one entry of A after the other are added. */
template <int WARPS, class A>
static __device__ __forceinline__ void add_by_entry(const numeric_args &s, table<A> *t,
                                                    const chunk<WARPS, A> *room, int64_t products)
{
    typedef group<WARPS> g;
    enum { EACH = 4, BATCH = g::THREADS * EACH };
    for (int64_t first = 0; first < products; first += BATCH) {
        term<A> terms[EACH]; /* the rank is the number of the entry */
        int32_t columns[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const int64_t product = first + u * g::THREADS + g::thread();
            columns[u] = -1;
            if (product >= products) continue;
            const int e = entry_of<WARPS, A>(room, product);
            const int64_t q = room->origin[e] + product;
            columns[u] = __ldg(s.b.idx + q);
            terms[u].rank = e;
            terms[u].x = room->factor[e];
            terms[u].y = value_of<A>(s, q);
        }
#pragma unroll
        for (int u = 0; u < EACH; u++) terms[u].slot = term_of(s, *t, columns[u], A(0), A(0)).slot;
        const int64_t behind = first + BATCH < products ? first + BATCH : products;
        const int last = entry_of<WARPS, A>(room, behind - 1);
        for (int e = entry_of<WARPS, A>(room, first); e <= last; e++) {
            if (room->ends[e] == (e ? room->ends[e - 1] : 0)) continue;
#pragma unroll
            for (int u = 0; u < EACH; u++)
                if (terms[u].slot >= 0 && terms[u].rank == e)
                    t->add(terms[u].slot, terms[u].x, terms[u].y);
            g::sync();
        }
    }
}

/* The products of row i, by a block. */
template <int WARPS, class A>
static __device__ __forceinline__ void add_by_block(const numeric_args &s, table<A> *t,
                                                    chunk<WARPS, A> *room, const column_span &span,
                                                    int64_t i)
{
    typedef group<WARPS> g;
    enum { SHORT = 32 }; /* to rank so many products costs about as much as to meet once */
    static_assert(CHUNK == SPGEMM_TERMS, "sums are put aside between chunks");
    int64_t begin;
    const int64_t end = row_range(s.a, i, &begin) + begin;
    for (int64_t p = begin; p < end; p += CHUNK) {
        if (is_block(*t, p - begin)) put_aside<WARPS>(*t);
        const int64_t products = fill_chunk<WARPS, A>(room, s.a, s.b, s.a_val, span, p, end);
        const int held = (int)(end - p < CHUNK ? end - p : CHUNK);
        if (t->counted || products < held * SHORT)
            add_numbered<WARPS>(s, t, room, products);
        else
            add_by_entry<WARPS>(s, t, room, products);
        g::sync();
    }
}

#endif
