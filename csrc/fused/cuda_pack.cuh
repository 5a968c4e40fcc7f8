/* The gradients of fused: what one entry has to do with a pack of VEC channels of which both sides
 * are in registers.
 *
 *     own side of the row      own_s   own_m     one operand of the score, one of the message
 *     far side of the entry    there_s there_m   the other two
 *                                |       |
 *     pack_dots                  score   product       before the edge function is known
 *     pack_add                   sum_s   sum_m         under ds and w, which it gave
 *
 * Without ANY the score is a dot product and the message is z, which takes one multiply-add each.
 * With ANY all kinds of score, message and activation are served. They are the same for a whole
 * launch, so every lane branches alike, once for each pack. Terms are those of the definition,
 * added one by one: a gradient of distances collects x[i] - y[j] and not both of their sums, which
 * would cancel. */
#pragma once

#include "cuda_edge.cuh"
#include "../spmm/cuda_terms.cuh"

/* What the pack adds to a score of any kind. The branch on the kind stands outside the loop. */
template <class A, int VEC>
static __device__ __forceinline__ A pack_score(int score, A sum, const A *own, const A *there)
{
    const auto add = [&](auto term) __attribute__((always_inline))
    {
        UNROLLED(v, VEC) sum = term(own[v], there[v], sum);
        return sum;
    };
    switch (score) {
#define NUM(c) A(c)
#define ADD_CASE(id, value, gradient)                                                              \
    case id:                                                                                       \
        return add([](A x, A y, A to) { return to + (value); });
        FUSED_SCORES(ADD_CASE)
#undef ADD_CASE
#undef NUM
    default:
        return sum;
    }
}

/* What the pack adds to the gradient through the score, ds s', one term for each channel. */
template <class A, int VEC>
static __device__ __forceinline__ void pack_slopes(int score, A ds, const A *own, const A *there,
                                                   A *to)
{
    const auto set = [&](auto slope) __attribute__((always_inline))
    {
        UNROLLED(v, VEC) to[v] = slope(own[v], there[v]);
    };
    switch (score) {
    case FMM_SCORE_DOT:
        return set([=](A, A other) { return ds * other; });
    case FMM_SCORE_NONE:
        return set([](A, A) { return A(0); });
    default:
        set([=](A mine, A other) { return ds * score_slope<A>(score, A(1), mine, other); });
    }
}

/* The messages of the pack; x and y are the sides of the score, z is that of the message SCALE. */
template <class A, int VEC>
static __device__ __forceinline__ void pack_messages(int message, int activation, const A *x,
                                                     const A *y, const A *z, A *to)
{
    UNROLLED(v, VEC) {
        to[v] = z[v];
        if (message == FMM_MESSAGE_SCALE && activation == FMM_ACT_NONE) continue;
        if (message != FMM_MESSAGE_SCALE) to[v] = message_raw<A>(message, x[v], y[v]);
        to[v] = activated<A>(activation, to[v]);
    }
}

/* What the pack adds to the score and to the product of the message with the gradient of the
 * output. */
template <class A, bool ANY, bool COLS, int VEC, class S>
static __device__ __forceinline__ void pack_dots(const S &s, const A *own_s, const A *there_s,
                                                 const A *own_m, const A *there_m, A *score,
                                                 A *product)
{
    A m[VEC];
    if (ANY) {
        if (s.score != FMM_SCORE_NONE) *score = pack_score<A, VEC>(s.score, *score, own_s, there_s);
        pack_messages<A, VEC>(s.message, s.activation, COLS ? there_s : own_s,
                              COLS ? own_s : there_s, COLS ? own_m : there_m, m);
    }
    UNROLLED(v, VEC) {
        if (!ANY) *score += own_s[v] * there_s[v];
        *product += (ANY && COLS ? m[v] : own_m[v]) * (ANY && !COLS ? m[v] : there_m[v]);
    }
}

/* What the entry adds to the sums of the pack, one addition for each sum. */
template <class A, bool ANY, bool COLS, int VEC, class S>
static __device__ __forceinline__ void pack_add(const S &s, A ds, A w, const A *own_s,
                                                const A *there_s, const A *own_m, const A *there_m,
                                                A *sum_s, A *sum_m)
{
    if (!ANY) {
        UNROLLED(v, VEC) {
            sum_s[v] = reduce_sum::add(sum_s[v], ds, there_s[v]);
            if (COLS) sum_m[v] = reduce_sum::add(sum_m[v], w, there_m[v]);
        }
        return;
    }
    const bool scale = s.message == FMM_MESSAGE_SCALE;
    const A *const g = COLS ? there_m : own_m;
    A term[VEC];
    pack_slopes<A, VEC>(s.score, ds, own_s, there_s, term);
    if (scale && s.activation == FMM_ACT_NONE) { /* the message is z itself */
        UNROLLED(v, VEC) {
            sum_s[v] += term[v];
            if (COLS) sum_m[v] = sum_m[v] + w * g[v];
        }
        return;
    }
    /* Else the gradient of the message goes through the activation's slope, and from there to gz,
     * or to the side that the message shares with the score. */
    A m[VEC];
    pack_messages<A, VEC>(s.message, s.activation, COLS ? there_s : own_s, COLS ? own_s : there_s,
                          COLS ? own_m : there_m, m);
    UNROLLED(v, VEC) {
        /* dm: the gradient of the message before its activation. */
        const A dm = w * g[v] * activation_slope<A>(s.activation, A(1), m[v]);
        if (scale && COLS) sum_m[v] += dm;
        if (!scale) term[v] += dm * message_slope<A>(s.message, COLS, A(1), own_s[v], there_s[v]);
        sum_s[v] += term[v];
    }
}
