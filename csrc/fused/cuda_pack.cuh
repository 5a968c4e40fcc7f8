/* The gradients of fused for every score, message and activation: what one entry adds, for a pack
 * of VEC channels of which both sides are in registers.
 *
 * The kinds are the same for a whole launch, so every lane branches alike, once for each pack.
 * Terms are those of the definition, added one by one: a gradient of distances collects x[i] - y[j]
 * and not both of their sums, which would cancel. */
#ifndef FMM_CUDA_FUSED_PACK_CUH
#define FMM_CUDA_FUSED_PACK_CUH

#include "cuda_edge.cuh"

/* What they add to the score. */
template <class A, int VEC>
static __device__ __forceinline__ A pack_score(int score, A sum, const A *own, const A *there)
{
    const auto add = [&](auto term) __attribute__((always_inline))
    {
#pragma unroll
        for (int v = 0; v < VEC; v++) sum = term(own[v], there[v], sum);
        return sum;
    };
    switch (score) {
    case FMM_SCORE_DOT:
        return add([](A x, A y, A to) { return to + x * y; });
    case FMM_SCORE_SQDIST:
        return add([](A x, A y, A to) { return to + (x - y) * (x - y); });
    case FMM_SCORE_L1:
        return add([](A x, A y, A to) { return to + absolute(x - y); });
    default:
        return add([](A x, A y, A to) { return to + (x + y); });
    }
}

/* What they add to the gradient through the score, ds s'. */
template <class A, int VEC>
static __device__ __forceinline__ void pack_slopes(int score, A ds, const A *own, const A *there,
                                                   A *to)
{
    const auto set = [&](auto slope) __attribute__((always_inline))
    {
#pragma unroll
        for (int v = 0; v < VEC; v++) to[v] = slope(own[v], there[v]);
    };
    switch (score) {
    case FMM_SCORE_DOT:
        return set([=](A, A other) { return ds * other; });
    case FMM_SCORE_NONE:
        return set([](A, A) { return A(0); });
    default:
        set([=](A mine, A other) { return ds * score_slope<A>(score, mine, other); });
    }
}

/* Their messages; x and y are the sides of the score, z is SCALE's. */
template <class A, int VEC>
static __device__ __forceinline__ void pack_messages(int message, int activation, const A *x,
                                                     const A *y, const A *z, A *to)
{
#pragma unroll
    for (int v = 0; v < VEC; v++) {
        to[v] = z[v];
        if (message == FMM_MESSAGE_SCALE && activation == FMM_ACT_NONE) continue;
        if (message != FMM_MESSAGE_SCALE) to[v] = message_raw<A>(message, x[v], y[v]);
        to[v] = activated<A>(activation, to[v]);
    }
}

/* All that an entry adds to the sums of a pack; one addition for each. */
template <class A, bool COLS, int VEC, class S>
static __device__ __forceinline__ void pack_add(const S &s, A ds, A w, const A *own_s,
                                                const A *there_s, const A *own_m, const A *there_m,
                                                A *sum_s, A *sum_m)
{
    const bool scale = s.message == FMM_MESSAGE_SCALE;
    const A *const g = COLS ? there_m : own_m;
    A term[VEC];
    pack_slopes<A, VEC>(s.score, ds, own_s, there_s, term);
    if (scale && s.activation == FMM_ACT_NONE) {
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            sum_s[v] += term[v];
            if (COLS) sum_m[v] = sum_m[v] + w * g[v];
        }
        return;
    }
    A m[VEC];
    pack_messages<A, VEC>(s.message, s.activation, COLS ? there_s : own_s, COLS ? own_s : there_s,
                          COLS ? own_m : there_m, m);
#pragma unroll
    for (int v = 0; v < VEC; v++) {
        const A dm = w * g[v] * activation_slope<A>(s.activation, m[v]);
        if (scale && COLS) sum_m[v] += dm;
        if (!scale) term[v] += dm * message_slope<A>(s.message, COLS, own_s[v], there_s[v]);
        sum_s[v] += term[v];
    }
}

#endif
