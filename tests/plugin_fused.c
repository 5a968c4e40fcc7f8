/* A plug-in for fused: sums of a * s * z[j] or of s * z[j] with s a dot product, in f32, one head
 * after the other. The edge functions are recognised by their programs; all else is declined. */
#include "fusedmm.h"

/* "s*a" is one multiplication into register 0; "s" is no step at all. */
static bool is_product(const fmm_fusion *f)
{
    return f->count == 1 && f->steps[0].op == FMM_EDGE_MUL && f->steps[0].out == 0 &&
           f->steps[0].left + f->steps[0].right == 1;
}

static bool supports(const fmm_call *call)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    return f->pass == FMM_FORWARD && f->score == FMM_SCORE_DOT && f->message == FMM_MESSAGE_SCALE &&
           f->activation == FMM_ACT_NONE && f->reduce == FMM_SUM && !f->function &&
           (is_product(f) || !f->count) && f->x->dtype == FMM_F32 && !call->a->eid &&
           (!call->val->data || call->val->dtype == FMM_F32);
}

static float *at(const fmm_dense *d, int64_t row, int64_t head)
{
    return (float *)d->data + row * d->row_stride + head * d->head_stride;
}

static void row_of_head(const fmm_call *call, int64_t i, int64_t h)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    float *out = at(f->out, i, h);
    for (int64_t c = 0; c < f->out->feat; c++) out[c] = 0;
    for (int64_t p = call->a->ptr[i]; p < call->a->ptr[i + 1]; p++) {
        const int32_t j = call->a->idx[p];
        const float *x = at(f->x, i, h), *y = at(f->y, j, h), *z = at(f->z, j, h);
        float w = 0;
        for (int64_t c = 0; c < f->x->feat; c++) w += x[c] * y[c];
        if (is_product(f) && call->val->data) w *= *at(call->val, p, call->val->heads > 1 ? h : 0);
        for (int64_t c = 0; c < f->out->feat; c++) out[c] += w * z[c];
    }
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    (void)exec; /* serial, and no workspace */
    for (int64_t i = 0; i < call->a->rows; i++)
        for (int64_t h = 0; h < fmm_fusion_of(call)->x->heads; h++) row_of_head(call, i, h);
    return FMM_OK;
}

FMM_PLUGIN
{
    static fmm_algorithm plain = {.name = "plain",
                                  .about = "two edge functions, row by row",
                                  .source = "docs/plugins.md",
                                  .deterministic = true,
                                  .supports = supports,
                                  .run = run};
    return host->add(FMM_FUSED, FMM_CPU, &plain);
}
