/* fusedmm::_attend_self and _attend_self_back: attention with additive scores of one projected
 * tensor, and its gradient, each in one call.
 *
 *     k, q = SCORES(x)          out = attention(k, q, x), + bias           forward
 *     delta, gq = DELTA(gout)   gk, gv = COLS(gout)   gx = SPREAD(...)     backward
 *
 * with the passes of node_sums.c and attention.c, in the order in which separate operators would
 * run them and so with the same bits. One call each is what a small graph gains: it waits for
 * calls, and what stands between the passes needs no tensor that Python sees. */
#include "torch_attend.h"
#include "../core/checks.h"

#include <string.h>

typedef struct self {
    attending s;
    fmm_dense x, att[2]; /* x with its heads side by side */
} self;

enum { X = 4, ATT_K, ATT_Q, SEED, SHARED, BIAS = SHARED };

static bool begin(self *o, frame *f, const StableIValue *number)
{
    static const char *const names[2] = {"att_k", "att_q"};
    attending *s = &o->s;
    tensor t;
    *o = (self){.s = {.f = f,
                      .call = {.score = FMM_ADDITIVE,
                               .scale = 1,
                               .slope = frame_float(number[0]),
                               .dropout = frame_float(number[1])}}};
    for (int k = 0; k < 2; k++) {
        if (!attend_att(f, ATT_K + k, names[k], &o->att[k])) return false;
        if (!frame_try(f, fmm_check_dense("attention", names[k], &o->att[k]))) return false;
    }
    s->heads = o->att[0].heads;
    s->feat = o->att[0].feat;
    if (!attend_flat(s, X, "x", &o->x, &t)) return false;
    s->given = t.dtype;
    s->dtype = o->x.dtype;
    s->n = o->x.rows;
    return attend_matrix(s, "x") && attend_seed(f, SEED, s->a.nnz, &s->call);
}

/* What forward keeps; the gradient of q follows from pos and pos_w. X(view, its bits) */
#define KEPT_LIST(X)                                                                               \
    X(pos, FMM_KEPT_SUMS | FMM_KEPT_WIDE | FMM_KEPT_WHOLE)                                         \
    X(pos_w, FMM_KEPT_SUMS | FMM_KEPT_WHOLE)                                                       \
    X(out, FMM_KEPT_WIDE | FMM_KEPT_ADDED)                                                         \
    X(lse, FMM_KEPT_SUMS)                                                                          \
    X(lse_rest, FMM_KEPT_SUMS)                                                                     \
    X(k, 0)                                                                                        \
    X(q, 0)
FMM_KEPT_LAYOUT(KEPT_LIST)

/* What backward needs while it runs, in one allocation. */
typedef struct scratch {
    fmm_dense delta, gq, gk, gv, parts, packed;
    uint32_t *arrived;
} scratch;

static int64_t lay_out_scratch(const attending *s, int planes, unsigned char *base, scratch *w)
{
    const fmm_device device = s->f->exec.device;
    const int64_t n = s->n, heads = s->heads, feat = s->feat, parts = fmm_node_parts(device, n);
    carving c = {s, base, 0};
    *w = (scratch){.delta = attend_carve(&c, true, n, heads, 1)};
    w->gq = attend_carve(&c, false, n, heads, 1);
    w->gk = attend_carve(&c, false, n, heads, 1);
    w->gv = attend_carve(&c, false, n, heads, feat);
    w->parts = attend_carve(&c, true, parts, planes * heads, feat);
    if (device == FMM_CPU) return c.bytes;
    w->packed = attend_carve(&c, true, n, heads, FMM_NODE_PACKED);
    w->arrived = base ? (uint32_t *)(base + c.bytes) : NULL;
    return c.bytes + (heads * feat / FMM_NODE_COLUMNS + 1) * (int64_t)sizeof *w->arrived;
}

static bool nodes(self *o, fmm_node_call *c)
{
    c->slope = o->s.call.slope;
    memcpy(c->att, o->att, sizeof c->att);
    return attend_nodes(&o->s, c);
}

/* (half, x, att_k, att_q, seed, bias, slope, dropout, int whole) -> out, kept */
FMM_KERNEL(forward, BIAS + 1, 2)
{
    self o;
    attending *s = &o.s;
    fmm_node_call scores = {.form = FMM_NODE_SCORES}, add = {.form = FMM_NODE_ADD};
    const bool whole = number[2] != 0;
    if (!begin(&o, f, number) ||
        !frame_result(f, 2, s->dtype, s->n, s->heads, s->feat, &out[0], &add.out) ||
        !attend_bias(s, BIAS, &add.value))
        return false;
    const bool added = add.value.data != NULL;
    const int wanted = !whole ? 0 : added ? FMM_KEPT_WHOLE | FMM_KEPT_ADDED : FMM_KEPT_WHOLE;
    fmm_attention c = s->call;
    if (!attend_bytes(s, lay_out(s, wanted, NULL, &c), &out[1])) return false;
    lay_out(s, wanted, out[1].data, &c);
    c.pass = FMM_ATTENTION_FORWARD;
    if (!(whole && added)) c.out = add.out;
    add.x = c.out;
    c.v = scores.x = o.x;
    scores.score[0] = c.k;
    scores.score[1] = c.q;
    return nodes(&o, &scores) && attend_pass(s, &c, NULL) && (!added || attend_nodes(s, &add));
}

/* (half of the transpose, x, att_k, att_q, seed, out, kept, gout, slope, dropout, int bias) -> the
 * gradients of x, att_k, att_q and, with bias, of what was added to out, else nothing. out without
 * elements is among what was kept. */
enum { OUT = SHARED };
FMM_KERNEL(backward, OUT + 3, 4)
{
    self o;
    attending *s = &o.s;
    scratch w;
    fmm_node_call delta = {.form = FMM_NODE_DELTA}, spread = {.form = FMM_NODE_SPREAD};
    tensor t;
    const bool bias = number[2] != 0;
    const int planes = bias ? 3 : 2;
    if (!begin(&o, f, number) || !attend_backward(s, OUT, &delta, &t)) return false;
    const int wanted = delta.value.data ? FMM_KEPT_WHOLE : FMM_KEPT_WHOLE | FMM_KEPT_ADDED;
    fmm_attention c = s->call;
    if (!attend_kept(s, lay_out(s, wanted, t.data, &c), &t)) return false;
    if (!delta.value.data) delta.value = c.out;
    delta.lse = c.lse;
    delta.lse_rest = c.lse_rest;
    delta.pos = c.pos;
    delta.pos_w = c.pos_w;
    c.out = c.pos = c.pos_w = (fmm_dense){0}; /* COLS writes none of them */
    const int64_t n = s->n, heads = s->heads, feat = s->feat;
    if (!frame_result(f, 2, s->dtype, n, heads, feat, &out[0], &spread.out) ||
        !frame_result(f, 3, s->dtype, 1, heads, feat, &out[1], &spread.total[0]) ||
        !frame_result(f, 3, s->dtype, 1, heads, feat, &out[2], &spread.total[1]) ||
        !frame_vector(f, bias ? heads * feat : 0, s->given, &out[3]) ||
        !attend_bytes(s, lay_out_scratch(s, planes, NULL, &w), &t))
        return false;
    lay_out_scratch(s, planes, t.data, &w);
    if (bias) spread.total[2] = frame_view(out[3].data, s->dtype, 1, heads, feat);
    c.pass = FMM_ATTENTION_COLS;
    c.gout = spread.gout = delta.x;
    c.delta = delta.delta = w.delta;
    delta.packed = w.packed.data;
    delta.arrived = spread.arrived = w.arrived;
    delta.score[0] = c.q;
    delta.score[1] = spread.score[1] = w.gq;
    c.gk = spread.score[0] = w.gk;
    c.gv = spread.value = w.gv;
    c.v = spread.x = o.x;
    spread.parts = w.parts;
    return nodes(&o, &delta) && attend_pass(s, &c, delta.packed) && nodes(&o, &spread);
}

#define OPERANDS FMM_HALF "Tensor x, Tensor att_k, Tensor att_q, Tensor seed, "
const fmm_torch_operator fmm_torch_attend_self[] = {
    FMM_OPERATOR(_attend_self, forward,
                 "(" OPERANDS
                 "Tensor bias, float slope, float dropout, int whole) -> (Tensor, Tensor)"),
    FMM_OPERATOR(_attend_self_back, backward,
                 "(" OPERANDS
                 "Tensor out, Tensor kept, Tensor gout, float slope, float dropout, int bias) -> "
                 "(Tensor, Tensor, Tensor, Tensor)"),
    /* clang-format off */
    FMM_NUMBER(FMM_ATTEND_APART), FMM_NUMBER(FMM_KEPT_SUMS), FMM_NUMBER(FMM_KEPT_WIDE),
    FMM_NUMBER(FMM_KEPT_WHOLE), FMM_NUMBER(FMM_KEPT_ADDED),
/* clang-format on */
#define NUMBER(view, holds) FMM_KEPT_NUMBER(self, view, holds),
    KEPT_LIST(NUMBER){0},
};
