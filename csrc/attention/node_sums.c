/* Sums over the channels of single nodes, which graph attention needs beside its walks over
 * entries.
 *
 *     SCORES  k[i,h] = < att_k[h,:], x[i,h,:] >,  q[i,h] = < att_q[h,:], x[i,h,:] >
 *     DELTA   delta[i,h] = < gout[i,h,:], out[i,h,:] > - glse[i,h]
 *     SPREAD  out[i,h,:] = gv[i,h,:] + gk[i,h] att_k[h,:] + gq[i,h] att_q[h,:]
 *             total[0][h,:] = sum of gk[i,h] x[i,h,:]
 *             total[1][h,:] = sum of gq[i,h] x[i,h,:]
 *             total[2][h,:] = sum of gout[i,h,:], if the caller wants it
 *     ADD     out[i,h,:] = x[i,h,:] + value[i,h,:]
 *
 * DELTA is what attention's backward subtracts. For additive scores it also gives
 *
 *     gq[i,h] = (1 - slope) (< gout, pos > - delta pos_w) + slope glse
 *
 * (attention.c says why), which is 0 where the row has no weights (lse is -infinity). SPREAD gives
 * the gradients of SCORES, whose x is attention's v as well, so that x has one gradient; total[2]
 * is the gradient of a bias that was added to attention's result. Each part of the nodes is summed
 * first, then the parts are added in their order. A bias is a value of row stride 0 for ADD, which
 * is a copy without a value.
 *
 * Each form is one pass over operands of n heads feat numbers. It replaces two to ten calls of
 * torch, and the time that the host needs for those is what small graphs wait for. Every result has
 * one owner and adds its terms in an order that depends on sizes alone. So every run gives the same
 * numbers, with any number of threads.
 * Precision: products and sums in f32 (f64 for f64), no accumulator adds more than 512 terms. */
#include "node_sums.h"
#include "../core/checks.h"

#include <inttypes.h>

#define OP "node_sums"

/* `sums` says that d has the type of sums, else it has x's dtype. */
static fmm_status check_shape(const char *name, const fmm_dense *d, const fmm_dense *x,
                              int64_t rows, int64_t heads, int64_t feat, bool sums)
{
    const fmm_dtype dtype = sums && x->dtype != FMM_F64 ? FMM_F32 : x->dtype;
    return fmm_check_shape(OP, name, d, dtype, rows, heads, feat);
}

/* q, lse and lse_rest are needed for `packed`, pos and pos_w for the gradient of q. */
static fmm_status check_delta(const fmm_node_call *c)
{
    const fmm_dense *x = &c->x;
    const int64_t n = x->rows, heads = x->heads;
    TRY(check_shape("out", &c->value, x, n, heads, x->feat, false));
    TRY(check_shape("delta", &c->delta, x, n, heads, 1, true));
    const bool gq = fmm_given(&c->score[1]);
    if (c->packed) TRY(check_shape("q", &c->score[0], x, n, heads, 1, false));
    if (c->packed || gq) TRY(check_shape("lse", &c->lse, x, n, heads, 1, true));
    if (fmm_given(&c->lse_rest)) TRY(check_shape("lse_rest", &c->lse_rest, x, n, heads, 1, true));
    if (fmm_given(&c->glse)) TRY(check_shape("glse", &c->glse, x, n, heads, 1, true));
    if (!gq) return FMM_OK;
    TRY(check_shape("gq", &c->score[1], x, n, heads, 1, false));
    TRY(check_shape("pos", &c->pos, x, n, heads, x->feat, true));
    return check_shape("pos_w", &c->pos_w, x, n, heads, 1, true);
}

/* Without nodes the totals are zeros, and the operands of nodes are not looked at. */
static fmm_status check_spread(const fmm_exec *exec, const fmm_node_call *c)
{
    const fmm_dense *x = &c->x;
    const int64_t n = x->rows, heads = x->heads, parts = fmm_node_parts(exec->device, n);
    const int planes = fmm_given(&c->total[2]) ? 3 : 2;
    for (int t = 0; t < planes; t++)
        TRY(check_shape("total", &c->total[t], x, 1, heads, x->feat, false));
    TRY(check_shape("parts", &c->parts, x, parts, planes * heads, x->feat, true));
    VALID(exec->device == FMM_CPU || c->arrived,
          OP ": SPREAD on CUDA needs arrived, the counters that DELTA sets to 0");
    if (!n) return FMM_OK;
    TRY(check_shape("gv", &c->value, x, n, heads, x->feat, false));
    TRY(check_shape("result", &c->out, x, n, heads, x->feat, false));
    return planes == 3 ? check_shape("gout", &c->gout, x, n, heads, x->feat, false) : FMM_OK;
}

static fmm_status check(const fmm_exec *exec, const fmm_node_call *c)
{
    const fmm_dense *x = &c->x;
    const int64_t n = x->rows, heads = x->heads;
    VALID((unsigned)c->form <= FMM_NODE_ADD, OP ": no form %d", (int)c->form);
    TRY(fmm_check_dense(OP, "x", x));
    if (!heads) return FMM_OK; /* without heads nothing has elements, and any shape will do */
    if (c->form == FMM_NODE_SPREAD) TRY(check_spread(exec, c));
    if (!n) return FMM_OK;
    if (c->form == FMM_NODE_DELTA) return check_delta(c);
    if (c->form == FMM_NODE_ADD) {
        if (fmm_given(&c->value)) TRY(check_shape("value", &c->value, x, n, heads, x->feat, false));
        return check_shape("result", &c->out, x, n, heads, x->feat, false);
    }
    for (int t = 0; t < 2; t++) {
        TRY(check_shape(t ? "att_q" : "att_k", &c->att[t], x, 1, heads, x->feat, false));
        TRY(check_shape("score", &c->score[t], x, n, heads, 1, false));
    }
    return FMM_OK;
}

fmm_status fmm_node_sums(const fmm_exec *exec, const fmm_node_call *call)
{
    TRY(check(exec, call));
    /* Without nodes SPREAD still writes zeros, and DELTA still clears counters. */
    if (!call->x.heads || (call->form >= FMM_NODE_SPREAD && !call->x.feat)) return FMM_OK;
    if (!call->x.rows && call->form != FMM_NODE_SPREAD && !call->arrived) return FMM_OK;
    return exec->device == FMM_CUDA ? fmm_node_sums_cuda(exec, call)
                                    : fmm_node_sums_cpu(exec, call);
}
