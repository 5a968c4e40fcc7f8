/* SpMM: y[i,h,:] = reduce_p val[eid[p],h] * x[idx[p],h,:], p over the entries of row i of A.
 *
 *   A [rows, cols] CSR; val [nnz] or [nnz, heads] or absent (ones); x [cols, heads, feat];
 *   y [rows, heads, feat]. reduce: sum, mean (sum / entries), max, min; an empty row gives 0.
 * Precision: products and sums in f32 (f64 for f64), at most 512 terms in a row before partial sums
 * meet; rounded once to y's dtype, which is x's.
 * Gradient (sum): gx = A^T gy, an SpMM on the transpose; gval = <gy[i,h], x[idx,h]>, an SDDMM.
 * Cost: 2 nnz heads feat flops; every entry gathers one row of x, which is what decides the time.
 *
 * Here: the contract. cpu_algorithms.c and cuda_algorithms.c choose, cpu*.inc and cuda*.cuh
 * compute. */
#include "../core/checks.h"

#include <inttypes.h>

static fmm_status check(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                        const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce)
{
    TRY(fmm_check_matrix("spmm", exec, a));
    TRY(fmm_check_dense("spmm", "x", x));
    TRY(fmm_check_dense("spmm", "y", y));
    TRY(fmm_check_values("spmm", a, val, x->heads));
    REQUIRE(x->rows == a->cols, FMM_INVALID_ARGUMENT,
            "spmm: x has %" PRId64 " rows, the matrix %" PRId64 " columns", x->rows, a->cols);
    REQUIRE(y->rows == a->rows && y->heads == x->heads && y->feat == x->feat, FMM_INVALID_ARGUMENT,
            "spmm: y is [%" PRId64 ", %" PRId64 ", %" PRId64 "], should be [%" PRId64 ", %" PRId64
            ", %" PRId64 "]",
            y->rows, y->heads, y->feat, a->rows, x->heads, x->feat);
    REQUIRE(y->dtype == x->dtype, FMM_INVALID_ARGUMENT, "spmm: y is %s and x is %s",
            fmm_dtype_name(y->dtype), fmm_dtype_name(x->dtype));
    REQUIRE((unsigned)reduce <= FMM_MIN, FMM_INVALID_ARGUMENT, "spmm: no reduction number %d",
            (int)reduce);
    TRY(fmm_check_output("spmm", "y", y));
    TRY(fmm_check_apart("spmm", y, "x", x));
    return fmm_check_apart("spmm", y, "val", val);
}

static const fmm_dense absent = {.heads = 1, .feat = 1};

fmm_status fmm_spmm_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                              const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce,
                              int algorithm, size_t *bytes)
{
    *bytes = 0;
    TRY(check(exec, a, val, x, y, reduce));
    const fmm_call call = {
        .index = exec->index, .a = a, .val = val ? val : &absent, .x = x, .y = y, .reduce = reduce};
    return fmm_workspace(FMM_SPMM, exec, algorithm, &call, bytes);
}

fmm_status fmm_spmm(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                    const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce, int algorithm)
{
    TRY(check(exec, a, val, x, y, reduce));
    const fmm_call call = {
        .index = exec->index, .a = a, .val = val ? val : &absent, .x = x, .y = y, .reduce = reduce};
    return fmm_run(FMM_SPMM, exec, algorithm, &call, !y->rows || !y->heads || !y->feat);
}
