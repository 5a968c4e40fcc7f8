/* A call of attention `segments` for one element type: from the operands of the C interface to the
 * arguments of the kernels.
 *
 *     fmm_attention  ->  attend_args  ->  [stats_of]  ->  the walk  ->  [attend_join]
 *                                           COLS only                    if a row is long
 *
 * The workspace of a call holds, one behind the other:
 *
 *     the plan              stats                         slots
 *     unless the matrix     what COLS gathers of a row,   partial sums of the pieces
 *     has one               unless the caller packed it   of long rows
 */
#pragma once

#include "cuda_launch.cuh"
#include "cuda.h"

/* A stride that no second row or head uses may be any number; 0 keeps addresses inside. */
template <class T> static far_side<T> far_of(const fmm_dense *d)
{
    return far_side<T>{static_cast<const char *>(d->data),
                       d->heads > 1 ? d->head_stride * (int64_t)sizeof(T) : 0,
                       d->rows > 1 ? (uint32_t)(d->row_stride * (int64_t)sizeof(T)) : 0};
}

template <class T> static fmm_status attention_run(const fmm_exec *exec, const fmm_call *call)
{
    typedef typename sum_of<T>::type A;
    const fmm_csr *a = call->a;
    const fmm_attention passes = in_passes(call), *const t = &passes;
    const bool cols = t->pass == FMM_ATTENTION_COLS, forward = t->pass == FMM_ATTENTION_FORWARD;
    const bool weights = t->pass == FMM_ATTENTION_WEIGHTS;
    int before;
    if (!a->rows) return fmm_attention_reference_cuda(exec, call); /* zeros in gatt */
    TRY(cuda_enter("attention", exec, &before));

    /* Scores and values are symmetric in rows and columns: COLS exchanges the two sides. */
    attend_args<T> s = {};
    s.a = view_csr(a);
    s.plan = plan_for_call(exec, a);
    s.edges = view_edges(a, NULL);
    s.own_s = view_dense<const T>(cols ? &t->k : &t->q);
    s.far_s = far_of<T>(cols ? &t->q : &t->k);
    if (!forward && !weights) s.own_v = view_dense<const T>(cols ? &t->v : &t->gout);
    s.far_v = far_of<T>(cols ? &t->gout : &t->v);
    s.att = view_dense<const T>(&t->att);
    s.bias = view_dense<const T>(&t->bias);
    s.weight = view_dense<const T>(&t->weight);
    s.lse = view_dense<const A>(&t->lse);
    s.lse_rest = view_dense<const A>(&t->lse_rest);
    s.delta = view_dense<const A>(&t->delta);
    /* Results that this pass does not write stay absent. */
    if (forward) {
        s.to_v = view_dense<T>(&t->out);
        s.to_lse = view_dense<A>(&t->lse), s.to_rest = view_dense<A>(&t->lse_rest);
        s.to_pos = view_dense<A>(&t->pos), s.to_pos_w = view_dense<A>(&t->pos_w);
    }
    if (cols) s.to_s = view_dense<T>(&t->gk), s.to_v = view_dense<T>(&t->gv);
    if (t->pass == FMM_ATTENTION_ROWS) {
        s.to_s = view_dense<T>(&t->gq);
        s.to_att = view_dense<A>(&t->gatt);
        s.to_bias = view_dense<T>(&t->gbias);
        s.to_weight = view_dense<T>(&t->gweight);
    }
    if (!cols && !forward) s.to_use = view_dense<T>(&t->weights);
    s.seed = t->seed;
    s.keys = t->keys;
    s.drops = t->dropout > 0;
    s.keep_limit = fmm_philox_limit(t->dropout);
    s.keep_scale = t->dropout < 1 ? A(1 / (1 - t->dropout)) : A(0);
    s.scale = A(t->scale);
    s.slope = A(t->slope);
    /* Sums of a score follow from it, so it is that of the whole matrix. */
    enum { LONG_ROWS = 256, FEW = 1 << 23 };
    s.few = whole_nnz(a) < FEW && whole_nnz(a) >= LONG_ROWS * whole_rows(a);
    s.narrow = forward && is_narrow(call); /* COLS gathers statistics of all heads together */
    s.heads = (int32_t)t->q.heads;
    s.feat = (int32_t)t->q.feat;
    s.feat_v = weights ? 0 : (int32_t)t->v.feat;
    /* The kernels gather without a branch, even from operands of no columns. What they then read
     * counts for nothing, but needs an address: that of the plan's header. */
    if (!s.feat) s.far_s = far_side<T>{reinterpret_cast<const char *>(s.plan.header), 0, 0};
    if (!s.feat_v) s.far_v = far_side<T>{reinterpret_cast<const char *>(s.plan.header), 0, 0};
    const bool same = s.far_s.data == s.far_v.data && s.feat == s.feat_v &&
                      s.far_s.row == s.far_v.row && s.far_s.head == s.far_v.head;
    s.width_s = slot_width_s(t);
    s.width = slot_width(t);
    const void *const packed = fmm_packed_attention_of(call)->packed;
    char *at = static_cast<char *>(exec->workspace) + plan_workspace(a);
    s.stats = static_cast<const A *>(packed ? packed : at);
    /* COLS may start while the kernel before it still runs. Until it waits for that kernel it reads
     * the matrix and its plan, and writes rows without entries. That is right only if the kernel
     * before is stats_of or DELTA (cuda_node_sums.cu) of the same operator. A kernel of another
     * operator may have made the matrix, or may still read freed memory in which results lie now.
     */
    s.early = a->cols && s.plan.header != exec->workspace &&
              (!packed || fmm_packed_attention_of(call)->before);
    at += plan_padded(stats_bytes(call));
    if (s.to_s.data || s.to_v.data || forward) s.partial = reinterpret_cast<A *>(at);

    if (cols && !packed) {
        const dense_view<const T> q = view_dense<const T>(&t->q);
        A *const to = const_cast<A *>(s.stats);
        const stats_args<T> stats = {
            s.lse,   s.lse_rest,         s.delta, q, to, a->cols, reciprocal(s.heads),
            s.heads, planes_of(t->score)};
        const int64_t count = a->cols * int64_t(s.heads);
        if (count)
            stats_of<T>
                <<<(unsigned)smaller(blocks_for(count), 1 << 16), BLOCK, 0, stream_of(exec)>>>(
                    stats);
    }
    /* The kind says how little the kernel has to read. */
    const bool packs = attention_packs(t);
    const bool edges = s.bias.data || s.weight.data || s.drops || s.to_use.data || s.to_bias.data ||
                       s.to_weight.data;
    const kind kind = edges ? WITH_EDGES : same ? SAME_FAR : PLAIN;
    const int64_t parts = t->gatt.rows;
    if (forward) choose_score<T, FORWARD>(exec, s, t->score, packs, kind, parts);
    if (cols) choose_score<T, COLS>(exec, s, t->score, packs, kind, parts);
    if (!forward && !cols) choose_score<T, ROWS>(exec, s, t->score, packs, kind, parts);
    return cuda_leave("attention", exec, before);
}
