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

enum { PARAMETERS = 3, FMM_MAPS_LEAST = 2, FMM_MAPS_MOST = 4 };

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
    fmm_dense d = frame_view(data, s->dtype, s->n, s->heads, s->feat);
    d.row_stride = s->n > 1 ? p->stride[0] : m->count * width;
    return d;
}
static fmm_dense key(const maps *m, const tensor *p) { return map(m, p, 0); }
static fmm_dense value(const maps *m, const tensor *p) { return map(m, p, m->count > 2); }
static fmm_dense query(const maps *m, const tensor *p) { return map(m, p, m->count > 2 ? 2 : 1); }

/* p, att and seed are inputs from `first` on. */
static bool begin(maps *m, frame *f, const StableIValue *number, int first)
{
    attending *s = &m->s;
    fmm_dense p;
    *m = (maps){.s = {.f = f,
                      .call = {.scale = frame_float(number[0]),
                               .slope = frame_float(number[1]),
                               .dropout = frame_float(number[2])}}};
    if (!frame_dense(f, first, "p", &p, &m->p) ||
        !frame_try(f, fmm_check_dense("attention", "p", &p)))
        return false;
    s->heads = (int64_t)number[3];
    m->count = (int64_t)number[4];
    if (m->count < FMM_MAPS_LEAST || m->count > FMM_MAPS_MOST)
        return frame_fail(f, "there may be %d to %d maps, not %" PRId64, FMM_MAPS_LEAST,
                          FMM_MAPS_MOST, m->count);
    if (m->p.dim != 2 || s->heads < 1 || s->heads > p.feat || p.feat % m->count ||
        p.feat / m->count % s->heads)
        return frame_fail(f, "p must be [n, maps * heads * C]");
    s->feat = p.feat / m->count / s->heads;
    s->given = m->p.dtype;
    s->dtype = p.dtype;
    s->n = p.rows;
    if (m->count == 2) {
        if (!attend_att(f, first + 1, "att", &s->call.att)) return false;
    }
    s->call.score = m->count == 2 ? FMM_GATV2 : FMM_DOT;
    s->call.k = key(m, &m->p);
    s->call.v = value(m, &m->p);
    s->call.q = query(m, &m->p);
    return attend_matrix(s, "p") && attend_seed(f, first + 2, s->a.nnz, &s->call);
}

/* What forward keeps. X(view, its bits) */
#define KEPT_LIST(X)                                                                               \
    X(lse, FMM_KEPT_SUMS) X(lse_rest, FMM_KEPT_SUMS) X(out, FMM_KEPT_WIDE | FMM_KEPT_ADDED)
FMM_KEPT_LAYOUT(KEPT_LIST)

/* (half, p, att, seed, bias, scale, slope, dropout, heads, maps, whole) -> out, kept */
FMM_KERNEL(forward, 8, 2)
{
    enum { FIRST = 4, BIAS = FIRST + PARAMETERS };
    maps m;
    attending *s = &m.s;
    fmm_node_call add = {.form = FMM_NODE_ADD};
    const bool whole = number[5] != 0;
    if (!begin(&m, f, number, FIRST) || !attend_bias(s, BIAS, &add.value) ||
        !frame_result(f, 2, s->dtype, s->n, s->heads, s->feat, &out[0], &add.out))
        return false;
    if (m.count == FMM_MAPS_MOST && add.value.data)
        return frame_fail(f, "either a bias or a map is added");
    if (m.count == FMM_MAPS_MOST) add.value = map(&m, &m.p, FMM_MAPS_MOST - 1);
    const bool added = add.value.data != NULL;
    const int wanted = whole && added ? FMM_KEPT_ADDED : 0;
    fmm_attention c = s->call;
    if (!attend_bytes(s, lay_out(s, wanted, NULL, &c), &out[1])) return false;
    lay_out(s, wanted, out[1].data, &c);
    c.pass = FMM_ATTENTION_FORWARD;
    if (!wanted) c.out = add.out;
    add.x = c.out;
    return attend_pass(s, &c, NULL) && (!added || attend_nodes(s, &add));
}

/* (half, half of the transpose, p, att, seed, out, kept, gout, scale, slope, dropout, heads, maps)
 * -> the gradients of p and, in parts to be added up, of att, if there is one. out without elements
 * is among what was kept. */
FMM_KERNEL(backward, 14, 2)
{
    enum { HALF = 4, FIRST = 8, OUT = FIRST + PARAMETERS };
    maps m;
    attending *s = &m.s;
    fmm_node_call delta = {.form = FMM_NODE_DELTA}, add = {.form = FMM_NODE_ADD};
    fmm_dense whole, gatt;
    tensor t;
    if (!begin(&m, f, number, FIRST) || !attend_backward(s, OUT, &delta, &t)) return false;
    const int wanted = delta.value.data ? 0 : FMM_KEPT_ADDED;
    fmm_attention c = s->call;
    if (!attend_kept(s, lay_out(s, wanted, t.data, &c), &t)) return false;
    if (!delta.value.data) delta.value = c.out;
    c.out = (fmm_dense){0}; /* no pass writes it again */

    const bool gatv2 = m.count == 2;
    const int64_t parts = f->exec.device == FMM_CUDA ? FMM_GATT_PARTS_CUDA : FMM_GATT_PARTS_CPU;
    carving sizes = {.s = s};
    delta.delta = attend_carve(&sizes, true, s->n, s->heads, 1);
    const int64_t from = sizes.bytes;
    fmm_dense gv = {0};
    if (gatv2) gv = attend_carve(&sizes, false, s->n, s->heads, s->feat);
    if (!frame_result(f, 2, s->dtype, s->n, m.count * s->heads, s->feat, &out[0], &whole) ||
        !frame_result(f, 3, frame_sums(s->dtype), gatv2 ? parts : 0, s->heads, s->feat, &out[1],
                      &gatt) ||
        !attend_bytes(s, sizes.bytes, &t))
        return false;
    delta.delta.data = t.data;
    if (gatv2) gv.data = (char *)t.data + from;

    c.delta = delta.delta;
    c.gout = delta.x;
    c.pass = FMM_ATTENTION_ROWS;
    c.gq = query(&m, &out[0]);
    if (gatv2) c.gatt = gatt;
    if (!attend_nodes(s, &delta) || !attend_pass(s, &c, NULL)) return false;
    c.pass = FMM_ATTENTION_COLS;
    c.gq = c.gatt = (fmm_dense){0};
    c.gk = key(&m, &out[0]);
    c.gv = gatv2 ? gv : value(&m, &out[0]);
    if (!frame_half(f, HALF, s->n, &s->a) || !attend_pass(s, &c, NULL)) return false;
    add.x = gatv2 ? c.gk : c.gout;
    add.out = gatv2 ? c.gk : map(&m, &out[0], FMM_MAPS_MOST - 1);
    if (gatv2) add.value = gv;
    return (!gatv2 && m.count != FMM_MAPS_MOST) || attend_nodes(s, &add);
}

#define PARAMETERS_OF "Tensor p, Tensor att, Tensor seed, "
#define NUMBERS "float scale, float slope, float dropout, int heads, int maps"
const fmm_torch_operator fmm_torch_attend_maps[] = {
    FMM_OPERATOR(_attend_maps, forward,
                 "(" FMM_HALF PARAMETERS_OF "Tensor bias, " NUMBERS
                 ", int whole) -> (Tensor, Tensor)"),
    FMM_OPERATOR(_attend_maps_back, backward,
                 "(" FMM_WHOLE PARAMETERS_OF "Tensor out, Tensor kept, Tensor gout, " NUMBERS
                 ") -> (Tensor, Tensor)"),
    FMM_NUMBER(FMM_MAPS_LEAST),
    FMM_NUMBER(FMM_MAPS_MOST),
#define NUMBER(view, holds) FMM_KEPT_NUMBER(maps, view, holds),
    KEPT_LIST(NUMBER){0},
};
