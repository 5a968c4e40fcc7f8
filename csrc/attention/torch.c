/* fusedmm::_attention, one operator per pass: _attention, _attention_weights, _attention_rows and
 * _attention_cols; see attention.c.
 *
 * q, k, v and gout are [n, H, F], att [H, F], what is one number per row or entry and head [n, H].
 * `want` has one bit per result, in their order; a result not wanted has no elements. Of
 * _attention, 1 wants what additive scores keep for the gradient of q (pos and pos_w). The score
 * FMM_SCALED is FMM_DOT with 1 / sqrt(F) in the place of `scale`: compiled code of any F cannot
 * name that number. */
#include "../torch/frame.h"
#include "attention.h"
#include "node_sums.h"

#include <math.h>

/* The tensors of every pass in this order; a pass takes as many of them as it needs. */
enum { Q = 4, K, V, ATT, BIAS, WEIGHT, SEED, LSE, LSE_REST, DELTA, GOUT, PACKED, TENSORS };
enum { RESULTS = 5, FMM_SCALED = FMM_GATV2 + 1 };

typedef struct attend {
    frame f;
    fmm_csr a;
    fmm_attention call;
    const void *packed;
    int32_t dtype, sums; /* torch's numbers for that of q and of lse */
    int64_t want;
    int algorithm;
    tensor result[RESULTS];
    int results;
} attend;

static bool take_dense(attend *s, int k, const char *name, fmm_dense *d)
{
    tensor t;
    return frame_dense(&s->f, k, name, d, &t);
}

/* att, [H, F], as one row of H heads; absent without elements and these axes. */
static bool take_att(attend *s)
{
    tensor t;
    fmm_dense *d = &s->call.att;
    if (!frame_take(&s->f, ATT, "att", &t)) return false;
    if (!t.numel && t.dim != 2) return true;
    if (!frame_dense(&s->f, ATT, "att", d, &t)) return false;
    if (t.dim != 2) return frame_fail(&s->f, "att must be [heads, F]");
    d->heads = d->rows;
    d->head_stride = d->row_stride;
    d->rows = 1;
    return true;
}

static bool take_seed(attend *s)
{
    tensor t;
    if (!frame_take(&s->f, SEED, "seed", &t)) return false;
    if (t.numel && t.dtype != fmm_torch.aoti_torch_dtype_int64())
        return frame_fail(&s->f, "seed must be int64");
    s->call.seed = t.numel ? t.data : NULL;
    return true;
}

/* Everything a pass reads; `tensors` come first on the stack, then the numbers. */
static bool begin(attend *s, StableIValue *stack, fmm_attention_pass pass, int tensors)
{
    *s = (attend){.call.pass = pass};
    fmm_attention *c = &s->call;
    const StableIValue *rest = stack + tensors;
    const bool back = pass == FMM_ATTENTION_ROWS || pass == FMM_ATTENTION_COLS;
    const bool wants = pass != FMM_ATTENTION_WEIGHTS;
    c->scale = frame_float(rest[0]);
    c->slope = frame_float(rest[1]);
    c->dropout = frame_float(rest[2]);
    c->score = (fmm_attention_score)frame_int(rest[3]);
    s->want = wants ? (int64_t)rest[4] : 0;
    s->algorithm = frame_int(rest[wants ? 5 : 4]);
    tensor q;
    if (!frame_begin(&s->f, stack, tensors) || !frame_dense(&s->f, Q, "q", &c->q, &q) ||
        !take_dense(s, K, "k", &c->k) || !take_att(s) || !take_seed(s) ||
        !frame_numbers(&s->f, BIAS, "bias", &c->bias) ||
        !frame_numbers(&s->f, WEIGHT, "weight", &c->weight))
        return false;
    if (pass != FMM_ATTENTION_WEIGHTS && !take_dense(s, V, "v", &c->v)) return false;
    if (tensors > LSE && (!frame_numbers(&s->f, LSE, "lse", &c->lse) ||
                          !frame_numbers(&s->f, LSE_REST, "lse_rest", &c->lse_rest)))
        return false;
    if (back && (!frame_numbers(&s->f, DELTA, "delta", &c->delta) ||
                 !take_dense(s, GOUT, "gout", &c->gout)))
        return false;
    if ((int)c->score == FMM_SCALED) {
        c->score = FMM_DOT;
        c->scale = c->q.feat ? pow((double)c->q.feat, -0.5) : 1;
    }
    s->dtype = q.dtype;
    s->sums = q.dtype == fmm_torch.aoti_torch_dtype_float64()
                  ? q.dtype
                  : fmm_torch.aoti_torch_dtype_float32();
    return frame_matrix(&s->f, pass == FMM_ATTENTION_COLS ? c->q.rows : c->k.rows, &s->a);
}

/* The next result, [rows, heads, feat] ([rows, heads] where feat is 0); absent if not wanted. */
static bool give(attend *s, fmm_dense *d, bool wanted, bool sums, int64_t rows, int64_t feat,
                 bool flat)
{
    const int64_t size[3] = {rows, s->call.q.heads, feat}, nothing = 0;
    tensor *t = &s->result[s->results++];
    if (!wanted) return frame_allocate(&s->f, 1, &nothing, s->dtype, t);
    if (!frame_allocate(&s->f, flat ? 2 : 3, size, sums ? s->sums : s->dtype, t)) return false;
    *d = (fmm_dense){.data = t->data,
                     .dtype = sums && s->call.q.dtype != FMM_F64 ? FMM_F32 : s->call.q.dtype,
                     .rows = rows,
                     .heads = s->call.q.heads,
                     .feat = feat,
                     .row_stride = s->call.q.heads * feat,
                     .head_stride = feat};
    return true;
}

static void run(attend *s)
{
    s->f.status = fmm_attend_packed(&s->f.exec, &s->a, &s->call, s->packed, false, s->algorithm);
}

static void finish(attend *s, StableIValue *stack)
{
    frame_finish(&s->f, "attention", stack, s->result, s->results);
}

static void forward(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    attend s;
    fmm_attention *c = &s.call;
    (void)inputs, (void)results;
    if (begin(&s, stack, FMM_ATTENTION_FORWARD, LSE) &&
        give(&s, &c->out, true, false, s.a.rows, c->v.feat, false) &&
        give(&s, &c->lse, true, true, s.a.rows, 1, true) &&
        give(&s, &c->lse_rest, true, true, s.a.rows, 1, true) &&
        give(&s, &c->pos, s.want & 1, true, s.a.rows, c->v.feat, false) &&
        give(&s, &c->pos_w, s.want & 1, true, s.a.rows, 1, true))
        run(&s);
    finish(&s, stack);
}

static void weights(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    attend s;
    (void)inputs, (void)results;
    if (begin(&s, stack, FMM_ATTENTION_WEIGHTS, DELTA) &&
        give(&s, &s.call.weights, true, false, s.a.nnz, 1, true))
        run(&s);
    finish(&s, stack);
}

static void rows(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    attend s;
    fmm_attention *c = &s.call;
    (void)inputs, (void)results;
    if (begin(&s, stack, FMM_ATTENTION_ROWS, PACKED)) {
        const int64_t parts =
            s.f.exec.device == FMM_CUDA ? FMM_GATT_PARTS_CUDA : FMM_GATT_PARTS_CPU;
        if (give(&s, &c->gq, s.want & 1, false, s.a.rows, c->q.feat, false) &&
            give(&s, &c->gatt, s.want & 2, true, parts, c->q.feat, false) &&
            give(&s, &c->gbias, s.want & 4, false, s.a.nnz, 1, true) &&
            give(&s, &c->gweight, s.want & 8, false, s.a.nnz, 1, true))
            run(&s);
    }
    finish(&s, stack);
}

/* What _node_delta may have packed of lse, its rest, delta and q; without elements the pass does
 * that. */
static bool take_packed(attend *s)
{
    tensor t;
    if (!frame_take(&s->f, PACKED, "packed", &t)) return false;
    if (!t.numel) return true;
    const int64_t row = FMM_NODE_PACKED * s->call.q.heads;
    if (s->call.score != FMM_ADDITIVE || t.dim != 2 || t.dtype != s->sums ||
        t.size[0] != s->call.q.rows || t.size[1] != row || t.stride[0] != row || t.stride[1] != 1 ||
        (uintptr_t)t.data % 16)
        return frame_fail(&s->f, "packed must be additive scores' [n, %d heads], aligned",
                          FMM_NODE_PACKED);
    s->packed = t.data;
    return true;
}

static void cols(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    attend s;
    fmm_attention *c = &s.call;
    (void)inputs, (void)results;
    if (begin(&s, stack, FMM_ATTENTION_COLS, TENSORS) && take_packed(&s) &&
        give(&s, &c->gk, s.want & 1, false, s.a.rows, c->k.feat, false) &&
        give(&s, &c->gv, s.want & 2, false, s.a.rows, c->v.feat, false))
        run(&s);
    finish(&s, stack);
}

#define OPERANDS                                                                                   \
    FMM_HALF "Tensor q, Tensor k, Tensor v, Tensor att, Tensor bias, Tensor weight, Tensor seed, "
#define LSES "Tensor lse, Tensor lse_rest, "
#define NUMBERS "float scale, float slope, float dropout, int score, "
const fmm_torch_operator fmm_torch_attention[] = {
    {"_attention",
     "_attention(" OPERANDS NUMBERS "int want, int algorithm) -> "
     "(Tensor, Tensor, Tensor, Tensor, Tensor)",
     .kernel = forward},
    {"_attention_weights", "_attention_weights(" OPERANDS LSES NUMBERS "int algorithm) -> Tensor",
     .kernel = weights},
    {"_attention_rows",
     "_attention_rows(" OPERANDS LSES "Tensor delta, Tensor gout, " NUMBERS
     "int want, int algorithm) -> (Tensor, Tensor, Tensor, Tensor)",
     .kernel = rows},
    {"_attention_cols",
     "_attention_cols(" OPERANDS LSES "Tensor delta, Tensor gout, Tensor packed, " NUMBERS
     "int want, int algorithm) -> (Tensor, Tensor)",
     .kernel = cols},
    /* clang-format off */
    FMM_NUMBER(FMM_DOT), FMM_NUMBER(FMM_ADDITIVE), FMM_NUMBER(FMM_GATV2), FMM_NUMBER(FMM_SCALED),
    FMM_NUMBER(FMM_NODE_PACKED), FMM_NUMBER(FMM_GATT_PARTS_CPU), FMM_NUMBER(FMM_GATT_PARTS_CUDA),
    /* clang-format on */
    {0},
};
