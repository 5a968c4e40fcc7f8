/* Step 2 of the walk, gather: what a row has of its own, and what its entries point to.
 *
 * A row's own operands are read once and stay in registers. An entry's far operands, of row j =
 * idx[p], are gathered FLY entries at a time: all loads of a batch are started before the first is
 * waited for, because a walk is as fast as it has bytes under way.
 *
 *     own (row i)           far (rows j of a batch)       FORWARD, ROWS          COLS
 *     own_s  [PS][VS]       far_s  [FLY][PS][VS]          q and k                k and q
 *     own_v  [PER][VEC]     far_v  [FLY][PER][VEC]        gout (ROWS) and v      v and gout
 *     lse, delta            lse, delta [FLY]              of the own row         of the far row
 */
#pragma once

#include "cuda_fetch.cuh"

/* A row's own operands as they lie in memory, until they are used. */
template <class K> struct own_row {
    typename K::pack_s s[K::PS];
    typename K::pack_v v[K::PER];
    typename K::A lse, delta;
};

/* A lane without columns has zeros; so has, on the side of the values, every lane of the pass
 * WEIGHTS, which has no gout. */
STEP void read_own(const attend_lane<K> &me, const walk_args<K> &s, int64_t row, own_row<K> *to)
{
    typedef typename K::T T;
    typedef typename K::A A;
    UNROLLED(i, K::PS) {
        to->s[i] = typename K::pack_s{};
        if (me.in_s[i])
            to->s[i] = load<T, K::VS>(s.own_s.at(row, me.head, K::SCALAR ? 0 : me.column[i]));
    }
    UNROLLED(i, K::BACK ? K::PER : 0) {
        to->v[i] = typename K::pack_v{};
        if (s.own_v.data && me.in_v[i])
            to->v[i] = load<T, K::VEC>(s.own_v.at(row, me.head, me.column[i]));
    }
    /* Every entry of the row needs both, so they come with the row and not with an entry. */
    if (K::WALK == ROWS) {
        to->lse = me.live ? __ldg(s.lse.at(row, me.head, 0)) : A(0);
        to->delta = me.live && s.delta.data ? __ldg(s.delta.at(row, me.head, 0)) : A(0);
    }
}

/* The same as numbers. lse and delta are those of ROWS; COLS gathers them. */
template <class K> struct own_numbers {
    typedef typename K::T T;
    typedef typename K::A A;
    A s[K::PS][K::VS], v[K::PER][K::VEC];
    A lse, delta;
    __device__ __forceinline__ void take(const own_row<K> &from)
    {
        lse = delta = A(0);
        UNROLLED(i, K::PS) unpack<T, K::VS>(from.s[i], s[i]);
        UNROLLED(i, K::PER)
            if (K::BACK) unpack<T, K::VEC>(from.v[i], v[i]);
        if (K::WALK == ROWS) lse = lse_of_weights(from.lse), delta = from.delta;
    }
};

/* FLY entries of one row. */
template <class K> struct batch {
    typedef typename K::A A;
    uint32_t j[K::FLY]; /* the column, with ABSENT */
    int64_t edge[K::FLY];
    A drop[K::FLY], by[K::FLY]; /* 0 or 1 / (1 - dropout); that times the edge's weight: u / w */
    A bias[K::FLY];
    typename K::pack_s far_s[K::FLY][K::PS];
    typename K::pack_v far_v[K::FLY][K::PER];
    A lse[K::FLY], delta[K::FLY], q[K::FLY], rest[K::FLY]; /* rest: lse_rest, in LATE */
};

/* Takes the batch's entries, from the c-th of the chunk on, from the lanes that fetched them. */
STEP void deal(const attend_lane<K> &me, const walk_args<K> &s, const entry<K::EDGES> &near, int c,
               batch<K> *b)
{
    typedef typename K::A A;
    UNROLLED(f, K::FLY) {
        b->j[f] = __shfl_sync(ALL, near.column, me.base + c + f);
        /* What the call does not have counts as no bias, weight 1 and no dropout. */
        b->bias[f] = A(0), b->by[f] = b->drop[f] = A(1), b->edge[f] = 0;
        if constexpr (K::EDGES) {
            b->edge[f] = __shfl_sync(ALL, near.edge, me.base + c + f);
            const uint32_t keep = __shfl_sync(ALL, near.keep, me.base + c + f);
            if (s.drops) b->drop[f] = keep >> me.mine_of_heads & 1 ? s.keep_scale : A(0);
            b->by[f] = b->drop[f];
        }
    }
}

/* COLS reads what is one number of a row and head from one place: lse and delta, in ADDITIVE also q
 * and lse_rest (stats_of in cuda_join.cuh packs them). */
template <class A, int N> static __device__ __forceinline__ void read_stats(const A *from, A *to)
{
    enum { EACH = 16 / sizeof(A) < N ? 16 / sizeof(A) : N };
    UNROLLED(i, N / EACH) unpack<A, EACH>(load<A, EACH>(from + i * EACH), to + i * EACH);
}

/* Reads one number of each entry's edge: bias or weight. They are all read before the first is
 * waited for. */
STEP void read_edges(const attend_lane<K> &me, const dense_view<const typename K::T> &from,
                     const int64_t (&edge)[K::FLY], typename K::A (&to)[K::FLY])
{
    typename K::T raw[K::FLY];
    UNROLLED(f, K::FLY) raw[f] = __ldg(from.at(edge[f], me.head, 0));
    UNROLLED(f, K::FLY) to[f] = widen(raw[f]);
}

/* Starts all loads of the batch. */
STEP void gather(const attend_lane<K> &me, const walk_args<K> &s, const own_numbers<K> &own,
                 batch<K> *b)
{
    typedef typename K::T T;
    typedef typename K::A A;
    const uint32_t stats_row = planes_of(K::SCORE) * (uint32_t)s.heads * (uint32_t)sizeof(A);
    UNROLLED(f, K::FLY) {
        /* An ABSENT entry reads some row inside the operand, which then counts for nothing. */
        const uint32_t at = b->j[f] & ~ABSENT;
        if (!K::LATE)
            UNROLLED(i, K::PS)
                b->far_s[f][i] = load<T, K::VS>(
                    reinterpret_cast<const T *>(row_at(me.far_s, at, s.far_s.row) +
                                                (K::SCALAR || K::PER == 1 ? 0 : me.offset_s[i])));
        /* The softmax's statistics belong to a row of A: in COLS that is the far row. */
        if (K::WALK == COLS) {
            A stats[4];
            read_stats<A, planes_of(K::SCORE)>(
                reinterpret_cast<const A *>(row_at(me.stats, at, stats_row)), stats);
            b->lse[f] = stats[0], b->delta[f] = stats[1];
            if (K::LATE) b->q[f] = stats[2], b->rest[f] = stats[3];
        } else {
            b->lse[f] = own.lse, b->delta[f] = own.delta;
        }
        UNROLLED(i, K::PER)
            if constexpr (K::SAME)
                b->far_v[f][i] = b->far_s[f][i];
            else
                b->far_v[f][i] = load<T, K::VEC>(reinterpret_cast<const T *>(
                    row_at(me.far_v, at, s.far_v.row) + (K::PER == 1 ? 0 : me.offset_v[i])));
    }
    /* These loads come last because each stands under a branch, at whose end it is waited for. */
    if constexpr (K::EDGES) {
        if (s.bias.data) read_edges(me, s.bias, b->edge, b->bias);
        if (s.weight.data) {
            A weight[K::FLY];
            read_edges(me, s.weight, b->edge, weight);
            UNROLLED(f, K::FLY) b->by[f] *= weight[f];
        }
    }
}
