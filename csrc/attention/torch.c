/* fusedmm::_attention, one operator per pass: _attention, _attention_weights, _attention_rows and
 * _attention_cols; see attention.c.
 *
 * q, k, v and gout are [n, H, F], att [H, F], what is one number per row or entry and head [n, H].
 * q and k of ADDITIVE scores may be [n, H] too, and then their gradients are.
 * `want` has a bit for each result that a call may do without (FMM_WANT_); a result not wanted has
 * no elements. The last numbers, whole_rows and whole_nnz, are 0 or those of fmm_whole. The score
 * FMM_SCALED is FMM_DOT with 1 / sqrt(F) in the place of `scale`: compiled code of any F cannot
 * name that number. */
#include "torch_attend.h"

#include <math.h>

/* The tensors of every pass in this order; a pass takes as many of them as it needs. */
enum { Q = 4, K, V, ATT, BIAS, WEIGHT, SEED, LSE, LSE_REST, DELTA, GOUT, PACKED, TENSORS };
enum { FMM_SCALED = FMM_GATV2 + 1 };
enum {
    FMM_WANT_POS = 1, /* of _attention: pos and pos_w, from which q's gradient follows */
    FMM_WANT_GQ = 1,  /* of _attention_rows */
    FMM_WANT_GATT = 2,
    FMM_WANT_GBIAS = 4,
    FMM_WANT_GWEIGHT = 8,
    FMM_WANT_GK = 1, /* of _attention_cols */
    FMM_WANT_GV = 2,
};

typedef struct attend {
    frame *f;
    fmm_csr a;
    fmm_attention call;
    const void *packed;
    int64_t want;
    int algorithm;
    bool flat;    /* whether q and k lack the axis of features */
    tensor *next; /* of the results */
} attend;

/* q or k. */
static bool take_side(attend *s, int k, const char *name, fmm_dense *d)
{
    tensor t;
    if (!frame_dense(s->f, k, name, d, &t)) return false;
    s->flat = t.dim == 2 && s->call.score == FMM_ADDITIVE;
    if (s->flat) d->heads = d->feat, d->head_stride = d->feat = 1;
    return true;
}

/* att, [H, F], as one row of H heads; absent without elements and these axes. */
static bool take_att(attend *s)
{
    tensor t;
    fmm_dense *d = &s->call.att;
    if (!frame_take(s->f, ATT, "att", &t)) return false;
    if (!t.numel && t.dim != 2) return true;
    if (!frame_dense(s->f, ATT, "att", d, &t)) return false;
    if (t.dim != 2) return frame_fail(s->f, "att must be [heads, F]");
    d->heads = d->rows, d->head_stride = d->row_stride, d->rows = 1;
    return true;
}

/* Takes everything that a pass reads; its first `tensors` inputs are tensors. */
static bool begin(attend *s, frame *f, const StableIValue *rest, tensor *out,
                  fmm_attention_pass pass, int tensors)
{
    *s = (attend){.f = f, .call.pass = pass, .next = out};
    fmm_attention *c = &s->call;
    c->scale = frame_float(rest[0]);
    c->slope = frame_float(rest[1]);
    c->dropout = frame_float(rest[2]);
    c->score = (fmm_attention_score)frame_int(rest[3]);
    s->want = (int64_t)rest[4];
    s->algorithm = frame_int(rest[5]);
    if (!take_side(s, Q, "q", &c->q) || !take_side(s, K, "k", &c->k) || !take_att(s) ||
        !frame_numbers(f, BIAS, "bias", &c->bias) ||
        !frame_numbers(f, WEIGHT, "weight", &c->weight) ||
        (pass != FMM_ATTENTION_WEIGHTS && !frame_dense(f, V, "v", &c->v, NULL)) ||
        (tensors > LSE && !frame_numbers(f, LSE, "lse", &c->lse)) ||
        (tensors > LSE && !frame_numbers(f, LSE_REST, "lse_rest", &c->lse_rest)) ||
        (tensors > DELTA && !frame_numbers(f, DELTA, "delta", &c->delta)) ||
        (tensors > DELTA && !frame_dense(f, GOUT, "gout", &c->gout, NULL)))
        return false;
    if ((int)c->score == FMM_SCALED) {
        c->score = FMM_DOT;
        c->scale = c->q.feat ? pow((double)c->q.feat, -0.5) : 1;
    }
    const int64_t cols = pass == FMM_ATTENTION_COLS ? c->q.rows : c->k.rows;
    if (!frame_matrix(s->f, cols, &s->a)) return false;
    s->a.whole = (fmm_whole){.rows = (int64_t)rest[6], .nnz = (int64_t)rest[7]};
    return attend_seed(f, SEED, s->a.nnz, c);
}

/* The next result, [rows, heads, feat] or flat [rows, heads]; absent if not wanted. */
static bool give(attend *s, fmm_dense *d, bool wanted, bool sums, int64_t rows, int64_t feat,
                 bool flat)
{
    const fmm_dtype given = s->call.q.dtype, dtype = wanted && sums ? frame_sums(given) : given;
    return frame_result_if(s->f, wanted, flat ? 2 : 3, dtype, rows, s->call.q.heads, feat,
                           s->next++, d);
}

static bool run(attend *s)
{
    return frame_try(
        s->f, fmm_attend_packed(&s->f->exec, &s->a, &s->call, s->packed, false, s->algorithm));
}

FMM_KERNEL(forward, LSE, 5)
{
    attend s;
    fmm_attention *c = &s.call;
    return begin(&s, f, number, out, FMM_ATTENTION_FORWARD, LSE) &&
           give(&s, &c->out, true, false, s.a.rows, c->v.feat, false) &&
           give(&s, &c->lse, true, true, s.a.rows, 1, true) &&
           give(&s, &c->lse_rest, true, true, s.a.rows, 1, true) &&
           give(&s, &c->pos, s.want & FMM_WANT_POS, true, s.a.rows, c->v.feat, false) &&
           give(&s, &c->pos_w, s.want & FMM_WANT_POS, true, s.a.rows, 1, true) && run(&s);
}

FMM_KERNEL(weights, DELTA, 1)
{
    attend s;
    return begin(&s, f, number, out, FMM_ATTENTION_WEIGHTS, DELTA) &&
           give(&s, &s.call.weights, true, false, s.a.nnz, 1, true) && run(&s);
}

FMM_KERNEL(rows, PACKED, 4)
{
    attend s;
    fmm_attention *c = &s.call;
    const int64_t parts = f->exec.device == FMM_CUDA ? FMM_GATT_PARTS_CUDA : FMM_GATT_PARTS_CPU;
    return begin(&s, f, number, out, FMM_ATTENTION_ROWS, PACKED) &&
           give(&s, &c->gq, s.want & FMM_WANT_GQ, false, s.a.rows, c->q.feat, s.flat) &&
           give(&s, &c->gatt, s.want & FMM_WANT_GATT, true, parts, c->q.feat, false) &&
           give(&s, &c->gbias, s.want & FMM_WANT_GBIAS, false, s.a.nnz, 1, true) &&
           give(&s, &c->gweight, s.want & FMM_WANT_GWEIGHT, false, s.a.nnz, 1, true) && run(&s);
}

/* Takes what _node_delta may have packed of lse, its rest, delta and q. Where the tensor has no
 * elements, the pass packs them itself. */
static bool take_packed(attend *s)
{
    tensor t;
    if (!frame_take(s->f, PACKED, "packed", &t)) return false;
    if (!t.numel) return true;
    const int64_t row = FMM_NODE_PACKED * s->call.q.heads;
    if (s->call.score != FMM_ADDITIVE || t.dim != 2 ||
        t.dtype != frame_dtype(frame_sums(s->call.q.dtype)) || t.size[0] != s->call.q.rows ||
        t.size[1] != row || t.stride[0] != row || t.stride[1] != 1 || (uintptr_t)t.data % 16)
        return frame_fail(s->f, "packed must be additive scores' [n, %d heads], aligned",
                          FMM_NODE_PACKED);
    s->packed = t.data;
    return true;
}

FMM_KERNEL(cols, TENSORS, 2)
{
    attend s;
    fmm_attention *c = &s.call;
    return begin(&s, f, number, out, FMM_ATTENTION_COLS, TENSORS) && take_packed(&s) &&
           give(&s, &c->gk, s.want & FMM_WANT_GK, false, s.a.rows, c->k.feat, s.flat) &&
           give(&s, &c->gv, s.want & FMM_WANT_GV, false, s.a.rows, c->v.feat, false) && run(&s);
}

#define OPERANDS                                                                                   \
    FMM_HALF "Tensor q, Tensor k, Tensor v, Tensor att, Tensor bias, Tensor weight, Tensor seed, "
#define LSES "Tensor lse, Tensor lse_rest, "
#define NUMBERS                                                                                    \
    "float scale, float slope, float dropout, int score, int want=0, int algorithm=0, "            \
    "int whole_rows=0, int whole_nnz=0"
const fmm_torch_operator fmm_torch_attention[] = {
    FMM_OPERATOR(_attention, forward,
                 "(" OPERANDS NUMBERS ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)"),
    FMM_OPERATOR(_attention_weights, weights, "(" OPERANDS LSES NUMBERS ") -> Tensor"),
    FMM_OPERATOR(_attention_rows, rows,
                 "(" OPERANDS LSES "Tensor delta, Tensor gout, " NUMBERS
                 ") -> (Tensor, Tensor, Tensor, Tensor)"),
    FMM_OPERATOR(_attention_cols, cols,
                 "(" OPERANDS LSES "Tensor delta, Tensor gout, Tensor packed, " NUMBERS
                 ") -> (Tensor, Tensor)"),
    /* clang-format off */
    FMM_NUMBER(FMM_DOT), FMM_NUMBER(FMM_ADDITIVE), FMM_NUMBER(FMM_GATV2), FMM_NUMBER(FMM_SCALED),
    FMM_NUMBER(FMM_NODE_PACKED), FMM_NUMBER(FMM_GATT_PARTS_CPU), FMM_NUMBER(FMM_GATT_PARTS_CUDA),
    FMM_NUMBER(FMM_WANT_POS), FMM_NUMBER(FMM_WANT_GQ), FMM_NUMBER(FMM_WANT_GATT),
    FMM_NUMBER(FMM_WANT_GBIAS), FMM_NUMBER(FMM_WANT_GWEIGHT), FMM_NUMBER(FMM_WANT_GK),
    FMM_NUMBER(FMM_WANT_GV),
    /* clang-format on */
    {0},
};
