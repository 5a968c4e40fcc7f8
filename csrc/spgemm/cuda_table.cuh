/* Tables: where a row's sums lie in shared memory, and how products reach them in order.
 *
 *     DENSE    sums    [s s s s s s s s]     a sum for each column from `low` on
 *     HASH     keys    [. 7 . 3 . . 9 .]     two slots for each entry, linear probing
 *              sums    [. s . s . . s .]
 *     SORTED   keys    [3 7 9 .]             one slot for each entry, found by bisection
 *              sums    [s s s .]
 *     RANKED   words   [0:00010001][2:00000010]     a bit for each column from `low` on, and how
 *              sums    [s s s]                      many entries stand before its word
 *
 * A table knows the row's columns before the first product comes, so that nothing is entered later.
 * Columns outside of it have no slot, and their products are left out: another window has them, or
 * nobody, where the row is a mask's.
 *
 * No sum has more than SPGEMM_TERMS terms in a row. Where B's columns rise, an entry of A gives a
 * sum one term at most, so that a row of A is cut in parts of so many entries (cuda_rows.cu). Where
 * they repeat, each slot counts its terms, and puts its sum aside by itself. So a sum's bits follow
 * from the terms and their order alone, not from the kind of table, the window or the number of
 * threads. */
#ifndef FMM_SPGEMM_CUDA_TABLE_CUH
#define FMM_SPGEMM_CUDA_TABLE_CUH

#include "cuda_classes.cuh"

/* A block's shared memory. Tables keep places in it, not pointers: so the compiler knows that it is
 * shared memory, and a place takes half as many registers. */
extern __shared__ __align__(16) char spgemm_shared[];
template <class T> static __device__ __forceinline__ T *of_shared(int byte)
{
    return reinterpret_cast<T *>(spgemm_shared + byte);
}

/* One term, rounded once. */
template <class A> static __device__ __forceinline__ A multiply_add(A x, A y, A z)
{
    return fma(x, y, z);
}

/* Whether a slot knows its column. */
static __host__ __device__ __forceinline__ bool is_keyed(spgemm_where where)
{
    return where == SPGEMM_IN_HASH || where == SPGEMM_IN_SORTED;
}

/* Bytes of a slot. */
template <class A>
static __host__ __device__ inline int slot_bytes(spgemm_where where, bool is_long, bool counted)
{
    const int sum = (int)sizeof(A), key = is_keyed(where) ? (int)sizeof(int32_t) : 0;
    return sum + key + (is_long ? sum : 0) + (counted ? (int)sizeof(uint8_t) : 0);
}

/* What is known of a row before it is computed: `cols` columns from `low` on have its entries. */
struct row_shape {
    spgemm_where where;
    int64_t entries, low, cols;
    bool is_long, counted, rises; /* whether C's columns rise */
};

/* A word of a RANKED table: a bit for each of RANK_COLUMNS columns, and above them the number of
 * entries before these. The slot of a column is that number and the bits below its own, so that
 * slots stand in the order of C's entries. A table has less than 2^16 of them. One word of 32 bits
 * is read with half of the bank conflicts of two. */
enum { RANK_COLUMNS = 16 };
static __host__ __device__ __forceinline__ int64_t rank_bytes(int64_t cols)
{
    return ceil_div(cols, 2 * RANK_COLUMNS) * (int64_t)sizeof(uint64_t); /* sums are aligned, too */
}

/* Slots of a table of the row's kind, and bytes of one of any kind. */
static __host__ __device__ __forceinline__ int64_t slots_of(const row_shape &r)
{
    return r.where == SPGEMM_IN_DENSE    ? r.cols
           : r.where == SPGEMM_IN_HASH   ? 2 * r.entries
           : r.where == SPGEMM_IN_RANKED ? r.entries
                                         : power_of_two(r.entries);
}
template <class A>
static __host__ __device__ __forceinline__ int64_t bytes_of(row_shape r, spgemm_where where)
{
    r.where = where;
    return slots_of(r) * slot_bytes<A>(where, r.is_long, r.counted) +
           (where == SPGEMM_IN_RANKED ? rank_bytes(r.cols) : 0);
}

template <class A> struct table {
    spgemm_where where;
    bool is_long, counted;
    int slots;
    int32_t low, width;                                  /* DENSE, RANKED: the columns */
    int sums_at, aside_at, keys_at, counts_at, words_at; /* in the block's shared memory */

    __device__ __forceinline__ A &sum(int slot) const { return of_shared<A>(sums_at)[slot]; }
    __device__ __forceinline__ A &aside(int slot) const { return of_shared<A>(aside_at)[slot]; }
    __device__ __forceinline__ int32_t *keys(void) const { return of_shared<int32_t>(keys_at); }
    __device__ __forceinline__ uint8_t &count(int slot) const
    {
        return of_shared<uint8_t>(counts_at)[slot];
    }
    __device__ __forceinline__ unsigned &word(int at) const
    {
        return of_shared<unsigned>(words_at)[at];
    }

    /* Lays so many slots out in shared memory, from a byte on. */
    __device__ __forceinline__ void lay_out(const row_shape &r, int byte, int n)
    {
        where = r.where;
        is_long = r.is_long, counted = r.counted;
        slots = n;
        low = (int32_t)r.low, width = (int32_t)r.cols;
        const int size = n * (int)sizeof(A);
        words_at = byte;
        sums_at = byte + (where == SPGEMM_IN_RANKED ? (int)rank_bytes(width) : 0);
        aside_at = sums_at + size;
        keys_at = aside_at + (is_long ? size : 0);
        counts_at = keys_at + (is_keyed(where) ? n * (int)sizeof(int32_t) : 0);
    }

    /* The table of the same window that another warp has, so many bytes further. */
    __device__ __forceinline__ table moved(int bytes) const
    {
        table other = *this;
        other.words_at += bytes, other.sums_at += bytes, other.aside_at += bytes;
        other.keys_at += bytes, other.counts_at += bytes;
        return other;
    }

    /* The slot of column j, or -1: one function for each kind, of which a caller that looks for
     * many columns chooses first. */
    __device__ __forceinline__ int find_dense(int32_t j) const
    {
        const unsigned at = unsigned(j) - unsigned(low);
        return at < unsigned(slots) ? int(at) : -1;
    }
    /* Without a branch, so that several can wait for their words together. */
    __device__ __forceinline__ int find_ranked(int32_t j) const
    {
        const unsigned at = unsigned(j) - unsigned(low), bit = 1u << at % RANK_COLUMNS;
        const bool inside = at < unsigned(width);
        const unsigned has = word(inside ? int(at / RANK_COLUMNS) : 0);
        const unsigned slot = (has >> RANK_COLUMNS) + __popc(has & (bit - 1));
        return inside && has & bit && slot < unsigned(slots) ? int(slot) : -1;
    }
    __device__ __forceinline__ int find_key(int32_t j) const
    {
        if (where == SPGEMM_IN_SORTED) {
            int at = 0;
            for (int left = slots; left > 1; left -= left / 2)
                at += keys()[at + left / 2 - 1] < j ? left / 2 : 0;
            return keys()[at] == j ? at : -1;
        }
        if (uint32_t(j) >= uint32_t(NO_COLUMN)) return -1;
        for (int h = start(j);; h = next(h)) {
            const int32_t found = keys()[h];
            if (found == j) return h;
            if (found == NO_COLUMN) return -1;
        }
    }
    __device__ __forceinline__ int find(int32_t j) const
    {
        return where == SPGEMM_IN_DENSE    ? find_dense(j)
               : where == SPGEMM_IN_RANKED ? find_ranked(j)
                                           : find_key(j);
    }

    /* HASH: enters column j. At most half of the slots are taken. */
    __device__ __forceinline__ void enter(int32_t j)
    {
        for (int h = start(j);; h = next(h)) {
            const int32_t found = atomicCAS(keys() + h, (int32_t)NO_COLUMN, j);
            if (found == j || found == NO_COLUMN) return;
        }
    }
    /* RANKED: enters column j of entry number `at`, whose columns rise. */
    __device__ __forceinline__ void enter_ranked(int32_t j, int32_t before, int at)
    {
        const unsigned place = unsigned(j) - unsigned(low), last = unsigned(before) - unsigned(low);
        if (place >= unsigned(width)) return;
        const bool is_first = !at || last / RANK_COLUMNS != place / RANK_COLUMNS;
        const unsigned number = is_first ? unsigned(at) << RANK_COLUMNS : 0;
        atomicOr(&word(place / RANK_COLUMNS), number | 1u << place % RANK_COLUMNS);
    }
    __device__ __forceinline__ int start(int32_t j) const
    {
        return (int)__umulhi(unsigned(j) * 0x9E3779B1u, unsigned(slots));
    }
    __device__ __forceinline__ int next(int h) const { return h + 1 == slots ? 0 : h + 1; }

    /* Adds one term. A sum that counts its terms is put aside when it has SPGEMM_TERMS. */
    __device__ __forceinline__ void add(int slot, A x, A y)
    {
        A own = multiply_add(x, y, sum(slot));
        if (counted) {
            const int terms = count(slot) + 1;
            if (terms == SPGEMM_TERMS) aside(slot) += own, own = A(0);
            count(slot) = uint8_t(terms == SPGEMM_TERMS ? 0 : terms);
        }
        sum(slot) = own;
    }
    /* The sum of all terms. Where slots do not count them, all were put aside, or none. */
    __device__ __forceinline__ A total(int slot) const
    {
        return counted ? aside(slot) + sum(slot) : is_long ? aside(slot) : sum(slot);
    }
};

/* Makes all sums 0, and leaves no keys and no bits. The group meets afterwards: then columns may be
 * entered, in any order and by any thread. */
template <int WARPS, class A> static __device__ __forceinline__ void empty_table(const table<A> &t)
{
    for (int h = group<WARPS>::thread(); h < t.slots; h += group<WARPS>::THREADS) {
        t.sum(h) = A(0);
        if (t.is_long) t.aside(h) = A(0);
        if (t.counted) t.count(h) = 0;
        if (is_keyed(t.where)) t.keys()[h] = NO_COLUMN;
    }
    const int words = t.where == SPGEMM_IN_RANKED ? int(rank_bytes(t.width) / sizeof(unsigned)) : 0;
    for (int h = group<WARPS>::thread(); h < words; h += group<WARPS>::THREADS) t.word(h) = 0;
    group<WARPS>::sync();
}

/* The table of entries [begin, begin + r.entries) of a matrix, all sums 0; *falls says whether some
 * column does not rise. Sorted keys have to, as those of a mask need not: then they are sorted
 * here. The group meets when all are entered. */
template <int WARPS, class A>
static __device__ __forceinline__ table<A> table_of(const csr_view &c, const row_shape &r,
                                                    int64_t begin, int byte, bool *falls)
{
    typedef group<WARPS> g;
    table<A> t;
    bool own = false;
    t.lay_out(r, byte, (int)slots_of(r));
    empty_table<WARPS>(t);
    *falls = false;
    if (r.where == SPGEMM_IN_DENSE) return t; /* which knows no columns */
    const int entries = (int)r.entries;
#pragma unroll 4
    for (int at = g::thread(); at < entries; at += g::THREADS) {
        const int32_t j = __ldg(c.idx + begin + at), last = at ? __ldg(c.idx + begin + at - 1) : -1;
        const bool inside = uint32_t(j) < uint32_t(c.cols);
        own |= !inside || j <= last;
        if (r.where == SPGEMM_IN_SORTED)
            t.keys()[at] = inside ? j : int32_t(NO_COLUMN);
        else if (r.where == SPGEMM_IN_RANKED)
            t.enter_ranked(j, last, at);
        else if (inside)
            t.enter(j);
    }
    *falls = g::any(own);
    g::sync();
    if (*falls && r.where == SPGEMM_IN_SORTED) sort_keys<WARPS>(t.keys(), t.slots);
    return t;
}

/* ---- terms in order ---- */

/* A term that a thread has ready: where it goes, and behind how many others of its warp. */
template <class A> struct term {
    int slot, rank;
    A x, y;
};

/* All lanes of the warp take part; a lane without a term has slot -1. */
static __device__ __forceinline__ int rank_in_warp(int slot)
{
    return __popc(__match_any_sync(ALL, slot) & lanes_below());
}

/* Adds one term of each lane, in the order of lanes: those that share a slot one after the other.
 */
template <class A>
static __device__ __forceinline__ void add_in_order(table<A> *t, const term<A> &of)
{
    for (int round = 0; __any_sync(ALL, of.slot >= 0 && of.rank >= round); round++) {
        if (of.slot >= 0 && of.rank == round) t->add(of.slot, of.x, of.y);
        __syncwarp();
    }
}

/* ---- results ---- */

/* A number for each entry, at the place of its edge; of f16 and bf16, sums are rounded once, here.
 */
struct entry_output {
    edge_view edges;
    void *data;
    int64_t stride;
    int dtype;
};

static inline entry_output view_output(const fmm_csr *a, const fmm_dense *out)
{
    return entry_output{view_edges(a, NULL), out->data, out->row_stride, (int)out->dtype};
}

/* Rounds the sum of entry p. */
template <class A>
static __device__ __forceinline__ void write(const entry_output &o, int64_t p, A v)
{
    const int64_t edge = edge_at(o.edges, p), at = edge * o.stride;
    if (!is_edge(o.edges, edge)) return;
    if (sizeof(A) == sizeof(double))
        static_cast<double *>(o.data)[at] = v;
    else if (o.dtype == FMM_F16)
        static_cast<__half *>(o.data)[at] = narrow<__half>(float(v));
    else if (o.dtype == FMM_BF16)
        static_cast<__nv_bfloat16 *>(o.data)[at] = narrow<__nv_bfloat16>(float(v));
    else
        static_cast<float *>(o.data)[at] = float(v);
}

#endif
