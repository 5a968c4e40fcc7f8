/* fusedmm::_node_scores, _node_delta and _node_spread: the sums that additive attention needs of
 * each node by itself. node_sums.c has the equations. x, out and their gradients are [n, H, C], att
 * is [1, H, C], k, q and their gradients are [n, H, 1]. Whatever else is one number per node and
 * head is [n, H]. A tensor without elements is absent. */
#include "torch_attend.h"

/* (x, att_k, att_q) -> k, q */
FMM_KERNEL(scores, 3, 2)
{
    enum { X, ATT_K, ATT_Q };
    fmm_node_call c = {.form = FMM_NODE_SCORES};
    const fmm_dense *x = &c.x;
    if (!frame_dense(f, X, "x", &c.x, NULL) || !attend_att(f, ATT_K, "att_k", &c.att[0]) ||
        !attend_att(f, ATT_Q, "att_q", &c.att[1]))
        return false;
    for (int t = 0; t < 2; t++)
        if (!frame_result(f, 3, x->dtype, x->rows, x->heads, 1, &out[t], &c.score[t])) return false;
    return frame_try(f, fmm_node_sums(&f->exec, &c));
}

enum { GOUT, OUT, LSE, LSE_REST, GLSE, POS, POS_W, Q, TENSORS };

/* (gout, out, lse, lse_rest, glse, pos, pos_w, q, float slope) -> delta, gq, packed. gq has no
 * elements if pos has none. packed has none if q has none, and never any on the CPU. */
FMM_KERNEL(delta, TENSORS, 3)
{
    enum { DELTA, GQ, PACKED };
    tensor t;
    fmm_node_call c = {.form = FMM_NODE_DELTA, .slope = frame_float(number[0])};
    const fmm_dense *gout = &c.x;
    fmm_dense packed;
    if (!frame_dense(f, GOUT, "gout", &c.x, NULL) || !frame_dense(f, OUT, "out", &c.value, NULL) ||
        !frame_numbers(f, LSE, "lse", &c.lse) ||
        !frame_numbers(f, LSE_REST, "lse_rest", &c.lse_rest) ||
        !frame_numbers(f, GLSE, "glse", &c.glse) || !frame_numbers(f, POS_W, "pos_w", &c.pos_w) ||
        !frame_take(f, POS, "pos", &t))
        return false;
    const fmm_dtype sums = frame_sums(gout->dtype);
    const int64_t n = gout->rows, heads = gout->heads;
    const bool gq = t.dim == 3;
    if ((gq && !frame_dense(f, POS, "pos", &c.pos, NULL)) ||
        !frame_result(f, 2, sums, n, heads, 1, &out[DELTA], &c.delta) ||
        !frame_result_if(f, gq, 3, gout->dtype, n, heads, 1, &out[GQ], &c.score[1]) ||
        !frame_take(f, Q, "q", &t))
        return false;
    const bool packs = t.dim == 3 && f->exec.device == FMM_CUDA;
    if ((packs && !frame_dense(f, Q, "q", &c.score[0], NULL)) ||
        !frame_result(f, 2, sums, packs ? n : 0, heads, FMM_NODE_PACKED, &out[PACKED], &packed))
        return false;
    c.packed = packs ? packed.data : NULL;
    return frame_try(f, fmm_node_sums(&f->exec, &c));
}

/* (x, gv, gk, gq, att_k, att_q) -> the gradients of x, att_k and att_q */
FMM_KERNEL(spread, 6, 3)
{
    enum { X, GV, GK, ATT_K = GK + 2, ATT_Q };
    fmm_node_call c = {.form = FMM_NODE_SPREAD}, clear = {.form = FMM_NODE_DELTA};
    const fmm_dense *x = &c.x;
    tensor t;
    if (!frame_dense(f, X, "x", &c.x, NULL) || !frame_dense(f, GV, "gv", &c.value, NULL) ||
        !attend_att(f, ATT_K, "att_k", &c.att[0]) || !attend_att(f, ATT_Q, "att_q", &c.att[1]) ||
        !frame_result(f, 3, x->dtype, x->rows, x->heads, x->feat, &out[0], &c.out))
        return false;
    for (int k = 0; k < 2; k++) {
        const char *const name = k ? "gq" : "gk";
        fmm_dense *const d = &c.score[k];
        if (!frame_dense(f, GK + k, name, d, NULL) ||
            !frame_result(f, 3, x->dtype, 1, x->heads, x->feat, &out[1 + k], &c.total[k]))
            return false;
        if (d->rows != x->rows || d->heads != x->heads || d->feat != 1)
            return frame_fail(f, "%s must have a number for each row and head of x", name);
    }
    const int64_t parts = fmm_node_parts(f->exec.device, x->rows);
    if (!frame_result(f, 3, frame_sums(x->dtype), parts, 2 * x->heads, x->feat, &t, &c.parts))
        return false;
    if (f->exec.device == FMM_CUDA) {
        /* A call of no nodes sets the counters to 0. */
        if (!frame_vector(f, x->heads * x->feat / FMM_NODE_COLUMNS + 1,
                          fmm_torch.aoti_torch_dtype_int32(), &t))
            return false;
        clear.x = frame_view(NULL, x->dtype, 0, x->heads, x->feat);
        clear.arrived = c.arrived = t.data;
        if (!frame_try(f, fmm_node_sums(&f->exec, &clear))) return false;
    }
    return frame_try(f, fmm_node_sums(&f->exec, &c));
}

const fmm_torch_operator fmm_torch_node_sums[] = {
    FMM_OPERATOR(_node_scores, scores,
                 "(Tensor x, Tensor att_k, Tensor att_q) -> (Tensor, Tensor)"),
    FMM_OPERATOR(_node_delta, delta,
                 "(Tensor gout, Tensor out, Tensor lse, Tensor lse_rest, Tensor glse, Tensor pos, "
                 "Tensor pos_w, Tensor q, float slope) -> (Tensor, Tensor, Tensor)"),
    FMM_OPERATOR(_node_spread, spread,
                 "(Tensor x, Tensor gv, Tensor gk, Tensor gq, Tensor att_k, Tensor att_q) -> "
                 "(Tensor, Tensor, Tensor)"),
    {0},
};
