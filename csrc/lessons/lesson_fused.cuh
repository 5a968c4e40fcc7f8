/* What the lessons of fused share: their operands, the weight of an entry, and what they decline.
 *
 * They take dot products, the message z, sums and any edge function: the interpreter is the
 * package's, so that a lesson differs from it in how the work is shared out and in nothing else.
 *
 *     entry (i, j)    score = < x[i], y[j] >    weight_of(score, value)    out[i] += weight z[j]
 *                     the lesson's own          here                       the lesson's own */
#pragma once

#include "../fused/cuda_edge.cuh"
#include "lesson.cuh"

/* x and y have `feat` channels a head, z and the output `feat_out`. */
template <class T> struct fused_args {
    csr_view a;
    edge_view val;
    dense_view<const T> x, y, z;
    dense_view<T> out;
    int64_t feat, feat_out;
    edge_program<T> edge;
};

/* The edge function of entry p. Common functions have a direct form; the rest are interpreted. */
template <class T>
static __device__ __forceinline__ T weight_of(const fused_args<T> &s, int64_t p, int64_t h, T score)
{
    const T a = edge_value<T>(s.val, edge_of(s.val, p), h);
    return s.edge.kind == EDGE_PROGRAM ? edge_run(s.edge, score, a).w
                                       : edge_direct(s.edge, score, a).w;
}

/* The column of an entry; -1: skip it. */
template <class T>
static __device__ __forceinline__ int32_t column_of(const fused_args<T> &s, int64_t p)
{
    const int32_t j = __ldg(s.a.idx + p);
    return (uint32_t)j < (uint32_t)s.a.cols ? j : -1;
}

/* The guard of every lesson of fused. A function in C cannot run on the card. */
static inline bool lesson_fused_supports(const fmm_call *call)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    return (f->x->dtype == FMM_F32 || f->x->dtype == FMM_F64) && f->pass == FMM_FORWARD &&
           f->score == FMM_SCORE_DOT && f->z && f->activation == FMM_ACT_NONE &&
           f->reduce == FMM_SUM && !f->function && f->x->heads <= GRID_YZ &&
           call->a->rows <= INT32_MAX;
}

/* A call's operands for kernels of one type, which is that of the last argument. */
template <class T> static fused_args<T> fused_of(const fmm_call *call, T)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    return fused_args<T>{view_csr(call->a),
                         view_edges(call->a, call->val),
                         view_dense<const T>(f->x),
                         view_dense<const T>(f->y),
                         view_dense<const T>(f->z),
                         view_dense<T>(f->out),
                         f->x->feat,
                         f->out->feat,
                         edge_of_fusion<T>(f)};
}

/* Runs launch(operands) for the call's dtype with its device current. */
template <class Launch>
static fmm_status run_fused(const fmm_exec *exec, const fmm_call *call, Launch launch)
{
    if (!call->a->rows) return FMM_OK;
    return run_lesson("fused", exec, fmm_fusion_of(call)->x->dtype,
                      [&](auto t) { launch(fused_of(call, t)); });
}
