/* Tables: where a row's sums lie in shared memory, and how products reach them in order.
 *
 *     DENSE    sums    [s s s s s s s s]     a sum for each column from `low` on
 *     HASH     keys    [. 7 . 3 . . 9 .]     two slots for each entry, linear probing
 *              sums    [. s . s . . s .]
 *     SORTED   keys    [3 7 9 .]             one slot for each entry, found by bisection
 *              sums    [s s s .]
 *
 * A table knows the row's columns before the first product comes, so that nothing is entered later.
 * Columns outside of it have no slot, and their products are left out: another window has them, or
 * nobody, where the row is a mask's.
 *
 * A long row also has, for each slot, a sum `aside`. Where B's columns rise, an entry of A gives a
 * sum one term at most: after every SPGEMM_TERMS entries all sums are put aside. Where they repeat,
 * each slot counts its terms, and puts its sum aside by itself. So no sum has more terms in a row,
 * and its bits follow from the terms and their order alone, not from the kind of table, the window
 * or the number of threads. */
#ifndef FMM_SPGEMM_CUDA_TABLE_CUH
#define FMM_SPGEMM_CUDA_TABLE_CUH

#include "cuda_classes.cuh"

/* Rows of so few entries are sorted: bisection takes five steps and no table has to be emptied. */
enum { TINY = 32 };

/* One term, rounded once. */
static __device__ __forceinline__ float multiply_add(float x, float y, float z)
{
    return __fmaf_rn(x, y, z);
}
static __device__ __forceinline__ double multiply_add(double x, double y, double z)
{
    return __fma_rn(x, y, z);
}

/* Bytes of a slot. */
template <class A>
static __host__ __device__ inline int slot_bytes(spgemm_where where, bool is_long, bool counted)
{
    const int sum = (int)sizeof(A), key = where == SPGEMM_IN_DENSE ? 0 : (int)sizeof(int32_t);
    return sum + key + (is_long ? sum : 0) + (counted ? (int)sizeof(uint8_t) : 0);
}

/* What is known of a row before it is computed: `cols` columns from `low` on have its entries. */
struct row_shape {
    spgemm_where where;
    int64_t entries, low, cols;
    bool is_long, counted;
};

/* Slots that the whole row would take. */
static __host__ __device__ __forceinline__ int64_t slots_of(const row_shape &r)
{
    return r.where == SPGEMM_IN_DENSE  ? r.cols
           : r.where == SPGEMM_IN_HASH ? 2 * r.entries
                                       : power_of_two(r.entries);
}
template <class A>
static __host__ __device__ __forceinline__ int64_t bytes_of(row_shape r, spgemm_where where)
{
    r.where = where;
    return slots_of(r) * slot_bytes<A>(where, r.is_long, r.counted);
}

/* What auto does with a row: few entries are sorted. Others are dense or hashed. Within one window,
 * whichever takes less memory, so that more rows run at once. Of several windows, a dense one reads
 * its own columns of B alone and finds sums without a search, a hashed one reads all of B's rows:
 * hence FACTOR windows of the first for one of the second. */
template <class A>
static __device__ __forceinline__ spgemm_where choose_where(const row_shape &r,
                                                            const class_bytes &bytes)
{
    enum { FACTOR = 4 };
    const int64_t dense = bytes_of<A>(r, SPGEMM_IN_DENSE), hash = bytes_of<A>(r, SPGEMM_IN_HASH);
    if (r.entries <= TINY && bytes_of<A>(r, SPGEMM_IN_SORTED) < dense) return SPGEMM_IN_SORTED;
    const int64_t most = bytes.of[LARGEST];
    const int64_t dense_windows = ceil_div(dense, most), hash_windows = ceil_div(hash, most);
    if (dense_windows == 1 && hash_windows == 1)
        return dense <= hash ? SPGEMM_IN_DENSE : SPGEMM_IN_HASH;
    return hash_windows > 1 && dense_windows <= FACTOR * hash_windows ? SPGEMM_IN_DENSE
                                                                      : SPGEMM_IN_HASH;
}

template <class A> struct table {
    spgemm_where where;
    bool is_long, counted;
    int slots;
    int32_t low;   /* DENSE: the first column */
    int32_t *keys; /* HASH, SORTED */
    A *sums, *aside;
    uint8_t *counts;

    /* Lays so many slots out in memory. */
    __device__ __forceinline__ void lay_out(const row_shape &r, char *memory, int n)
    {
        where = r.where;
        is_long = r.is_long, counted = r.counted;
        slots = n;
        sums = reinterpret_cast<A *>(memory);
        aside = sums + n;
        keys = reinterpret_cast<int32_t *>(aside + (is_long ? n : 0));
        counts = reinterpret_cast<uint8_t *>(keys + (where == SPGEMM_IN_DENSE ? 0 : n));
    }

    /* The slot of column j, or -1. */
    __device__ __forceinline__ int find(int32_t j) const
    {
        if (where == SPGEMM_IN_DENSE) {
            const unsigned at = unsigned(j) - unsigned(low);
            return at < unsigned(slots) ? int(at) : -1;
        }
        if (where == SPGEMM_IN_SORTED) {
            int at = 0;
            for (int left = slots; left > 1; left -= left / 2)
                at += keys[at + left / 2 - 1] < j ? left / 2 : 0;
            return keys[at] == j ? at : -1;
        }
        for (int h = start(j);; h = next(h)) {
            const int32_t found = keys[h];
            if (found == j) return h;
            if (found == NO_COLUMN) return -1;
        }
    }

    /* HASH: enters column j; returns whether it was there. At most half of the slots are taken. */
    __device__ __forceinline__ bool enter(int32_t j)
    {
        for (int h = start(j);; h = next(h)) {
            const int32_t found = atomicCAS(keys + h, (int32_t)NO_COLUMN, j);
            if (found == j || found == NO_COLUMN) return found == j;
        }
    }
    __device__ __forceinline__ int start(int32_t j) const
    {
        return (int)__umulhi(unsigned(j) * 0x9E3779B1u, unsigned(slots));
    }
    __device__ __forceinline__ int next(int h) const { return h + 1 == slots ? 0 : h + 1; }

    /* Adds one term. */
    __device__ __forceinline__ void add(int slot, A x, A y)
    {
        A sum = multiply_add(x, y, sums[slot]);
        if (counted) {
            const int terms = counts[slot] + 1;
            if (terms == SPGEMM_TERMS) aside[slot] += sum, sum = A(0);
            counts[slot] = uint8_t(terms == SPGEMM_TERMS ? 0 : terms);
        }
        sums[slot] = sum;
    }
    __device__ __forceinline__ A total(int slot) const
    {
        return is_long ? aside[slot] + sums[slot] : sums[slot];
    }
};

/* Makes all sums 0, and leaves no keys. The group meets afterwards. */
template <int WARPS, class A> static __device__ __forceinline__ void empty_table(const table<A> &t)
{
    for (int h = group<WARPS>::thread(); h < t.slots; h += group<WARPS>::THREADS) {
        t.sums[h] = A(0);
        if (t.is_long) t.aside[h] = A(0);
        if (t.counted) t.counts[h] = 0;
        if (t.where != SPGEMM_IN_DENSE) t.keys[h] = NO_COLUMN;
    }
    group<WARPS>::sync();
}

/* Puts all sums aside. The group meets before and afterwards. */
template <int WARPS, class A> static __device__ __forceinline__ void put_aside(const table<A> &t)
{
    for (int h = group<WARPS>::thread(); h < t.slots; h += group<WARPS>::THREADS) {
        t.aside[h] += t.sums[h];
        t.sums[h] = A(0);
    }
    group<WARPS>::sync();
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

/* Adds the group's terms: those of warp 0 first, EACH per lane, then warp 1's. `turns` warps have
 * any. The group meets at the end. */
template <int WARPS, int EACH, class A>
static __device__ __forceinline__ void take_turns(table<A> *t, const term<A> *terms, int turns)
{
    for (int turn = 0; turn < turns; turn++) {
        if (group<WARPS>::warp() == turn)
#pragma unroll
            for (int u = 0; u < EACH; u++) add_in_order(t, terms[u]);
        group<WARPS>::sync();
    }
}

/* ---- results ---- */

/* A number for each entry, at the place of its edge. */
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
