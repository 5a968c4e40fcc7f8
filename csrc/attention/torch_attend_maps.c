/* fusedmm::_attend_maps and _attend_maps_back: attention among linear maps of one tensor, and its
 * gradient, each in one call.
 *
 *     p = [ k = v | q ]           out = attention(q, k, v) of GATv2's scores, + bias
 *     p = [ k | v | q ]           out = attention(q, k, v) of products, + bias
 *     p = [ k | v | q | skip ]    the same + skip instead
 *
 * The maps lie side by side, [n, maps * heads * C], as one product of all weights gives them, and
 * so do their gradients, which the product's own gradients take as they are. The passes are those
 * of attention.c and node_sums.c, in the order in which separate operators would run them and so
 * with the same bits; a small graph waits for calls, and here are two in the place of a dozen. */
#include "torch_attend.h"
#include "../core/checks.h"

#include <inttypes.h>

enum { PARAMETERS = 3, LEAST = 2, MOST = 4, RESULTS = 2 };

typedef struct maps {
    attending s;
    int64_t count;
    tensor p;
} maps;

/* Map number b of a tensor like p. */
static fmm_dense map(const maps *m, const tensor *p, int64_t b)
{
    const attending *s = &m->s;
    const int64_t width = s->heads * s->feat;
    char *data = p->data;
    if (data) data += b * width * (int64_t)fmm_dtype_bytes(s->dtype);
    fmm_dense d = attend_view(s, data, false, s->n, s->heads, s->feat);
    d.row_stride = s->n > 1 ? p->stride[0] : m->count * width;
    return d;
}
static fmm_dense key(const maps *m, const tensor *p) { return map(m, p, 0); }
static fmm_dense value(const maps *m, const tensor *p) { return map(m, p, m->count > 2); }
static fmm_dense query(const maps *m, const tensor *p) { return map(m, p, m->count > 2 ? 2 : 1); }

/* p, att and seed are inputs from `first` on; `tensors` inputs come before the numbers. */
static bool begin(maps *m, const StableIValue *stack, int first, int tensors)
{
    attending *s = &m->s;
    const StableIValue *numbers = stack + tensors;
    fmm_dense p;
    tensor t;
    *m = (maps){.s.call = {.scale = frame_float(numbers[0]),
                           .slope = frame_float(numbers[1]),
                           .dropout = frame_float(numbers[2])}};
    if (!frame_begin(&s->f, stack, tensors) || !frame_dense(&s->f, first, "p", &p, &m->p))
        return false;
    s->f.status = fmm_check_dense("attention", "p", &p);
    if (s->f.status != FMM_OK) return false;
    s->heads = (int64_t)numbers[3];
    m->count = (int64_t)numbers[4];
    if (m->count < LEAST || m->count > MOST)
        return frame_fail(&s->f, "there may be %d to %d maps, not %" PRId64, LEAST, MOST, m->count);
    if (m->p.dim != 2 || s->heads < 1 || s->heads > p.feat || p.feat % m->count ||
        p.feat / m->count % s->heads)
        return frame_fail(&s->f, "p must be [n, maps * heads * C]");
    s->feat = p.feat / m->count / s->heads;
    s->given = m->p.dtype;
    s->dtype = p.dtype;
    s->n = p.rows;
    if (m->count == 2) {
        if (!frame_dense(&s->f, first + 1, "att", &s->call.att, &t)) return false;
        if (t.dim != 3) return frame_fail(&s->f, "att must be [1, heads, C]");
    }
    s->call.score = m->count == 2 ? FMM_GATV2 : FMM_DOT;
    s->call.k = key(m, &m->p);
    s->call.v = value(m, &m->p);
    s->call.q = query(m, &m->p);
    return attend_seed(s, first + 2) && attend_matrix(s, "p");
}

/* What forward keeps. X(view, what holds of it) */
#define KEPT_LIST(X)                                                                               \
    X(lse, FMM_KEPT_SUMS) X(lse_rest, FMM_KEPT_SUMS) X(out, FMM_KEPT_WIDE | FMM_KEPT_ADDED)
typedef struct kept {
#define X(view, holds) fmm_dense view;
    KEPT_LIST(X)
#undef X
} kept;

static int64_t kept_in(const attending *s, int wanted, unsigned char *base, kept *k)
{
    carving c = {s, base, 0};
#define X(view, holds) k->view = attend_carve_kept(&c, holds, wanted);
    KEPT_LIST(X)
#undef X
    return c.bytes;
}

/* (half, p, att, seed, bias, scale, slope, dropout, heads, maps, whole) -> out, kept */
static void forward(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { FIRST = 4, BIAS = FIRST + PARAMETERS, TENSORS };
    maps m;
    attending *s = &m.s;
    fmm_node_call add = {.form = FMM_NODE_ADD};
    kept k;
    tensor out[RESULTS] = {{0}};
    (void)inputs, (void)results;
    const bool whole = stack[TENSORS + 5] != 0;
    if (!begin(&m, stack, FIRST, TENSORS) || !attend_bias(s, BIAS, &add.value) ||
        !attend_give(s, &add.out, &out[0], 2, false, s->n, s->heads, s->feat))
        goto done;
    if (m.count == MOST && add.value.data) {
        frame_fail(&s->f, "either a bias or a map is added");
        goto done;
    }
    if (m.count == MOST) add.value = map(&m, &m.p, MOST - 1);
    const bool added = add.value.data != NULL;
    const int wanted = whole && added ? FMM_KEPT_ADDED : 0;
    if (!attend_bytes(s, kept_in(s, wanted, NULL, &k), &out[1])) goto done;
    kept_in(s, wanted, out[1].data, &k);
    fmm_attention c = s->call;
    c.pass = FMM_ATTENTION_FORWARD;
    c.out = add.x = whole && added ? k.out : add.out;
    c.lse = k.lse;
    c.lse_rest = k.lse_rest;
    if (attend_pass(s, &c, NULL) && added) attend_nodes(s, &add);
done:
    frame_finish(&s->f, "attend_maps", stack, out, RESULTS);
}

/* (half, half of the transpose, p, att, seed, out, kept, gout, scale, slope, dropout, heads, maps)
 * -> the gradients of p and, in parts to be added up, of att, if there is one. out without elements
 * is among what was kept. */
static void backward(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { HALF = 4, FIRST = 8, OUT = FIRST + PARAMETERS, KEPT, GOUT, TENSORS };
    maps m;
    attending *s = &m.s;
    fmm_node_call delta = {.form = FMM_NODE_DELTA}, add = {.form = FMM_NODE_ADD};
    fmm_dense whole, gatt;
    kept k;
    tensor t, out[RESULTS] = {{0}};
    (void)inputs, (void)results;
    if (!begin(&m, stack, FIRST, TENSORS) || !frame_take(&s->f, OUT, "out", &t) ||
        (t.numel && !attend_flat(s, OUT, "out", &delta.value, &t)))
        goto done;
    const bool added = t.numel == 0;
    if (!attend_flat(s, GOUT, "gout", &delta.x, &t) || !frame_take(&s->f, KEPT, "kept", &t) ||
        !attend_kept(s, kept_in(s, added ? FMM_KEPT_ADDED : 0, t.data, &k), &t))
        goto done;
    if (added) delta.value = k.out;

    const bool gatv2 = m.count == 2;
    const int64_t parts = s->f.exec.device == FMM_CUDA ? FMM_GATT_PARTS_CUDA : FMM_GATT_PARTS_CPU;
    carving sizes = {.s = s};
    delta.delta = attend_carve(&sizes, true, s->n, s->heads, 1);
    const int64_t from = sizes.bytes;
    fmm_dense gv = {0};
    if (gatv2) gv = attend_carve(&sizes, false, s->n, s->heads, s->feat);
    if (!attend_give(s, &whole, &out[0], 2, false, s->n, m.count * s->heads, s->feat) ||
        !attend_give(s, &gatt, &out[1], 3, true, gatv2 ? parts : 0, s->heads, s->feat) ||
        !attend_bytes(s, sizes.bytes, &t))
        goto done;
    delta.delta.data = t.data;
    if (gatv2) gv.data = (char *)t.data + from;

    fmm_attention c = s->call;
    c.lse = k.lse;
    c.lse_rest = k.lse_rest;
    c.delta = delta.delta;
    c.gout = delta.x;
    c.pass = FMM_ATTENTION_ROWS;
    c.gq = query(&m, &out[0]);
    if (gatv2) c.gatt = gatt;
    if (!attend_nodes(s, &delta) || !attend_pass(s, &c, NULL)) goto done;
    c.pass = FMM_ATTENTION_COLS;
    c.gq = c.gatt = (fmm_dense){0};
    c.gk = key(&m, &out[0]);
    c.gv = gatv2 ? gv : value(&m, &out[0]);
    if (!frame_half(&s->f, HALF, s->n, &s->a) || !attend_pass(s, &c, NULL)) goto done;
    add.x = gatv2 ? c.gk : c.gout;
    add.out = gatv2 ? c.gk : map(&m, &out[0], MOST - 1);
    if (gatv2) add.value = gv;
    if (gatv2 || m.count == MOST) attend_nodes(s, &add);
done:
    frame_finish(&s->f, "attend_maps_back", stack, out, RESULTS);
}

#define PARAMETERS_OF "Tensor p, Tensor att, Tensor seed, "
#define NUMBERS "float scale, float slope, float dropout, int heads, int maps"
const fmm_torch_operator fmm_torch_attend_maps[] = {
    {"_attend_maps",
     "_attend_maps(" FMM_HALF PARAMETERS_OF "Tensor bias, " NUMBERS
     ", int whole) -> (Tensor, Tensor)",
     .kernel = forward},
    {"_attend_maps_back",
     "_attend_maps_back(" FMM_WHOLE PARAMETERS_OF "Tensor out, Tensor kept, Tensor gout, " NUMBERS
     ") -> (Tensor, Tensor)",
     .kernel = backward},
#define X(view, holds) FMM_KEPT_NUMBER(maps, view, holds),
    KEPT_LIST(X)
#undef X
        {0},
};
