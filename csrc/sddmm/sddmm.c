/* SDDMM: e[eid[p],h] = val[eid[p],h] * < a[i,h,:], b[idx[p],h,:] >, p over the entries of row i of
 * S.
 *
 *   S [rows, cols] CSR; val [nnz] or [nnz, heads] or absent (ones); a [rows, heads, feat];
 *   b [cols, heads, feat]; e [nnz, heads]. That is S * (a b^T) at the entries of S.
 * Precision: the dot product in f32 (f64 for f64), at most 512 terms in a row before partial sums
 * meet; rounded once to e's dtype, which is a's. Each entry has one owner, nothing is added to e.
 * Gradient: ga = (S with ge * val) b and gb = its transpose times a, both SpMM;
 * gval = ge * < a[i,h], b[idx,h] >, an SDDMM.
 * Cost: 2 nnz heads feat flops; every entry gathers one row of b. */
#include "../core/checks.h"

static fmm_status prepare(const fmm_exec *exec, const fmm_csr *s, const fmm_dense *val,
                          const fmm_dense *a, const fmm_dense *b, const fmm_dense *e,
                          fmm_call *call)
{
    TRY(fmm_check_matrix("sddmm", exec, s));
    TRY(fmm_check_dense("sddmm", "a", a));
    TRY(fmm_check_values("sddmm", s, val, a->heads));
    TRY(fmm_check_like("sddmm", "a", a, a, s->rows, a->feat));
    TRY(fmm_check_like("sddmm", "b", b, a, s->cols, a->feat));
    TRY(fmm_check_like("sddmm", "e", e, a, s->nnz, 1));
    TRY(fmm_check_output("sddmm", "e", e));
    TRY(fmm_check_apart("sddmm", e, "a", a));
    TRY(fmm_check_apart("sddmm", e, "b", b));
    TRY(fmm_check_apart("sddmm", e, "val", val));
    *call = (fmm_call){
        .index = exec->index, .a = s, .val = val ? val : &fmm_absent, .x = a, .b = b, .y = e};
    return FMM_OK;
}

fmm_status fmm_sddmm_workspace(const fmm_exec *exec, const fmm_csr *s, const fmm_dense *val,
                               const fmm_dense *a, const fmm_dense *b, const fmm_dense *e,
                               int algorithm, size_t *bytes)
{
    fmm_call call;
    *bytes = 0;
    TRY(prepare(exec, s, val, a, b, e, &call));
    return fmm_workspace(FMM_SDDMM, exec, algorithm, &call, bytes);
}

fmm_status fmm_sddmm(const fmm_exec *exec, const fmm_csr *s, const fmm_dense *val,
                     const fmm_dense *a, const fmm_dense *b, const fmm_dense *e, int algorithm)
{
    fmm_call call;
    TRY(prepare(exec, s, val, a, b, e, &call));
    return fmm_run(FMM_SDDMM, exec, algorithm, &call, !e->rows || !e->heads);
}
