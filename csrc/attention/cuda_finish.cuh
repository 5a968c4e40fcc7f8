/* Step 5 of the walk, finish: where the sums of a row go.
 *
 * A whole row's sums become results at once. A long row is walked in pieces, and the sums of a
 * piece go to the piece's own slot of the workspace; the join (cuda_join.cuh) adds up the slots of
 * a row in the order of its pieces.
 *
 *     item.count > 0     rows of a bundle   ->  out, gq, gk or gv at the row
 *     item.count == 0    piece item.from    ->  partial[item.from][head][.. to_s .. | .. to_v ..]
 *
 * gatt is a sum over all rows, which no item owns. So each block takes a fixed share of the items,
 * sums theirs in shared memory and leaves one sum for the caller to add up. */
#pragma once

#include "cuda_accumulate.cuh"

/* Writes the sums of row r of an item to the row, or to the piece's slot `offset` sums into it. */
template <class K, class U>
static __device__ __forceinline__ void
write_sums(const attend_lane<K> &me, const walk_args<K> &s, const item_view &item, int r,
           int64_t row, const typename K::A (*sums)[K::VEC], const dense_view<U> &to,
           int64_t offset, const bool *in)
{
    typedef typename K::A A;
    constexpr int VEC = K::VEC;
    UNROLLED(i, K::PER) {
        if (!in[i]) continue;
        if (item.count == 0) {
            if (r == 0 && s.partial)
                keep<A, VEC>(s.partial + (int64_t(item.from) * s.heads + me.head) * s.width +
                                 offset + me.column[i],
                             sums[i]);
        } else if (r < item.count && to.data) {
            if constexpr (sizeof(U) > sizeof(typename K::T)) /* more than 16 bytes */
                keep<A, VEC>(to.at(row, me.head, me.column[i]), sums[i]);
            else
                store<U, VEC>(to.at(row, me.head, me.column[i]), sums[i]);
        }
    }
}

/* The results of a row without entries are zeros, and its lse is -infinity. ROWS writes no zeros to
 * edges, because the row has none. */
STEP void write_empty(const attend_lane<K> &me, const walk_args<K> &s, int64_t row)
{
    typedef typename K::T T;
    typedef typename K::A A;
    constexpr int VEC = K::VEC;
    const A zeros[VEC] = {};
    UNROLLED(i, K::PER) {
        if (K::WALK != ROWS && s.to_v.data && me.in_v[i])
            store<T, VEC>(s.to_v.at(row, me.head, me.column[i]), zeros);
        if (K::POS && me.in_v[i]) keep<A, VEC>(s.to_pos.at(row, me.head, me.column[i]), zeros);
        if (K::BACK && !K::SCALAR && s.to_s.data && me.in_s[K::SCALAR ? 0 : i])
            store<T, VEC>(s.to_s.at(row, me.head, me.column[i]), zeros);
    }
    if (!me.live || me.sub) return;
    if (K::WALK == FORWARD) write_lse(s, row, me.head, A(0), A(0));
    if (K::POS) *s.to_pos_w.at(row, me.head, 0) = A(0);
    if (K::BACK && K::SCALAR && s.to_s.data) *s.to_s.at(row, me.head, 0) = narrow<T>(A(0));
}

/* FORWARD: a whole row's sums become shares of its softmax; a piece's stay relative to `high`. */
STEP void finish_softmax(const attend_lane<K> &me, const walk_args<K> &s, int64_t row, bool whole,
                         bool piece, typename K::A *slot, row_sums<K> *sums)
{
    typedef typename K::A A;
    constexpr bool POS = K::POS;
    /* Only a whole row knows its denominator; the join divides those that were cut. */
    if (whole) {
        const A share = share_of(sums->sum);
        UNROLLED(i, K::PER)
            UNROLLED(v, K::VEC) {
                sums->v[i][v] = shared_out(sums->v[i][v], share);
                if (POS) sums->pos[i][v] = shared_out(sums->pos[i][v], share);
            }
        if (POS) sums->pos_w *= share;
    }
    /* What is one number a head is the same in all its lanes; the first of them writes it. */
    if (me.live && me.sub == 0) {
        if (whole) write_lse(s, row, me.head, sums->high, sums->sum);
        if (piece) slot[s.width - QUAD] = sums->high, slot[s.width - QUAD + 1] = sums->sum;
        if (POS && whole) *s.to_pos_w.at(row, me.head, 0) = sums->pos_w;
        if (POS && piece) slot[s.width - QUAD + 2] = sums->pos_w;
    }
}

/* Row r of an item. A piece is an item of a single row, which is neither whole nor part of a
 * bundle; in rows past the end of a shorter bundle of the warp both are false. */
STEP void finish(const attend_lane<K> &me, const walk_args<K> &s, const item_view &item, int r,
                 int64_t row, const typename K::A (&att)[K::PS][K::VS], row_sums<K> *sums)
{
    typedef typename K::T T;
    typename K::A *const slot = s.partial + (int64_t(item.from) * s.heads + me.head) * s.width;
    const bool piece = item.count == 0 && r == 0 && s.partial, whole = r < item.count;
    /* Only ROWS has no sums on the side of the values. */
    if (K::WALK == FORWARD) finish_softmax(me, s, row, whole, piece, slot, sums);
    if (K::WALK != ROWS) write_sums(me, s, item, r, row, sums->v, s.to_v, s.width_s, me.in_v);
    if (K::POS) write_sums(me, s, item, r, row, sums->pos, s.to_pos, (s.width - QUAD) / 2, me.in_v);
    if constexpr (K::BACK && K::SCALAR) {
        if (me.live && me.sub == 0) {
            if (piece) slot[0] = sums->s[0][0];
            if (whole && s.to_s.data) *s.to_s.at(row, me.head, 0) = narrow<T>(sums->s[0][0]);
        }
    } else if constexpr (K::BACK) {
        /* The factor that all entries of the row have in common. It is the same in all pieces of a
         * row, so it does not matter that the join adds up products. */
        UNROLLED(i, K::PS)
            UNROLLED(v, K::VS) sums->s[i][v] *= K::SCORE == FMM_DOT ? s.scale : att[i][v];
        write_sums(me, s, item, r, row, sums->s, s.to_s, 0, me.in_s);
    }
}

/* gatt's sums of all rows that this block walks, a column a thread. A row's own (`turned`) are in
 * registers, of which there are too few for both. */
template <class K> using gatt_sums = typename K::A[K::PS * K::VS][K::THREADS];

STEP void collect(const row_sums<K> &sums, gatt_sums<K> &collected)
{
    UNROLLED(i, K::PS)
        UNROLLED(v, K::VS) collected[i * K::VS + v][threadIdx.x] += sums.turned[i][v];
}

/* The first group adds up what the `in_block` groups of the block have, in their order. */
STEP void write_collected(const attend_lane<K> &me, const walk_args<K> &s,
                          const gatt_sums<K> &collected, int in_block)
{
    typedef typename K::A A;
    if (!s.to_att.data) return;
    /* All groups have the same heads and columns, hence lane by lane the same sums to add. */
    __syncthreads();
    if (threadIdx.x >= me.group) return;
    UNROLLED(c, K::PS * K::VS) {
        if (!me.in_s[c / K::VS]) continue;
        A total = A(0);
        for (int g = 0; g < in_block; g++) total += collected[c][(g << s.group_bits) + me.lane];
        *s.to_att.at(blockIdx.x, me.head, me.column[c / K::VS] + c % K::VS) = total;
    }
}
