/* Row sums: y[i,h,:] = sum of val[eid[p],h,:], p over the entries of row i of A.
 *
 * Precision: sums in double, rounded once to y's dtype, which is val's.
 * Gradient: gval[eid[p]] = gy[i], an SDDMM of gy and ones.
 * Cost: nnz heads feat additions; reading val decides the time. */
#include "../core/checks.h"

#include <inttypes.h>

static fmm_status check(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                        const fmm_dense *y)
{
    TRY(fmm_check_matrix("rowsum", exec, a));
    TRY(fmm_check_dense("rowsum", "val", val));
    TRY(fmm_check_dense("rowsum", "y", y));
    VALID(val->rows == a->nnz, "rowsum: val has %" PRId64 " rows for %" PRId64 " entries",
          val->rows, a->nnz);
    VALID(y->rows == a->rows && y->heads == val->heads && y->feat == val->feat &&
              y->dtype == val->dtype,
          "rowsum: y is not [rows, heads, feat] of val's dtype");
    TRY(fmm_check_output("rowsum", "y", y));
    return fmm_check_apart("rowsum", y, "val", val);
}

fmm_status fmm_rowsum(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                      const fmm_dense *y, int algorithm)
{
    TRY(check(exec, a, val, y));
    const fmm_call call = {.index = exec->index, .a = a, .x = val, .y = y};
    return fmm_run(FMM_ROWSUM, exec, algorithm, &call, !y->rows || !y->heads || !y->feat);
}
