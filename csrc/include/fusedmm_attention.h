/* Graph attention and its gradients. Part of fusedmm.h. */
#ifndef FMM_ATTENTION_H
#define FMM_ATTENTION_H

#include "fusedmm.h"

FMM_C_BEGIN

/* Graph attention, a softmax over each row's entries:
 *     logit[p,h] = scale * < q[i,h,:], k[j,h,:] > + bias[e,h]             DOT
 *                = leaky(q[i,h] + k[j,h] + bias[e,h])                     ADDITIVE (feat 1: GAT)
 *                = < att[h,:], leaky(q[i,h,:] + k[j,h,:]) > + bias[e,h]   GATV2
 *     w[p,h]     = exp(logit[p,h] - lse[i,h] - lse_rest[i,h])
 *     lse[i,h]   = log sum_p exp(logit[p,h]); lse_rest[i,h] is what its rounding took from it
 *     u[p,h]     = keep(seed, e, h) / (1 - dropout) * weight[e,h] * w[p,h]
 *     out[i,h,:] = sum_p u[p,h] v[j,h,:]                          j = idx[p], e = eid[p]
 * leaky(t) is t or slope * t below 0. Rows without an entry above -infinity give out 0. The
 * backward passes recompute w from lse: nothing of the size edges x heads is kept. One number has
 * no room for the logarithm of a sum beside a logit of -1e9, hence lse_rest, which may be absent.
 * With delta[i,h] = < out, gout > (less a gradient of lse), u' = u / w and t = u' < gout[i,h],
 * v[j,h] >, the gradient of a logit is w (t - delta). ROWS walks A and writes gq, gatt, gbias,
 * gweight and weights, those that are present; COLS walks the transpose and writes gk and gv.
 * pos[i,h,:] and pos_w[i,h] are the parts of out and of sum_p w that come from entries with leaky's
 * argument above 0, in the dtype of sums. ADDITIVE's gq follows from them without another walk:
 * (1 - slope) (< gout, pos > - delta pos_w) + slope * (the gradient of lse), 0 where lse is
 * -infinity. */
typedef enum fmm_attention_score { FMM_DOT, FMM_ADDITIVE, FMM_GATV2 } fmm_attention_score;
typedef enum fmm_attention_pass {
    FMM_ATTENTION_FORWARD, /* out, lse and lse_rest; pos and pos_w where both are present */
    FMM_ATTENTION_WEIGHTS, /* weights = u, from lse */
    FMM_ATTENTION_ROWS,
    FMM_ATTENTION_COLS,
} fmm_attention_pass;
typedef struct fmm_attention {
    fmm_attention_pass pass;
    fmm_attention_score score;
    double scale, slope, dropout;
    const int64_t *seed;    /* one number on the device, read where dropout > 0 */
    fmm_dense q, k, v;      /* [rows, heads, feat], [cols, heads, feat], [cols, heads, feat_v] */
    fmm_dense att;          /* [1, heads, feat], GATV2 */
    fmm_dense bias, weight; /* [nnz, heads, 1], weight also [nnz, 1, 1]; may be absent */
    fmm_dense out, lse;     /* [rows, heads, feat_v], [rows, heads, 1] in f32 (f64 for f64) */
    fmm_dense lse_rest;     /* as lse; may be absent */
    fmm_dense gout, delta;  /* as out, as lse: of the backward passes */
    fmm_dense gq, gk, gv;   /* as q, k, v */
    fmm_dense gatt;         /* [parts, heads, feat] as lse: the caller adds up the parts */
    fmm_dense gbias, gweight, weights; /* [nnz, heads, 1] */
    fmm_dense pos, pos_w; /* as out and lse, both as lse's dtype: ADDITIVE, may be absent */
    const int64_t *keys;  /* [nnz] on the device, what dropout knows each edge e by; NULL: by e */
} fmm_attention;

/* All operands of a call of FMM_ATTENTION but its matrix. */
static inline const fmm_attention *fmm_attention_of(const fmm_call *call)
{
    return (const fmm_attention *)call->own;
}

/* Philox4x32-10 decides what dropout keeps: word h % 4 of the block with key (seed low, high) and
 * counter (e low, e high, h / 4, 0) is at least dropout * 2^32. With keys, keys[e] stands for e:
 * edges of a part of a larger graph are then dropped as the whole graph's. */
FMM_API fmm_status fmm_attend(const fmm_exec *exec, const fmm_csr *a, const fmm_attention *call,
                              int algorithm);
FMM_API fmm_status fmm_attend_workspace(const fmm_exec *exec, const fmm_csr *a,
                                        const fmm_attention *call, int algorithm, size_t *bytes);

FMM_C_END
#endif
