/* See torch_attend.h. */
#include "torch_attend.h"
#include "../core/checks.h"

#include <inttypes.h>

enum { APART = FMM_ATTEND_APART, KEPT_ALIGNED = 16 };
/* What a size that int64 does not hold becomes, which no allocation has. */
static const int64_t TOO_MANY = INT64_MAX / 2 / APART * APART;

bool attend_seed(frame *f, int k, int64_t nnz, fmm_attention *call)
{
    tensor t;
    if (!frame_take(f, k, "seed", &t)) return false;
    if (t.numel && t.dtype != fmm_torch.aoti_torch_dtype_int64())
        return frame_fail(f, "seed must be int64");
    const int64_t keys = t.numel - 1;
    if (keys > 0 && (keys != nnz || t.dim != 1 || t.stride[0] != 1))
        return frame_fail(f, "seed must be one number, or that and a key for each edge");
    call->seed = t.numel ? t.data : NULL;
    call->keys = keys > 0 ? call->seed + 1 : NULL;
    return true;
}

bool attend_att(frame *f, int k, const char *name, fmm_dense *d)
{
    tensor t;
    if (!frame_dense(f, k, name, d, &t)) return false;
    return t.dim == 3 || frame_fail(f, "%s must be [1, heads, C]", name);
}

bool attend_matrix(attending *s, const char *name)
{
    if (!frame_matrix(s->f, s->n, &s->a)) return false;
    return s->a.rows == s->n ||
           frame_fail(s->f, "%s has %" PRId64 " rows, the matrix %" PRId64, name, s->n, s->a.rows);
}

bool attend_flat(attending *s, int k, const char *name, fmm_dense *d, tensor *t)
{
    if (!frame_dense(s->f, k, name, d, t)) return false;
    const int64_t width = s->heads * s->feat; /* fits: both are a checked view's */
    if (t->dim != 2 || d->feat != width)
        return frame_fail(s->f, "%s must be [n, %" PRId64 "], heads side by side", name, width);
    if (!frame_try(s->f, fmm_check_dense("attention", name, d))) return false;
    d->heads = s->heads;
    d->feat = s->feat;
    d->head_stride = s->feat;
    return true;
}

/* Takes the bias, which is copied where its numbers lie apart. */
bool attend_bias(attending *s, int k, fmm_dense *bias)
{
    const int64_t width = s->heads * s->feat;
    tensor t;
    *bias = (fmm_dense){0};
    if (!frame_take(s->f, k, "bias", &t)) return false;
    if (!t.numel) return true;
    if (t.dim != 1 || t.numel != width || t.dtype != s->given)
        return frame_fail(s->f, "bias must be [%" PRId64 "], of x's dtype", width);
    if (width > 1 && t.stride[0] != 1 && !frame_copy(s->f, "bias", &t)) return false;
    *bias = frame_view(t.data, s->dtype, s->n, s->heads, s->feat);
    bias->row_stride = 0;
    return true;
}

bool attend_backward(attending *s, int first, fmm_node_call *delta, tensor *kept)
{
    tensor t;
    return frame_take(s->f, first, "out", &t) &&
           (!t.numel || attend_flat(s, first, "out", &delta->value, &t)) &&
           frame_take(s->f, first + 1, "kept", kept) &&
           attend_flat(s, first + 2, "gout", &delta->x, &t);
}

bool attend_kept(attending *s, int64_t bytes, const tensor *t)
{
    if (t->dim == 1 && t->numel == bytes && t->dtype == fmm_torch.aoti_torch_dtype_uint8() &&
        (bytes < 2 || t->stride[0] == 1) && (uintptr_t)t->data % KEPT_ALIGNED == 0)
        return true;
    return frame_fail(s->f, "kept must be %" PRId64 " contiguous bytes, aligned to %d", bytes,
                      KEPT_ALIGNED);
}

bool attend_bytes(attending *s, int64_t bytes, tensor *t)
{
    return frame_vector(s->f, bytes, fmm_torch.aoti_torch_dtype_uint8(), t);
}

fmm_dense attend_carve(carving *c, bool sums, int64_t rows, int64_t heads, int64_t feat)
{
    void *data = c->base ? c->base + c->bytes : NULL;
    const fmm_dtype dtype = sums ? frame_sums(c->s->dtype) : c->s->dtype;
    int64_t more = (int64_t)fmm_dtype_bytes(dtype);
    const bool fits =
        !__builtin_mul_overflow(more, rows, &more) && !__builtin_mul_overflow(more, heads, &more) &&
        !__builtin_mul_overflow(more, feat, &more) && more < TOO_MANY - c->bytes - APART;
    c->bytes = fits ? c->bytes + (more + APART - 1) / APART * APART : TOO_MANY;
    return frame_view(data, dtype, rows, heads, feat);
}

fmm_dense attend_carve_kept(carving *c, int holds, int wanted)
{
    if (holds & (FMM_KEPT_WHOLE | FMM_KEPT_ADDED) & ~wanted) return (fmm_dense){0};
    return attend_carve(c, holds & FMM_KEPT_SUMS, c->s->n, c->s->heads,
                        holds & FMM_KEPT_WIDE ? c->s->feat : 1);
}

bool attend_pass(attending *s, const fmm_attention *call, const void *packed)
{
    frame *f = s->f;
    return frame_try(f, fmm_attend_packed(&f->exec, &s->a, call, packed, packed != NULL, 0));
}

bool attend_nodes(attending *s, const fmm_node_call *call)
{
    return frame_try(s->f, fmm_node_sums(&s->f->exec, call));
}
