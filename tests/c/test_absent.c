/* What needs no GPU of the CUDA side: a library built without nvcc refuses every call on that
 * device by name, says how to get it, and goes on to work on the CPU. With it: the check of a
 * structure, and what its report says. */
#include "test.h"

static const fmm_exec cpu = {.device = FMM_CPU}, cuda = {.device = FMM_CUDA};

static void refused(fmm_status status, const char *op)
{
    CHECK(status == FMM_UNSUPPORTED, "%s: %d, %s", op, (int)status, fmm_last_error());
    CHECK(strstr(fmm_last_error(), op) && strstr(fmm_last_error(), "built without CUDA"), "%s: %s",
          op, fmm_last_error());
}

static void without_cuda(const fmm_csr *a, const fmm_dense *x, const fmm_dense *y,
                         const fmm_dense *e, const fmm_dense *lse)
{
    size_t bytes = 1;
    uint64_t report;
    const fmm_attention attention = {
        .score = FMM_DOT, .q = *x, .k = *x, .v = *x, .out = *y, .lse = *lse};
    const fmm_edge_step scores[] = {{FMM_EDGE_COPY, 0, 0, 0, 0}};
    const fmm_fusion fusion = {
        .score = FMM_SCORE_DOT, .steps = scores, .count = 1, .x = x, .y = x, .z = x, .out = y};
    refused(fmm_spmm(&cuda, a, NULL, x, y, FMM_SUM, 0), "spmm");
    refused(fmm_sddmm(&cuda, a, NULL, x, x, e, 0), "sddmm");
    refused(fmm_attend(&cuda, a, &attention, 0), "attention");
    refused(fmm_fused(&cuda, a, &fusion, 0), "fused");
    refused(fmm_spgemm_symbolic(&cuda, a, a, NULL), "spgemm");
    refused(fmm_spgemm_colours(&cuda, a, NULL), "spgemm");
    refused(fmm_csr_check(&cuda, a, &report), "csr_check");
    refused(fmm_plan_workspace(&cuda, a, &bytes), "plan");
    CHECK(!fmm_plan_bytes(&cuda, a), "a plan without a device");
    refused(fmm_plan(&cuda, a, &report), "plan");
    for (fmm_operator op = 0; op < FMM_OPERATORS; op++)
        CHECK(!fmm_algorithms(op, FMM_CUDA, 0), "operator %d has an algorithm", (int)op);
    CHECK(fmm_spmm(&cpu, a, NULL, x, y, FMM_SUM, 0) == FMM_OK, "%s", fmm_last_error());
    CHECK(fmm_attend(&cpu, a, &attention, 0) == FMM_OK, "%s", fmm_last_error());
    CHECK(fmm_fused(&cpu, a, &fusion, 0) == FMM_OK, "%s", fmm_last_error());
}

static void no_workspace(const fmm_csr *a, const fmm_dense *x, const fmm_dense *y,
                         const fmm_dense *e)
{
    size_t bytes = 1;
    CHECK(fmm_spmm_workspace(&cpu, a, NULL, x, y, FMM_SUM, 0, &bytes) == FMM_OK && !bytes, "spmm");
    bytes = 1;
    CHECK(fmm_sddmm_workspace(&cpu, a, NULL, x, x, e, 0, &bytes) == FMM_OK && !bytes, "sddmm");
    bytes = 1;
    CHECK(fmm_plan_workspace(&cpu, a, &bytes) == FMM_OK && !bytes, "plan");
    CHECK(fmm_plan_bytes(&cpu, a) == 0 && fmm_plan(&cpu, a, NULL) == FMM_OK, "plan");
}

static void reports(fmm_csr a, int64_t *ptr, int32_t *idx)
{
    uint64_t report = 0;
    int64_t where = -1;
    CHECK(fmm_csr_check(&cpu, &a, &report) == FMM_OK, "%s", fmm_last_error());
    CHECK(fmm_csr_report(report, &where) == FMM_CSR_OK && where == -1, "a good one");
    const struct {
        int64_t *place, bad;
        fmm_csr_code code;
        int64_t where;
    } cases[] = {{ptr, 1, FMM_CSR_PTR_FIRST, 0},
                 {ptr + 2, 0, FMM_CSR_PTR_FALLS, 2},
                 {ptr + a.rows, 5000, FMM_CSR_PTR_LAST, a.rows}};
    for (int k = 0; k < 3; k++) {
        const int64_t good = *cases[k].place;
        *cases[k].place = cases[k].bad;
        fmm_csr_check(&cpu, &a, &report);
        const fmm_csr_code code = fmm_csr_report(report, &where);
        CHECK(code == cases[k].code && where == cases[k].where, "%d at %" PRId64, (int)code, where);
        *cases[k].place = good;
    }
    idx[4200] = -1;
    fmm_csr_check(&cpu, &a, &report);
    CHECK(fmm_csr_report(report, &where) == FMM_CSR_IDX && where == 4200, "at %" PRId64, where);
}

int main(void)
{
    enum { N = 9, PER = 500, HEADS = 2, FEAT = 5 };
    int64_t *ptr = guarded((N + 1) * sizeof *ptr, AT_END);
    int32_t *idx = guarded(N * PER * sizeof *idx, AT_END);
    for (int64_t i = 0; i <= N; i++) ptr[i] = i * PER;
    for (int64_t p = 0; p < N * PER; p++) idx[p] = (int32_t)random_below(N);
    const fmm_csr a = {.rows = N, .cols = N, .nnz = N * PER, .ptr = ptr, .idx = idx};
    const fmm_dense x = view(FMM_F32, N, HEADS, FEAT, 0, AT_END);
    const fmm_dense y = view(FMM_F32, N, HEADS, FEAT, 0, AT_END);
    const fmm_dense e = view(FMM_F32, N * PER, HEADS, 1, 0, AT_END);
    const fmm_dense lse = view(FMM_F32, N, HEADS, 1, 0, AT_END);
    fill(&x, RANDOM);
    if (strstr(fmm_build_info(), "\"cuda\": null")) without_cuda(&a, &x, &y, &e, &lse);
    no_workspace(&a, &x, &y, &e);
    reports(a, ptr, idx);
    release_all();
    return finish();
}
