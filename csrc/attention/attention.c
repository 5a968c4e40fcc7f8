/* Graph attention: a softmax over each row's entries, and its gradients.
 *
 *     logit[p,h] = scale * < q[i,h,:], k[j,h,:] > + bias[e,h]             DOT
 *                = leaky(q[i,h] + k[j,h] + bias[e,h])                     ADDITIVE
 *                = < att[h,:], leaky(q[i,h,:] + k[j,h,:]) > + bias[e,h]   GATV2
 *     w[p,h]     = exp(logit[p,h] - lse[i,h] - lse_rest[i,h])
 *     lse[i,h]   = log sum_p exp(logit[p,h])
 *     u[p,h]     = keep[e,h] / (1 - dropout) * weight[e,h] * w[p,h]
 *     out[i,h,:] = sum_p u[p,h] v[j,h,:]                  entry p = (i, j = idx[p]), e = eid[p]
 *
 * Backward: t = u / w * < gout[i,h], v[j,h] >, glogit = w (t - delta[i,h]); for every gradient of
 * an edge's number glogit is the factor, which DOT hands to q and k times scale, ADDITIVE times
 * leaky', GATV2 times att * leaky'. leaky' has two values, 1 and slope, and a row's glogit add up
 * to glse, the gradient of lse: where forward left the parts of out and of sum w whose leaky' is 1,
 * gq of ADDITIVE is (1 - slope) (< gout, pos > - delta pos_w) + slope glse, and no pass. gv[j] sums
 * u gout[i], gweight is keep / (1 - dropout) * w * < gout, v >. A pass has one owner per output:
 * ROWS for what belongs to rows and entries, COLS, on the transpose, for what belongs to columns.
 * Nothing is added to memory that another owns, so every number is the same on every run.
 *
 * lse_rest = (top - lse) + log sum_p exp(logit - top) with the row's largest logit, top: what lse
 * rounds off is the logarithm of the number of entries where these are equal and large.
 *
 * Precision: logits, statistics and sums in f32 (f64 for f64); one rounding to the output's dtype.
 * Cost: forward 2 nnz heads (feat + feat_v) flops and nnz heads exponentials; every entry gathers
 * one row of k and of v. */
#include "attention.h"
#include "../core/checks.h"

#include <inttypes.h>

#define OP "attention"

typedef struct operand {
    const char *name;
    const fmm_dense *view;
    bool needed, sum; /* sum: in the dtype of sums */
    int64_t rows, heads, feat;
} operand;

enum { INPUTS = 10, OUTPUTS = 12, OF_FORWARD = 2 };

static fmm_status check_operands(const operand *all, int count, const fmm_attention *call)
{
    const fmm_dtype dtype = call->q.dtype, sum = dtype == FMM_F64 ? FMM_F64 : FMM_F32;
    for (int k = 0; k < count; k++) {
        const operand *o = &all[k];
        TRY(fmm_given(o->view) ? fmm_check_shape(OP, o->name, o->view, o->sum ? sum : dtype,
                                                 o->rows, o->heads, o->feat)
                               : fmm_check_dense(OP, o->name, o->view));
        VALID(!o->needed || fmm_given(o->view) || !o->rows || !o->heads,
              OP ": %s must be given for pass %d", o->name, (int)call->pass);
    }
    return FMM_OK;
}

static fmm_status check(const fmm_exec *exec, const fmm_csr *a, const fmm_attention *call)
{
    TRY(fmm_check_matrix(OP, exec, a));
    VALID(call, OP ": call must be given");
    VALID((unsigned)call->pass <= FMM_ATTENTION_COLS, OP ": no pass %d", (int)call->pass);
    VALID((unsigned)call->score <= FMM_GATV2, OP ": no score %d", (int)call->score);
    VALID(call->dropout >= 0 && call->dropout <= 1, OP ": dropout %g is outside [0, 1]",
          call->dropout);
    VALID(call->dropout == 0 || call->seed, OP ": seed must be given for dropout %g",
          call->dropout);
    const bool forward = call->pass == FMM_ATTENTION_FORWARD;
    const bool weights = call->pass == FMM_ATTENTION_WEIGHTS;
    const bool cols = call->pass == FMM_ATTENTION_COLS, back = !forward && !weights;
    const fmm_dense *q = &call->q;
    TRY(fmm_check_dense(OP, "q", q));
    const int64_t nq = cols ? a->cols : a->rows, nk = cols ? a->rows : a->cols, heads = q->heads;
    const int64_t feat = q->feat, feat_v = call->v.feat, parts = call->gatt.rows;
    const int64_t weight_heads = call->weight.heads == 1 ? 1 : heads;
    VALID(call->score != FMM_ADDITIVE || feat == 1,
          OP ": additive scores take one number per head, q has %" PRId64, feat);
    const operand inputs[INPUTS] = {
        {"q", q, true, false, nq, heads, feat},
        {"k", &call->k, true, false, nk, heads, feat},
        {"v", &call->v, !weights, false, nk, heads, feat_v},
        {"att", &call->att, call->score == FMM_GATV2 && feat, false, 1, heads, feat},
        {"bias", &call->bias, false, false, a->nnz, heads, 1},
        {"weight", &call->weight, false, false, a->nnz, weight_heads, 1},
        {"gout", &call->gout, back, false, nq, heads, feat_v},
        {"delta", &call->delta, back, true, nq, heads, 1},
        {"lse", &call->lse, true, true, nq, heads, 1},
        {"lse_rest", &call->lse_rest, false, true, nq, heads, 1},
    };
    const operand outputs[OUTPUTS] = {
        {"out", &call->out, forward, false, nq, heads, feat_v},
        {"gq", &call->gq, false, false, nq, heads, feat},
        {"gk", &call->gk, false, false, nk, heads, feat},
        {"gv", &call->gv, false, false, nk, heads, feat_v},
        {"gatt", &call->gatt, false, true, parts, heads, feat},
        {"gbias", &call->gbias, false, false, a->nnz, heads, 1},
        {"gweight", &call->gweight, false, false, a->nnz, heads, 1},
        {"weights", &call->weights, weights, false, a->nnz, heads, 1},
        {"pos", &call->pos, fmm_given(&call->pos_w), true, nq, heads, feat_v},
        {"pos_w", &call->pos_w, fmm_given(&call->pos), true, nq, heads, 1},
        {"lse", &call->lse, true, true, nq, heads, 1},
        {"lse_rest", &call->lse_rest, false, true, nq, heads, 1},
    };
    VALID(call->score == FMM_ADDITIVE || !(fmm_given(&call->pos) || fmm_given(&call->pos_w)),
          OP ": pos and pos_w are of additive scores");
    VALID(!call->gatt.data || parts > 0, OP ": gatt has no part");
    TRY(check_operands(inputs, INPUTS, call));
    TRY(check_operands(outputs, OUTPUTS, call));
    for (int o = 0; o < (forward ? OUTPUTS : OUTPUTS - OF_FORWARD); o++) { /* lse and its rest */
        TRY(fmm_check_output(OP, outputs[o].name, outputs[o].view));
        for (int i = 0; i < INPUTS; i++)
            if (outputs[o].view != inputs[i].view)
                TRY(fmm_check_apart(OP, outputs[o].view, inputs[i].name, inputs[i].view));
    }
    return FMM_OK;
}

/* The call as algorithms get it: its operands stand in own. x is the widest of those whose rows the
 * pass gathers, and tells the CPU how much a chunk of rows will read. Scores of GATV2 without
 * channels are 0, as those of DOT are, and become DOT's, which need no att. */
static fmm_call call_of(const fmm_exec *exec, const fmm_csr *a, fmm_packed_attention *own)
{
    fmm_attention *c = &own->shown;
    if (!c->q.feat) c->score = FMM_DOT;
    const fmm_dense *far = c->pass == FMM_ATTENTION_COLS      ? &c->gout
                           : c->pass == FMM_ATTENTION_WEIGHTS ? &c->k
                                                              : &c->v;
    return (fmm_call){.index = exec->index, .a = a, .val = &fmm_absent, .x = far, .own = own};
}

fmm_status fmm_attend_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_attention *call,
                                int algorithm, size_t *bytes)
{
    *bytes = 0;
    TRY(check(exec, a, call));
    fmm_packed_attention own = {.shown = *call};
    const fmm_call whole = call_of(exec, a, &own);
    return fmm_workspace(FMM_ATTENTION, exec, algorithm, &whole, bytes);
}

fmm_status fmm_attend_packed(const fmm_exec *exec, const fmm_csr *a, const fmm_attention *call,
                             const void *packed, bool before, int algorithm)
{
    TRY(check(exec, a, call));
    fmm_packed_attention own = {.shown = *call, .packed = packed, .before = before};
    const fmm_call whole = call_of(exec, a, &own);
    return fmm_run(FMM_ATTENTION, exec, algorithm, &whole, !call->q.heads);
}

fmm_status fmm_attend(const fmm_exec *exec, const fmm_csr *a, const fmm_attention *call,
                      int algorithm)
{
    return fmm_attend_packed(exec, a, call, NULL, false, algorithm);
}
