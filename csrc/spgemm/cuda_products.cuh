/* The products of a window of a row of C, added to its table by a warp in the order of A's entries.
 *
 *     entries of A     a chunk at a time, whose products are numbered (cuda_group.cuh)
 *     long rows of B   one after the other: no two products of one share a sum
 *     short ones       lanes take products in their order, whichever entry they belong to; those
 *                      that share a sum add one after the other, by rank
 *
 * A window of some of the row's columns reads its own part of B's rows alone, if they rise. The
 * order of terms is the same in each case. */
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
    bool plain, plain_out; /* values of B, and of C: in the order of entries, as sums are kept */
};

/* ---- many products at once ---- */

/* A lane asks for EACH columns and values before it needs the first of them, so that their loads
 * are under way together. */

/* Entries q of B, or none where q is negative: their columns (else -1) and values. */
template <int EACH, class A>
static __device__ __forceinline__ void load(const numeric_args &s, const int64_t *q, int32_t *j,
                                            A *y)
{
    const A *const plain = static_cast<const A *>(s.b_val.data);
#pragma unroll
    for (int u = 0; u < EACH; u++) j[u] = q[u] < 0 ? -1 : __ldg(s.b.idx + q[u]);
    if (s.plain) {
#pragma unroll
        for (int u = 0; u < EACH; u++) y[u] = q[u] < 0 ? A(0) : __ldg(plain + q[u]);
    } else {
#pragma unroll
        for (int u = 0; u < EACH; u++)
            y[u] = q[u] < 0 ? A(0) : edge_value<A>(s.b_val, edge_of(s.b_val, q[u]), 0);
    }
}

/* The slots of columns, or -1. The kind of the table is asked once for all of them. */
template <int EACH, class A>
static __device__ __forceinline__ void find(const table<A> &t, const int32_t *j, int *slot)
{
    if (t.where == SPGEMM_IN_DENSE) {
#pragma unroll
        for (int u = 0; u < EACH; u++) slot[u] = t.find_dense(j[u]);
    } else if (t.where == SPGEMM_IN_RANKED) {
#pragma unroll
        for (int u = 0; u < EACH; u++) slot[u] = t.find_ranked(j[u]);
    } else {
#pragma unroll
        for (int u = 0; u < EACH; u++) slot[u] = j[u] < 0 ? -1 : t.find_key(j[u]);
    }
}

/* Adds one row of B, entries [q, q + length). No column stands twice in it, so that lanes never
 * share a sum. The warp meets before the next row. */
template <int EACH, class A>
static __device__ __forceinline__ void add_row(const numeric_args &s, table<A> *t, int64_t q,
                                               int64_t length, A x)
{
    for (int64_t first = threadIdx.x % WARP; first < length; first += EACH * WARP) {
        int64_t at[EACH];
        int32_t j[EACH];
        int slot[EACH];
        A y[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++)
            at[u] = first + u * WARP < length ? q + first + u * WARP : -1;
        load<EACH, A>(s, at, j, y);
        find<EACH>(*t, j, slot);
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (slot[u] >= 0) t->add(slot[u], x, y[u]);
    }
}

/* Adds all products of a chunk, in the order of their numbers:
 *
 *     lane          0     1     2     3     4        EACH times, all loads first
 *     product       e0    e0    e1    e1    e1
 *     slot          5     7     5     2     7
 *     by rank       0     0     1     0     1        those that share a slot, one after the other
 *     by entry      0     0     1     1     1        no two of an entry share one */
template <int EACH, class A>
static __device__ __forceinline__ void add_numbered(const numeric_args &s, table<A> *t,
                                                    const chunk<A> *in, const chunk_size &size,
                                                    bool by_rank)
{
    const int lane = threadIdx.x % WARP;
    const int64_t end = lane < size.entries ? in->ends[lane] : INT64_MAX;
    for (int64_t first = 0; first < size.products; first += EACH * WARP) {
        int64_t q[EACH];
        int32_t j[EACH];
        int slot[EACH], entry[EACH];
        A x[EACH], y[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const int64_t product = first + u * WARP;
            const int e = entry[u] = entry_of_lane(end, product);
            q[u] = product + lane < size.products ? in->origin[e] + product + lane : -1;
            x[u] = q[u] < 0 ? A(0) : in->factor[e];
        }
        load<EACH, A>(s, q, j, y);
        find<EACH>(*t, j, slot);
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const int first_entry = __shfl_sync(ALL, entry[u], 0);
            const int turn = by_rank ? rank_in_warp(slot[u]) : entry[u] - first_entry;
            add_in_order(t, term<A>{slot[u], turn, x[u], y[u]});
        }
    }
}

/* The products of row i that fall into the table.
 *
 *     products of an entry, on average      0 .. 3      4 .. 23      24 and more
 *     lanes add                             by rank     by entry     a row of B after the other */
template <class A>
static __device__ __forceinline__ void
add_products(const numeric_args &s, table<A> *t, chunk<A> *room, const column_span &span, int64_t i)
{
    /* Products of an entry, from which it is worth a step of its own, or a turn of its lanes. */
    enum { LONG = 24, TURNS = 4 };
    static_assert(SPGEMM_TERMS % WARP == 0, "sums are put aside between chunks");
    int64_t begin;
    const int64_t end = row_range(s.a, i, &begin) + begin;
    for (int64_t p = begin; p < end; p += WARP) {
        if (!t->counted && t->is_long && p > begin && (p - begin) % SPGEMM_TERMS == 0)
            put_aside<1>(*t);
        const chunk_size size = fill_chunk<A>(room, s.a, s.b, s.a_val, span, p, end);
        if (t->counted || size.products < size.entries * LONG)
            add_numbered<4>(s, t, room, size, t->counted || size.products < size.entries * TURNS);
        else
            for (int e = 0; e < size.entries; e++) {
                const int64_t first = e ? room->ends[e - 1] : 0, length = room->ends[e] - first;
                if (length > 2 * WARP)
                    add_row<4>(s, t, room->origin[e] + first, length, room->factor[e]);
                else if (length > WARP)
                    add_row<2>(s, t, room->origin[e] + first, length, room->factor[e]);
                else
                    add_row<1>(s, t, room->origin[e] + first, length, room->factor[e]);
                __syncwarp();
            }
        __syncwarp();
    }
}

#endif
