/* fusedmm::_attend_self and _attend_self_back: attention with additive scores of one projected
 * tensor, and its gradient, each in one call.
 *
 *     k, q = SCORES(x)          out = attention(k, q, x), + bias           forward
 *     delta, gq = DELTA(gout)   gk, gv = COLS(gout)   gx = SPREAD(...)     backward
 *
 * with the passes of ../gat.c and ../attention.c, in the order in which separate operators would
 * run them and so with the same bits. One call each is what a small graph gains: it waits for
 * calls, and what stands between the passes needs no tensor that Python sees. */
#include "frame.h"
#include "../gat.h"

#include <inttypes.h>
#include <string.h>

enum { RESULTS = 2, GRADIENTS = 4, APART = 256 };

/* The same for both directions: the matrix, and x with its heads side by side. */
typedef struct self {
    frame f;
    fmm_csr a;
    fmm_dense x, att[2];
    const int64_t *seed;
    double slope, dropout;
    tensor given; /* x as torch has it */
    int64_t n, heads, feat;
} self;

enum { X = 4, ATT_K, ATT_Q, SEED, SHARED, BIAS = SHARED, FORWARD_TENSORS };

static double number(StableIValue slot)
{
    double value;
    memcpy(&value, &slot, sizeof value);
    return value;
}

/* Input k, [n, heads * feat], as [n, heads, feat]. */
static bool take_flat(self *s, int k, const char *name, fmm_dense *d, tensor *t)
{
    if (!frame_dense(&s->f, k, name, d, t)) return false;
    if (t->dim != 2 || d->feat != s->heads * s->feat)
        return frame_fail(&s->f, "%s must be [n, %" PRId64 "], heads side by side", name,
                          s->heads * s->feat);
    d->heads = s->heads;
    d->feat = s->feat;
    d->head_stride = s->feat;
    return true;
}

static bool begin(self *s, const StableIValue *stack, int tensors)
{
    static const char *const names[2] = {"att_k", "att_q"};
    tensor t;
    *s = (self){.slope = number(stack[tensors]), .dropout = number(stack[tensors + 1])};
    if (!frame_begin(&s->f, stack, tensors)) return false;
    for (int k = 0; k < 2; k++) {
        if (!frame_dense(&s->f, ATT_K + k, names[k], &s->att[k], &t)) return false;
        if (t.dim != 3) return frame_fail(&s->f, "%s must be [1, heads, C]", names[k]);
    }
    s->heads = s->att[0].heads;
    s->feat = s->att[0].feat;
    if (!take_flat(s, X, "x", &s->x, &s->given) || !frame_take(&s->f, SEED, "seed", &t))
        return false;
    if (t.numel && t.dtype != fmm_torch.aoti_torch_dtype_int64())
        return frame_fail(&s->f, "seed must be int64");
    s->seed = t.numel ? t.data : NULL;
    s->n = s->x.rows;
    return frame_matrix(&s->f, s->n, &s->a);
}

static fmm_dense view(const self *s, void *data, bool sums, int64_t rows, int64_t heads,
                      int64_t feat)
{
    return (fmm_dense){.data = data,
                       .dtype = sums && s->x.dtype != FMM_F64 ? FMM_F32 : s->x.dtype,
                       .rows = rows,
                       .heads = heads,
                       .feat = feat,
                       .row_stride = heads * feat,
                       .head_stride = feat};
}

/* A new tensor [rows, heads, feat] of x's dtype or of sums; of two dimensions if dim is 2. */
static bool give(self *s, fmm_dense *d, tensor *t, int64_t dim, bool sums, int64_t rows,
                 int64_t heads, int64_t feat)
{
    const bool wide = sums && s->x.dtype != FMM_F64;
    const int64_t size[3] = {rows, dim == 3 ? heads : heads * feat, feat};
    if (!frame_allocate(&s->f, dim, size,
                        wide ? fmm_torch.aoti_torch_dtype_float32() : s->given.dtype, t))
        return false;
    *d = view(s, t->data, sums, rows, heads, feat);
    return true;
}

/* What forward keeps; pos and pos_w, which the gradient of q follows from, where `whole`; out, to
 * which a bias was then added. */
typedef struct kept {
    fmm_dense out, pos, lse, pos_w, k, q;
} kept;

static void *carve(unsigned char *base, int64_t *bytes, const fmm_dense *d)
{
    const int64_t from = *bytes;
    const int64_t mine = d->rows * d->heads * d->feat * (int64_t)fmm_dtype_bytes(d->dtype);
    *bytes += (mine + APART - 1) / APART * APART;
    return base ? base + from : NULL;
}

static int64_t kept_in(const self *s, bool whole, bool added, unsigned char *base, kept *k)
{
    int64_t bytes = 0;
    *k = (kept){.lse = view(s, NULL, true, s->n, s->heads, 1)};
    k->k = k->q = view(s, NULL, false, s->n, s->heads, 1);
    if (whole) {
        k->pos = view(s, NULL, true, s->n, s->heads, s->feat);
        k->pos_w = k->lse;
        k->pos.data = carve(base, &bytes, &k->pos);
        k->pos_w.data = carve(base, &bytes, &k->pos_w);
    }
    if (added) {
        k->out = view(s, NULL, false, s->n, s->heads, s->feat);
        k->out.data = carve(base, &bytes, &k->out);
    }
    k->lse.data = carve(base, &bytes, &k->lse);
    k->k.data = carve(base, &bytes, &k->k);
    k->q.data = carve(base, &bytes, &k->q);
    return bytes;
}

/* What backward needs while it runs, in one allocation. */
typedef struct scratch {
    fmm_dense delta, gq, gk, gv, parts, packed;
    uint32_t *arrived;
} scratch;

static int64_t scratch_in(const self *s, int planes, unsigned char *base, scratch *w)
{
    const fmm_device device = s->f.exec.device;
    int64_t bytes = 0;
    *w = (scratch){
        .delta = view(s, NULL, true, s->n, s->heads, 1),
        .gq = view(s, NULL, false, s->n, s->heads, 1),
        .gv = view(s, NULL, false, s->n, s->heads, s->feat),
        .parts = view(s, NULL, true, fmm_gat_parts(device, s->n), planes * s->heads, s->feat),
    };
    w->gk = w->gq;
    fmm_dense *const all[] = {&w->delta, &w->gq, &w->gk, &w->gv, &w->parts};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        all[k]->data = carve(base, &bytes, all[k]);
    if (device == FMM_CPU) return bytes;
    w->packed = view(s, NULL, true, s->n, s->heads, FMM_GAT_PACKED);
    w->packed.data = carve(base, &bytes, &w->packed);
    w->arrived = base ? (uint32_t *)(base + bytes) : NULL;
    return bytes + (s->heads * s->feat / FMM_GAT_COLUMNS + 1) * (int64_t)sizeof *w->arrived;
}

static bool attend(self *s, fmm_attention *c)
{
    size_t bytes;
    c->score = FMM_ADDITIVE;
    c->scale = 1;
    c->slope = s->slope;
    c->dropout = s->dropout;
    c->seed = s->seed;
    s->f.status = fmm_attend_workspace(&s->f.exec, &s->a, c, 0, &bytes);
    if (s->f.status != FMM_OK || !frame_workspace(&s->f, bytes)) return false;
    s->f.status = fmm_attend(&s->f.exec, &s->a, c, 0);
    return s->f.status == FMM_OK;
}

static bool node_pass(self *s, fmm_gat_call *c)
{
    c->slope = s->slope;
    memcpy(c->att, s->att, sizeof c->att);
    s->f.status = fmm_gat(&s->f.exec, c);
    return s->f.status == FMM_OK;
}

/* A bias, which is copied where its numbers lie apart. */
static bool fits(self *s, tensor *bias)
{
    const int64_t width = s->heads * s->feat;
    tensor copy;
    if (bias->dim != 1 || bias->numel != width || bias->dtype != s->given.dtype)
        return frame_fail(&s->f, "bias must be [%" PRId64 "], of x's dtype", width);
    if (width < 2 || bias->stride[0] == 1) return true;
    if (!frame_allocate(&s->f, 1, &width, bias->dtype, &copy)) return false;
    if (fmm_torch.aoti_torch_copy_(copy.handle, bias->handle, 0))
        return frame_fail(&s->f, "bias could not be made contiguous");
    *bias = copy;
    return true;
}

/* (half, x, att_k, att_q, seed, bias, slope, dropout, int whole) -> out, kept */
static void forward(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    self s;
    kept k;
    fmm_gat_call scores = {.form = FMM_GAT_SCORES}, add = {.form = FMM_GAT_ADD};
    fmm_attention c = {.pass = FMM_ATTENTION_FORWARD};
    tensor t, out[RESULTS] = {{0}};
    (void)inputs, (void)results;
    const bool whole = stack[FORWARD_TENSORS + 2] != 0;
    if (!begin(&s, stack, FORWARD_TENSORS) ||
        !give(&s, &c.out, &out[0], 2, false, s.n, s.heads, s.feat) ||
        !frame_take(&s.f, BIAS, "bias", &t))
        goto done;
    const bool added = t.numel != 0;
    if (added && !fits(&s, &t)) goto done;
    const int64_t bytes = kept_in(&s, whole, whole && added, NULL, &k);
    if (!frame_allocate(&s.f, 1, &bytes, fmm_torch.aoti_torch_dtype_uint8(), &out[1])) goto done;
    kept_in(&s, whole, whole && added, out[1].data, &k);
    add.out = c.out;
    if (whole && added) c.out = k.out;
    add.x = c.out;
    add.att[0] = view(&s, t.data, false, 1, s.heads, s.feat);
    c.v = scores.x = s.x;
    c.k = scores.score[0] = k.k;
    c.q = scores.score[1] = k.q;
    c.lse = k.lse;
    c.pos = k.pos;
    c.pos_w = k.pos_w;
    if (node_pass(&s, &scores) && attend(&s, &c) && added) s.f.status = fmm_gat(&s.f.exec, &add);
done:
    frame_finish(&s.f, "attend_self", stack, out, RESULTS);
}

/* (half of the transpose, x, att_k, att_q, seed, out, kept, gout, slope, dropout, int bias) -> the
 * gradients of x, att_k, att_q and, with bias, of what was added to out, else nothing. out without
 * elements is among what was kept. */
static void backward(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { OUT = SHARED, KEPT, GOUT, TENSORS };
    self s;
    kept k;
    scratch w;
    fmm_gat_call delta = {.form = FMM_GAT_DELTA}, spread = {.form = FMM_GAT_SPREAD};
    fmm_attention c = {.pass = FMM_ATTENTION_COLS};
    tensor t, out[GRADIENTS] = {{0}};
    (void)inputs, (void)results;
    const bool bias = stack[TENSORS + 2] != 0;
    const int planes = bias ? 3 : 2;
    if (!begin(&s, stack, TENSORS) || !frame_take(&s.f, OUT, "out", &t) ||
        (t.numel && !take_flat(&s, OUT, "out", &delta.value, &t)))
        goto done;
    const bool added = t.numel == 0;
    if (!take_flat(&s, GOUT, "gout", &c.gout, &t) || !frame_take(&s.f, KEPT, "kept", &t)) goto done;
    const int64_t bytes = kept_in(&s, true, added, t.data, &k);
    if (added) delta.value = k.out;
    if (t.dim != 1 || t.numel != bytes || t.dtype != fmm_torch.aoti_torch_dtype_uint8() ||
        (t.numel > 1 && t.stride[0] != 1)) {
        frame_fail(&s.f, "kept must be %" PRId64 " contiguous bytes", bytes);
        goto done;
    }
    const int64_t needed = scratch_in(&s, planes, NULL, &w), width = bias ? s.heads * s.feat : 0;
    if (!give(&s, &spread.out, &out[0], 2, false, s.n, s.heads, s.feat) ||
        !give(&s, &spread.total[0], &out[1], 3, false, 1, s.heads, s.feat) ||
        !give(&s, &spread.total[1], &out[2], 3, false, 1, s.heads, s.feat) ||
        !frame_allocate(&s.f, 1, &width, s.given.dtype, &out[3]) ||
        !frame_allocate(&s.f, 1, &needed, fmm_torch.aoti_torch_dtype_uint8(), &t))
        goto done;
    scratch_in(&s, planes, t.data, &w);
    if (bias) spread.total[2] = view(&s, out[3].data, false, 1, s.heads, s.feat);
    delta.delta = w.delta;
    delta.score[0] = k.q;
    delta.score[1] = w.gq;
    delta.packed = w.packed.data;
    c.packed = w.packed.data;
    delta.arrived = spread.arrived = w.arrived;
    c.gk = w.gk;
    c.gv = w.gv;
    spread.parts = w.parts;
    delta.x = c.gout;
    delta.lse = c.lse = k.lse;
    delta.pos = k.pos;
    delta.pos_w = k.pos_w;
    c.k = k.k;
    c.q = k.q;
    c.v = spread.x = s.x;
    c.delta = delta.delta;
    spread.score[0] = c.gk;
    spread.score[1] = w.gq;
    spread.value = c.gv;
    spread.gout = c.gout;
    if (node_pass(&s, &delta) && attend(&s, &c)) node_pass(&s, &spread);
done:
    frame_finish(&s.f, "attend_self_back", stack, out, GRADIENTS);
}

#define OPERANDS FMM_HALF "Tensor x, Tensor att_k, Tensor att_q, Tensor seed, "
const fmm_torch_operator fmm_torch_attend_self[] = {
    {"_attend_self",
     "_attend_self(" OPERANDS
     "Tensor bias, float slope, float dropout, int whole) -> (Tensor, Tensor)",
     forward},
    {"_attend_self_back",
     "_attend_self_back(" OPERANDS
     "Tensor out, Tensor kept, Tensor gout, float slope, float dropout, int bias) -> "
     "(Tensor, Tensor, Tensor, Tensor)",
     backward},
    {NULL, NULL, NULL},
};
