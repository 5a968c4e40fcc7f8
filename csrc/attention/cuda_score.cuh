/* Step 3 of the walk, score: the logit of each entry of a batch and, in the backward, <gout, v>.
 *
 * Every lane of a head multiplies its own columns; then the lanes add up what they have in a tree
 * of shuffles, after which all of them have the same logit:
 *
 *     lane of a head     0     1     2     3
 *     its columns' sum   a     b     c     d
 *     distance 2         a+c   b+d   c+a   d+b
 *     distance 1         a+c+b+d in every lane, to the bit, since each addition commutes
 *
 * Scores are symmetric in the own and the far operand: ROWS has q of its own and gathers k, COLS
 * has k and gathers q, and both round a logit as FORWARD did. */
#pragma once

#include "cuda_gather.cuh"

/* Of each entry of a batch; t is the argument of leaky. */
template <class K> struct scored {
    typedef typename K::A A;
    A logit[K::FLY], dot[K::FLY]; /* dot: <gout, v>, in LATE this lane's part of it */
    A gain[K::FLY];               /* ADDITIVE: the slope of leaky at t, else 1 */
    bool above[K::FLY];           /* ADDITIVE: t is above 0 */
    A tilt[K::FLY][K::PS][K::VS]; /* GATV2: leaky's slope at each column's t, as a number: there are
                                   * too few predicate registers for as many conditions */
    A leaned[K::FLY][K::PS][K::VS]; /* GATV2: leaky(t) */
};

/* The part of entry f's logit that this lane's columns make. */
STEP void score_columns(const attend_lane<K> &me, const walk_args<K> &s, const own_numbers<K> &own,
                        const typename K::A (&att)[K::PS][K::VS], const batch<K> &b, int f,
                        scored<K> *to)
{
    typedef typename K::A A;
    UNROLLED(i, K::PS) {
        const A before = to->logit[f];
        A wide[K::VS];
        unpack<typename K::T, K::VS>(b.far_s[f][i], wide);
        UNROLLED(v, K::VS) {
            if (K::SCORE == FMM_DOT) {
                to->logit[f] = fma(own.s[i][v], wide[v], to->logit[f]);
                continue;
            }
            const A t = own.s[i][v] + wide[v];
            const bool up = t > A(0);
            to->tilt[f][i][v] = up ? A(1) : s.slope;
            to->leaned[f][i][v] = up ? t : t * s.slope;
            if (K::BACK) to->leaned[f][i][v] = t * to->tilt[f][i][v];
            to->logit[f] = fma(att[i][v], to->leaned[f][i][v], to->logit[f]);
        }
        if (!K::FULL && !me.in_s[i]) to->logit[f] = before; /* these columns were another's */
    }
}

/* The part of entry f's <gout, v> that this lane's columns make. */
STEP void dot_columns(const attend_lane<K> &me, const own_numbers<K> &own, const batch<K> &b, int f,
                      scored<K> *to)
{
    typedef typename K::A A;
    UNROLLED(i, K::PER) {
        const A before = to->dot[f];
        A wide[K::VEC];
        unpack<typename K::T, K::VEC>(b.far_v[f][i], wide);
        UNROLLED(v, K::VEC) to->dot[f] = fma(own.v[i][v], wide[v], to->dot[f]);
        if (!K::FULL && !me.in_v[i]) to->dot[f] = before;
    }
}

/* In ADDITIVE the bias is inside leaky, in the other scores behind it. `product` keeps the rounding
 * of a logit the same in all kernels. */
STEP void score(const attend_lane<K> &me, const walk_args<K> &s, const own_numbers<K> &own,
                const typename K::A (&att)[K::PS][K::VS], batch<K> &b, scored<K> *to)
{
    typedef typename K::A A;
    constexpr bool SCALAR = K::SCALAR;
    UNROLLED(f, K::FLY) {
        to->logit[f] = to->dot[f] = A(0), to->gain[f] = A(1);
        if constexpr (SCALAR) {
            if (!K::LATE) unpack<typename K::T, 1>(b.far_s[f][0], &b.q[f]);
            A t = own.s[0][0] + b.q[f];
            if (K::EDGES) t += b.bias[f];
            to->above[f] = t > A(0);
            to->gain[f] = to->above[f] ? A(1) : s.slope;
            to->logit[f] = product(t, to->gain[f]);
        } else {
            score_columns(me, s, own, att, b, f, to);
        }
        if (K::BACK) dot_columns(me, own, b, f, to);
    }
    if (!SCALAR || (K::BACK && !K::LATE))
#pragma unroll
        for (int d = me.half_of_head(); d; d >>= 1)
            UNROLLED(f, K::FLY) {
                if (!SCALAR) to->logit[f] += __shfl_xor_sync(ALL, to->logit[f], d);
                if (K::BACK) to->dot[f] += __shfl_xor_sync(ALL, to->dot[f], d);
            }
    if (!SCALAR)
        UNROLLED(f, K::FLY) {
            if (K::SCORE == FMM_DOT) to->logit[f] = product(to->logit[f], s.scale);
            if (K::EDGES) to->logit[f] += b.bias[f];
        }
}
