/* fusedmm::_node_scores and _node_delta: the sums that additive attention needs of each node by
 * itself. node_sums.c has the equations. x, out and their gradients are [n, H, C], att is [1, H,
 * C], k, q and their gradients are [n, H, 1]. Whatever else is one number per node and head is [n,
 * H]. A tensor without elements is absent. */
#include "../torch/frame.h"
#include "node_sums.h"

#include <inttypes.h>

/* Takes att, which is [1, H, C]. */
static bool take(frame *f, int k, const char *name, fmm_dense *d)
{
    tensor t;
    if (!frame_dense(f, k, name, d, &t)) return false;
    return t.dim == 3 ? true
                      : frame_fail(f, "%s must have 3 dimensions, not %" PRId64, name, t.dim);
}

/* Allocates a result of `dim` dimensions, [n, H, 1] or [n, H], on the device of x. `sums` gives it
 * the type of sums, else it has x's dtype. */
static bool give(frame *f, fmm_dense *d, tensor *t, const tensor *x, const fmm_dense *like,
                 bool sums, int64_t dim)
{
    const bool wide = sums && like->dtype != FMM_F64;
    const int64_t size[3] = {like->rows, like->heads, 1};
    if (!frame_allocate(f, dim, size, wide ? fmm_torch.aoti_torch_dtype_float32() : x->dtype, t))
        return false;
    *d = (fmm_dense){.data = t->data,
                     .dtype = wide ? FMM_F32 : like->dtype,
                     .rows = like->rows,
                     .heads = like->heads,
                     .feat = 1,
                     .row_stride = like->heads,
                     .head_stride = 1};
    return true;
}

/* (x, att_k, att_q) -> k, q */
static void scores(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { X, ATT_K, ATT_Q, TENSORS };
    frame f;
    tensor x, out[2] = {{0}};
    fmm_node_call c = {.form = FMM_NODE_SCORES};
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) || !frame_dense(&f, X, "x", &c.x, &x) ||
        !take(&f, ATT_K, "att_k", &c.att[0]) || !take(&f, ATT_Q, "att_q", &c.att[1]))
        goto done;
    for (int t = 0; t < 2; t++)
        if (!give(&f, &c.score[t], &out[t], &x, &c.x, false, 3)) goto done;
    f.status = fmm_node_sums(&f.exec, &c);
done:
    frame_finish(&f, "node_scores", stack, out, 2);
}

/* (gout, out, lse, lse_rest, glse, pos, pos_w, q, float slope) -> delta, gq, packed. gq has no
 * elements if pos has none. packed has none if q has none, and never any on the CPU. */
static void delta(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { GOUT, OUT, LSE, LSE_REST, GLSE, POS, POS_W, Q, TENSORS, DELTA = 0, GQ, PACKED, RESULTS };
    frame f;
    tensor gout, t, out[RESULTS] = {{0}};
    fmm_node_call c = {.form = FMM_NODE_DELTA};
    const int64_t nothing = 0;
    (void)inputs, (void)results;
    c.slope = frame_float(stack[TENSORS]);
    if (!frame_begin(&f, stack, TENSORS) || !frame_dense(&f, GOUT, "gout", &c.x, &gout) ||
        !frame_dense(&f, OUT, "out", &c.value, &t) || !frame_numbers(&f, LSE, "lse", &c.lse) ||
        !frame_numbers(&f, LSE_REST, "lse_rest", &c.lse_rest) ||
        !frame_numbers(&f, GLSE, "glse", &c.glse) || !frame_numbers(&f, POS_W, "pos_w", &c.pos_w) ||
        !give(&f, &c.delta, &out[DELTA], &gout, &c.x, true, 2) || !frame_take(&f, POS, "pos", &t))
        goto done;
    if (t.dim == 3) {
        if (!frame_dense(&f, POS, "pos", &c.pos, &t) ||
            !give(&f, &c.score[1], &out[GQ], &gout, &c.x, false, 3))
            goto done;
    } else if (!frame_allocate(&f, 1, &nothing, gout.dtype, &out[GQ]))
        goto done;
    if (!frame_take(&f, Q, "q", &t)) goto done;
    const bool packs = t.dim == 3 && f.exec.device == FMM_CUDA;
    const int64_t size[2] = {packs ? c.x.rows : 0, FMM_NODE_PACKED * c.x.heads};
    if ((packs && !frame_dense(&f, Q, "q", &c.score[0], &t)) ||
        !frame_allocate(&f, 2, size, out[DELTA].dtype, &out[PACKED]))
        goto done;
    c.packed = packs ? out[PACKED].data : NULL;
    f.status = fmm_node_sums(&f.exec, &c);
done:
    frame_finish(&f, "node_delta", stack, out, RESULTS);
}

const fmm_torch_operator fmm_torch_node_sums[] = {
    {"_node_scores", "_node_scores(Tensor x, Tensor att_k, Tensor att_q) -> (Tensor, Tensor)",
     .kernel = scores},
    {"_node_delta",
     "_node_delta(Tensor gout, Tensor out, Tensor lse, Tensor lse_rest, Tensor glse, Tensor pos, "
     "Tensor pos_w, Tensor q, float slope) -> (Tensor, Tensor, Tensor)",
     .kernel = delta},
    {0},
};
