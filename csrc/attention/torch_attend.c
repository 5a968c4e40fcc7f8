/* See torch_attend.h. */
#include "torch_attend.h"
#include "../core/checks.h"

#include <inttypes.h>

enum { APART = FMM_ATTEND_APART, KEPT_ALIGNED = 16 };
/* What a size that int64 does not hold becomes, which no allocation has. */
static const int64_t TOO_MANY = INT64_MAX / 2 / APART * APART;

bool attend_seed(attending *s, int k)
{
    tensor t;
    if (!frame_take(&s->f, k, "seed", &t)) return false;
    if (t.numel > 1 || (t.numel && t.dtype != fmm_torch.aoti_torch_dtype_int64()))
        return frame_fail(&s->f, "seed must be int64, one number");
    s->call.seed = t.numel ? t.data : NULL;
    return true;
}

bool attend_matrix(attending *s, const char *name)
{
    if (!frame_matrix(&s->f, s->n, &s->a)) return false;
    return s->a.rows == s->n ||
           frame_fail(&s->f, "%s has %" PRId64 " rows, the matrix %" PRId64, name, s->n, s->a.rows);
}

bool attend_flat(attending *s, int k, const char *name, fmm_dense *d, tensor *t)
{
    if (!frame_dense(&s->f, k, name, d, t)) return false;
    const int64_t width = s->heads * s->feat; /* fits: both are a checked view's */
    if (t->dim != 2 || d->feat != width)
        return frame_fail(&s->f, "%s must be [n, %" PRId64 "], heads side by side", name, width);
    s->f.status = fmm_check_dense("attention", name, d);
    if (s->f.status != FMM_OK) return false;
    d->heads = s->heads;
    d->feat = s->feat;
    d->head_stride = s->feat;
    return true;
}

/* Copied where its numbers lie apart. */
bool attend_bias(attending *s, int k, fmm_dense *bias)
{
    const int64_t width = s->heads * s->feat;
    tensor t;
    *bias = (fmm_dense){0};
    if (!frame_take(&s->f, k, "bias", &t)) return false;
    if (!t.numel) return true;
    if (t.dim != 1 || t.numel != width || t.dtype != s->given)
        return frame_fail(&s->f, "bias must be [%" PRId64 "], of x's dtype", width);
    if (width > 1 && t.stride[0] != 1 && !frame_copy(&s->f, "bias", &t)) return false;
    *bias = attend_view(s, t.data, false, s->n, s->heads, s->feat);
    bias->row_stride = 0;
    return true;
}

bool attend_kept(attending *s, int64_t bytes, const tensor *t)
{
    if (t->dim == 1 && t->numel == bytes && t->dtype == fmm_torch.aoti_torch_dtype_uint8() &&
        (bytes < 2 || t->stride[0] == 1) && (uintptr_t)t->data % KEPT_ALIGNED == 0)
        return true;
    return frame_fail(&s->f, "kept must be %" PRId64 " contiguous bytes, aligned to %d", bytes,
                      KEPT_ALIGNED);
}

fmm_dense attend_view(const attending *s, void *data, bool sums, int64_t rows, int64_t heads,
                      int64_t feat)
{
    return (fmm_dense){.data = data,
                       .dtype = sums && s->dtype != FMM_F64 ? FMM_F32 : s->dtype,
                       .rows = rows,
                       .heads = heads,
                       .feat = feat,
                       .row_stride = heads * feat,
                       .head_stride = feat};
}

bool attend_give(attending *s, fmm_dense *d, tensor *t, int64_t dim, bool sums, int64_t rows,
                 int64_t heads, int64_t feat)
{
    const bool wide = sums && s->dtype != FMM_F64;
    const int64_t size[3] = {rows, dim == 3 ? heads : heads * feat, feat};
    if (!frame_allocate(&s->f, dim, size, wide ? fmm_torch.aoti_torch_dtype_float32() : s->given,
                        t))
        return false;
    *d = attend_view(s, t->data, sums, rows, heads, feat);
    return true;
}

bool attend_bytes(attending *s, int64_t bytes, tensor *t)
{
    return frame_allocate(&s->f, 1, &bytes, fmm_torch.aoti_torch_dtype_uint8(), t);
}

fmm_dense attend_carve(carving *c, bool sums, int64_t rows, int64_t heads, int64_t feat)
{
    void *data = c->base ? c->base + c->bytes : NULL;
    const fmm_dense d = attend_view(c->s, data, sums, rows, heads, feat);
    int64_t more = (int64_t)fmm_dtype_bytes(d.dtype);
    const bool fits =
        !__builtin_mul_overflow(more, rows, &more) && !__builtin_mul_overflow(more, heads, &more) &&
        !__builtin_mul_overflow(more, feat, &more) && more < TOO_MANY - c->bytes - APART;
    c->bytes = fits ? c->bytes + (more + APART - 1) / APART * APART : TOO_MANY;
    return d;
}

fmm_dense attend_carve_kept(carving *c, int holds, int wanted)
{
    if (holds & (FMM_KEPT_WHOLE | FMM_KEPT_ADDED) & ~wanted) return (fmm_dense){0};
    return attend_carve(c, holds & FMM_KEPT_SUMS, c->s->n, c->s->heads,
                        holds & FMM_KEPT_WIDE ? c->s->feat : 1);
}

bool attend_pass(attending *s, const fmm_attention *call, const void *packed)
{
    s->f.status = fmm_attend_packed(&s->f.exec, &s->a, call, packed, packed != NULL, 0);
    return s->f.status == FMM_OK;
}

bool attend_nodes(attending *s, const fmm_node_call *call)
{
    s->f.status = fmm_node_sums(&s->f.exec, call);
    return s->f.status == FMM_OK;
}
