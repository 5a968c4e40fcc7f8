/* A plug-in: SpMM in single precision, one row after the other. docs/plugins.md explains it. */
#include "fusedmm.h"

static bool supports(const fmm_call *call)
{
    return call->x->dtype == FMM_F32 && call->reduce == FMM_SUM && !call->val->data;
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_dense *x = call->x, *y = call->y;
    (void)exec;
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t h = 0; h < x->heads; h++) {
            float *out = (float *)y->data + i * y->row_stride + h * y->head_stride;
            for (int64_t c = 0; c < x->feat; c++) out[c] = 0;
            for (int64_t p = a->ptr[i]; p < a->ptr[i + 1]; p++) {
                const float *in =
                    (const float *)x->data + a->idx[p] * x->row_stride + h * x->head_stride;
                for (int64_t c = 0; c < x->feat; c++) out[c] += in[c];
            }
        }
    return FMM_OK;
}

FMM_PLUGIN
{
    static fmm_algorithm plain = {.name = "plain",
                                  .about = "one row after the other",
                                  .source = "the example",
                                  .deterministic = true,
                                  .supports = supports,
                                  .run = run};
    return host->add(FMM_SPMM, FMM_CPU, &plain);
}
