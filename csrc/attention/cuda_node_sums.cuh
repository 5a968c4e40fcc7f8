/* What the kernels of cuda_node_sums.cu read with: operands by node and head, neighbouring items,
 * and dot products over a group of lanes.
 *
 *     group of 2^lane_bits lanes    a node's head, or N of them at once
 *     lane                          VEC channels, then the next VEC a group's width further on
 */
#pragma once

#include "cuda.cuh"
#include "node_sums.h"

enum { PLANES = 3 }; /* SPREAD's totals: for att_k, for att_q, and the sum of gout */
/* What node_dots computes. DELTA_POS is DELTA that also makes q's gradient from pos and pos_w. */
enum { SCORES, DELTA, DELTA_POS };
static_assert(FMM_NODE_PACKED == planes_of(FMM_ADDITIVE), "DELTA packs what COLS gathers");

/* Item i of head h. Operands that may be read in packs (`aligned` says which) have strides that fit
 * 32 bits, so each product is one multiply-add. With products of 64 bits these addresses were near
 * a third of the instructions of kernels that only read and add. */
template <int VEC, class T>
static __device__ __forceinline__ T *at(const dense_view<T> &d, int64_t i, int64_t h)
{
    if (VEC == 1) return d.data + i * d.row + h * d.head;
    return d.data + uint64_t(uint32_t(i)) * uint32_t(d.row) +
           uint64_t(uint32_t(h)) * uint32_t(d.head);
}
/* The call of node_sums.h as the kernels get it, under the same names. */
template <class T> struct node_args {
    typedef typename sum_of<T>::type A;
    dense_view<const T> x, value, gout, att[2];
    dense_view<T> score[2], out, total[PLANES];
    dense_view<const A> pos, pos_w, lse, lse_rest, glse;
    dense_view<A> delta, parts;
    A *packed;
    uint32_t *arrived;
    int64_t rows, feat;
    int64_t each, count; /* SPREAD: nodes of a part, and how many parts there are */
    uint64_t per_head;   /* the reciprocal by which kernels divide by heads */
    int32_t heads;
    int32_t lane_bits; /* logarithm of the lanes of a head, in SPREAD of a tile's row */
    A slope;
};

/* N neighbouring items: fetch starts their loads, arrive waits for them. */
template <class T, int N> struct items_of {
    enum { EACH = sizeof(T) * N < 16 ? N : 16 / sizeof(T) };
    PACK(T, EACH) packs[N / EACH];
    __device__ __forceinline__ void fetch(const T *from)
    {
#pragma unroll
        for (int i = 0; i < N; i += EACH) packs[i / EACH] = load<T, EACH>(from + i);
    }
    __device__ __forceinline__ void arrive(typename sum_of<T>::type *to) const
    {
#pragma unroll
        for (int i = 0; i < N; i += EACH) unpack<T, EACH>(packs[i / EACH], to + i);
    }
};
template <class T, int N>
static __device__ __forceinline__ void read(const T *from, typename sum_of<T>::type *to)
{
    items_of<T, N> some;
    some.fetch(from);
    some.arrive(to);
}

/* <a, b> and, unless ONE, <a, c> of N items. The lanes of a group share the channels, and all of
 * them get the sums.
 *
 * All N items are read before the first is waited for, because such a kernel lasts as long as its
 * waits. The channels that the lanes reach in their first turn are added outside the loop: inside
 * it the compiler waits for one item after another. An accumulator adds at most CHAIN channels,
 * then its sum goes to the total; the lanes' totals meet in a tree of shuffles. */
template <class T, class U, int VEC, bool ONE, int N> struct dots {
    typedef typename sum_of<T>::type A;
    A with_b[N], with_c[N];
    /* The channels from k on; `there` is false for lanes past the last channel, whose loads count
     * for nothing. */
    __device__ __forceinline__ void add(const T *const *a, const T *const *b, const U *const *c,
                                        int64_t k, bool there, A *sum_b, A *sum_c)
    {
        items_of<T, VEC> px[N], py[N];
        items_of<U, VEC> pz[N];
        UNROLLED(n, N) {
            px[n].fetch(a[n] + k);
            py[n].fetch(b[n] + k);
            if (!ONE) pz[n].fetch(c[n] + k);
        }
        UNROLLED(n, N) {
            A x[VEC], y[VEC], z[VEC];
            px[n].arrive(x);
            py[n].arrive(y);
            if (!ONE) pz[n].arrive(z);
            UNROLLED(v, VEC) {
                if (there) sum_b[n] += x[v] * y[v];
                if (!ONE && there) sum_c[n] += x[v] * z[v];
            }
        }
    }
    __device__ __forceinline__ dots(const T *const *a, const T *const *b, const U *const *c,
                                    int64_t feat, int lane, int lanes)
    {
        const int64_t step = int64_t(lanes) * VEC, chain = step * (CHAIN / VEC);
        UNROLLED(n, N) with_b[n] = with_c[n] = 0;
        const int64_t first = int64_t(lane) * VEC;
        if (feat > 0) add(a, b, c, first < feat ? first : 0, first < feat, with_b, with_c);
        for (int64_t from = first + step; from < feat; from += chain) {
            const int64_t end = min(feat, from + chain);
            A sum_b[N] = {}, sum_c[N] = {};
            for (int64_t k = from; k < end; k += step) add(a, b, c, k, true, sum_b, sum_c);
            UNROLLED(n, N) with_b[n] += sum_b[n], with_c[n] += sum_c[n];
        }
        for (int d = lanes / 2; d; d /= 2)
            UNROLLED(n, N) {
                with_b[n] += __shfl_xor_sync(ALL, with_b[n], d);
                if (!ONE) with_c[n] += __shfl_xor_sync(ALL, with_c[n], d);
            }
    }
};
