/* Scores and messages of any kind in fused, and what its gradients do with an entry's pack of VEC
 * channels, of which both sides are in registers.
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

/* Runs `run` with the constant that `kind` is, of FIRST to END - 1. So it branches on the kind
 * once, and not in its loop over channels. */
template <int FIRST, int END, class Run>
static __device__ __forceinline__ void for_kind(int kind, Run run)
{
    if constexpr (FIRST + 1 < END)
        if (kind != FIRST) return for_kind<FIRST + 1, END>(kind, run);
    run(std::integral_constant<int, FIRST>());
}
#define ONE(...) +1
enum { SCORES = 0 FUSED_SCORES(ONE), MESSAGES = 0 FUSED_MESSAGES(ONE) };
enum { ACTIVATIONS = 0 FUSED_ACTIVATIONS(ONE) };
#undef ONE

/* N messages; x and y are the sides of the score, z is that of the message SCALE. x has the sides
 * of REPEAT messages, which are those of the next ones, too. `to` may be y or z. */
template <class A, int N, int REPEAT = N>
static __device__ __forceinline__ void messages(int message, int activation, const A *x, const A *y,
                                                const A *z, A *to)
{
    for_kind<0, MESSAGES>(message, [&](auto kind) {
        UNROLLED(v, N)
            to[v] = kind.value == FMM_MESSAGE_SCALE
                        ? z[v]
                        : message_raw<A>(kind.value, x[v % REPEAT], y[v]);
    });
    for_kind<0, ACTIVATIONS>(activation, [&](auto kind) {
        UNROLLED(v, N) to[v] = activated<A>(kind.value, to[v]);
    });
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
        for_kind<0, SCORES>(s.score, [&](auto kind) {
            UNROLLED(v, VEC) *score = score_with<A>(kind.value, *score, own_s[v], there_s[v]);
        });
        messages<A, VEC>(s.message, s.activation, COLS ? there_s : own_s, COLS ? own_s : there_s,
                         COLS ? own_m : there_m, m);
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
    const A *const g = COLS ? there_m : own_m;
    A term[VEC];
    /* Through the score: ds s', one term for each channel. */
    for_kind<0, SCORES>(s.score, [&](auto kind) {
        UNROLLED(v, VEC) term[v] = score_slope<A>(kind.value, ds, own_s[v], there_s[v]);
    });
    /* Here the message is z itself. */
    if (s.message == FMM_MESSAGE_SCALE && s.activation == FMM_ACT_NONE) {
        UNROLLED(v, VEC) {
            sum_s[v] += term[v];
            if (COLS) sum_m[v] = sum_m[v] + w * g[v];
        }
        return;
    }
    /* Else the gradient of the message goes through the activation's slope, and from there to gz,
     * or to the side that the message shares with the score. */
    A dm[VEC]; /* the message, and then its gradient before the activation */
    messages<A, VEC>(s.message, s.activation, COLS ? there_s : own_s, COLS ? own_s : there_s,
                     COLS ? own_m : there_m, dm);
    for_kind<0, ACTIVATIONS>(s.activation, [&](auto kind) {
        UNROLLED(v, VEC) dm[v] = activation_slope<A>(kind.value, w * g[v], dm[v]);
    });
    for_kind<0, MESSAGES>(s.message, [&](auto kind) {
        UNROLLED(v, VEC) {
            if (kind.value != FMM_MESSAGE_SCALE)
                term[v] += message_slope<A>(kind.value, COLS, dm[v], own_s[v], there_s[v]);
            else if (COLS)
                sum_m[v] += dm[v];
            sum_s[v] += term[v];
        }
    });
}
