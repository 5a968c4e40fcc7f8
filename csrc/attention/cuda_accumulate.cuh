/* Step 4 of the walk, accumulate: what the entries of a batch add to the sums of their row.
 *
 * Every sum has one owner: the sums of a column are the lane's that owns the column, and sums that
 * are one number a head are the same in all lanes of the head. Entries are added in the order of
 * storage, batch by batch.
 *
 *                 per column                                 per head
 *     FORWARD     v: out      pos: out of entries above 0    high, sum, pos_w
 *     ROWS        s: gq       turned: gatt (GATV2)           s: gq (ADDITIVE)
 *     COLS        s: gk       v: gv                          s: gk (ADDITIVE)
 *
 * FORWARD is an online softmax: `high` is the largest logit so far, and sum, pos_w, v and pos are
 * relative to exp(high). A batch moves `high` once, for all its entries. The backward knows the
 * softmax's statistics from the start and only adds. */
#pragma once

#include "cuda_score.cuh"

/* The sums of one row, or piece of one. Those that a walk does not have are never used, and so have
 * no registers. */
template <class K> struct row_sums {
    typedef typename K::A A;
    A s[K::PS][K::VS], v[K::PER][K::VEC], turned[K::PS][K::VS];
    A pos[K::PER][K::VEC], pos_w;
    A high, sum;
    __device__ __forceinline__ void start(void)
    {
        pos_w = A(0), high = -A(INFINITY), sum = A(0);
        UNROLLED(i, K::PS)
            UNROLLED(c, K::VS) s[i][c] = turned[i][c] = A(0);
        UNROLLED(i, K::PER)
            UNROLLED(c, K::VEC) v[i][c] = pos[i][c] = A(0);
    }
};

/* No accumulator adds more than CHAIN terms in a row: at each CHAIN-th entry of a row its sums are
 * put aside and begin anew. What is aside of FORWARD is relative to the `high` of that time. */
template <class K> struct walk_aside {
    typedef typename K::A A;
    static constexpr int S = K::PS * K::VS, V = K::PER * K::VEC;
    sums_aside<A, V> of_v, of_pos;
    sums_aside<A, S> of_s, of_turned;
    sums_aside<A, 1> of_sum, of_pos_w;
    A high_then;
    __device__ __forceinline__ void put(bool first, row_sums<K> *r)
    {
        /* What lies aside is brought to the new `high` before the sums are added to it. */
        const A by = !K::BACK && !first ? exp_of(high_then - bounded(r->high)) : A(1);
        high_then = r->high;
        if (!K::BACK) of_sum.put(&r->sum, first, by);
        if (K::WALK != ROWS) of_v.put(r->v[0], first, by);
        if (K::POS) of_pos_w.put(&r->pos_w, first, by), of_pos.put(r->pos[0], first, by);
        if (K::BACK) of_s.put(r->s[0], first);
        if (K::COLLECT) of_turned.put(r->turned[0], first);
    }
    /* At the end of the row the sums get back what lies aside. */
    __device__ __forceinline__ void take(row_sums<K> *r)
    {
        const A by = !K::BACK ? exp_of(high_then - bounded(r->high)) : A(1);
        if (!K::BACK) of_sum.take(&r->sum, by);
        if (K::WALK != ROWS) of_v.take(r->v[0], by);
        if (K::POS) of_pos_w.take(&r->pos_w, by), of_pos.take(r->pos[0], by);
        if (K::BACK) of_s.take(r->s[0]);
        if (K::COLLECT) of_turned.take(r->turned[0]);
    }
};

/* FORWARD. An ABSENT entry gets the logit -infinity, so its weight is 0. Its value is not added at
 * all, because 0 times an infinity would be NaN. With POS it is added: cuda_fetch.cuh says why. */
STEP void accumulate_forward(const batch<K> &b, scored<K> &scores, row_sums<K> *r)
{
    typedef typename K::T T;
    typedef typename K::A A;
    constexpr int VEC = K::VEC;
    /* The largest logit so far, with the batch. */
    A higher = r->high;
    UNROLLED(f, K::FLY) {
        if (b.j[f] & ABSENT) scores.logit[f] = -A(INFINITY);
        higher = most(higher, scores.logit[f]);
    }
    /* All sums so far were relative to the old `high`. */
    const A zero = bounded(higher), shrink = exp_of(r->high - zero);
    r->high = higher;
    r->sum = product(r->sum, shrink);
    if (K::POS) r->pos_w = product(r->pos_w, shrink);
    UNROLLED(i, K::PER)
        UNROLLED(v, VEC) {
            r->v[i][v] *= shrink;
            if (K::POS) r->pos[i][v] *= shrink;
        }
    UNROLLED(f, K::FLY) {
        /* The denominator counts w, since dropout and the edges' weights act on the softmax's
         * result; the values count `use`. */
        const A w = exp_of(scores.logit[f] - zero), use = K::EDGES ? w * b.by[f] : w;
        r->sum += w;
        const A use_pos = K::POS && scores.above[f] ? use : A(0);
        const bool counts = K::POS || !(b.j[f] & ABSENT);
        if (K::POS && scores.above[f]) r->pos_w += w;
        UNROLLED(i, K::PER) {
            A wide[VEC];
            unpack<T, VEC>(b.far_v[f][i], wide);
            settle<T, VEC>(wide);
            UNROLLED(v, VEC)
                if (counts) r->v[i][v] = fma(use, wide[v], r->v[i][v]);
            UNROLLED(v, VEC)
                if (K::POS) r->pos[i][v] = fma(use_pos, wide[v], r->pos[i][v]);
        }
    }
}

/* Logits less the logarithm of their row's sum, lse + lse_rest. lse_rest is read only where lse is
 * so large that its rounding shows, since a load under a branch is waited for at once. */
STEP void subtract_lse(const attend_lane<K> &me, const walk_args<K> &s, int64_t row,
                       const batch<K> &b, scored<K> &scores)
{
    typedef typename K::A A;
    /* lse_rest is asked about once a batch: a branch for each entry would wait for each load. */
    bool large = false;
    UNROLLED(f, K::FLY) large |= fabs(b.lse[f]) > A(LARGE_LSE), scores.logit[f] -= b.lse[f];
    if (large && s.lse_rest.data)
        for (int f = 0; f < K::FLY; f++) {
            const int64_t of_row = K::WALK == COLS ? int64_t(b.j[f] & ~ABSENT) : row;
            scores.logit[f] -= __ldg(s.lse_rest.at(of_row, me.head, 0));
        }
}

/* ROWS writes what belongs to single entries. The first lane of a head writes each once. */
STEP void write_edge(const attend_lane<K> &me, const walk_args<K> &s, int64_t edge,
                     typename K::A use, typename K::A weight, typename K::A bias)
{
    typedef typename K::T T;
    if (s.to_use.data) *s.to_use.at(edge, me.head, 0) = narrow<T>(use);
    if (s.to_weight.data) *s.to_weight.at(edge, me.head, 0) = narrow<T>(weight);
    if (s.to_bias.data) *s.to_bias.at(edge, me.head, 0) = narrow<T>(bias);
}

/* ROWS and COLS. Of each entry,
 *     w      is its softmax, exp(logit - lse - lse_rest),
 *     use    is u, what its value counts in out: w times dropout's factor times the edge's weight,
 *     slant  is the gradient of its logit, w (u / w <gout, v> - delta),
 *     gain_s is the gradient of leaky's argument in ADDITIVE.
 * The operands of a logit get slant times their factor: in DOT the far operand, in GATV2 leaky's
 * slope at each column. The factor that all entries share (scale, att) waits for the row's end. */
STEP void accumulate_back(const attend_lane<K> &me, const walk_args<K> &s, int64_t row,
                          const batch<K> &b, scored<K> &scores, row_sums<K> *r)
{
    typedef typename K::T T;
    typedef typename K::A A;
    A met = A(0), level = A(0); /* LATE: the batch's sums of dot, and of delta */
    if (!K::LATE) subtract_lse(me, s, row, b, scores);
    UNROLLED(f, K::FLY) {
        const A w = b.j[f] & ABSENT ? A(0)
                                    : exp_of(K::LATE ? scores.logit[f] - b.lse[f] - b.rest[f]
                                                     : scores.logit[f]);
        const A use = K::EDGES ? w * b.by[f] : w;
        const A t = K::EDGES ? b.by[f] * scores.dot[f] : scores.dot[f];
        const A slant = w * (t - b.delta[f]);
        const A gain_s = slant * scores.gain[f];
        if (K::EDGES && K::WALK == ROWS && me.live && !me.sub && !(b.j[f] & ABSENT))
            write_edge(me, s, b.edge[f], use, b.drop[f] * w * scores.dot[f], gain_s);
        /* The side of the score: gq, or gk. */
        if constexpr (K::LATE) {
            met = fma(use * scores.gain[f], scores.dot[f], met);
            level = fma(w * scores.gain[f], b.delta[f], level);
        } else if constexpr (K::SCALAR) {
            r->s[0][0] += gain_s;
        } else {
            UNROLLED(i, K::PS) {
                A wide[K::VS];
                if (K::SCORE == FMM_DOT) unpack<T, K::VS>(b.far_s[f][i], wide);
                UNROLLED(v, K::VS) {
                    const A by_v = K::SCORE == FMM_DOT ? wide[v] : scores.tilt[f][i][v];
                    r->s[i][v] = fma(slant, by_v, r->s[i][v]);
                    if (K::COLLECT)
                        r->turned[i][v] = fma(slant, scores.leaned[f][i][v], r->turned[i][v]);
                }
            }
        }
        /* The side of the values: gv is the sum of u gout. */
        if (K::WALK == COLS) {
            UNROLLED(i, K::PER) {
                A wide[K::VEC];
                unpack<T, K::VEC>(b.far_v[f][i], wide);
                UNROLLED(v, K::VEC) r->v[i][v] = fma(use, wide[v], r->v[i][v]);
            }
        }
    }
    /* The lanes' parts of <gout, v> meet here, once for the batch. All lanes have the same sum of
     * delta, hence it is not part of the exchange. */
    if (K::LATE) r->s[0][0] += me.sum_of_head(met) - level;
}
