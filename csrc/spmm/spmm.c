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

static fmm_status prepare(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                          const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce, fmm_call *call)
{
    TRY(fmm_check_matrix("spmm", exec, a));
    TRY(fmm_check_dense("spmm", "x", x));
    TRY(fmm_check_values("spmm", a, val, x->heads));
    TRY(fmm_check_like("spmm", "x", x, x, a->cols, x->feat));
    TRY(fmm_check_like("spmm", "y", y, x, a->rows, x->feat));
    VALID((unsigned)reduce <= FMM_MIN, "spmm: no reduction number %d", (int)reduce);
    TRY(fmm_check_output("spmm", "y", y));
    TRY(fmm_check_apart("spmm", y, "x", x));
    TRY(fmm_check_apart("spmm", y, "val", val));
    *call = (fmm_call){.index = exec->index,
                       .a = a,
                       .val = val ? val : &fmm_absent,
                       .x = x,
                       .y = y,
                       .reduce = reduce};
    return FMM_OK;
}

fmm_status fmm_spmm_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                              const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce,
                              int algorithm, size_t *bytes)
{
    fmm_call call;
    *bytes = 0;
    TRY(prepare(exec, a, val, x, y, reduce, &call));
    return fmm_workspace(FMM_SPMM, exec, algorithm, &call, bytes);
}

fmm_status fmm_spmm(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                    const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce, int algorithm)
{
    fmm_call call;
    TRY(prepare(exec, a, val, x, y, reduce, &call));
    return fmm_run(FMM_SPMM, exec, algorithm, &call, !y->rows || !y->heads || !y->feat);
}
