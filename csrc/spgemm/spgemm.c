/* SpGEMM: C = A B, all three sparse: c[i,j] = sum_k a[i,k] * b[k,j] over the entries that are
 * stored.
 *
 *   A [rows, inner] and B [inner, cols] CSR, values [nnz] or absent (ones); C [rows, cols] CSR.
 *   C has an entry where some product falls, also where products cancel; entries that repeat in A
 *   or B add. With a mask, c is any structure, and products that fall elsewhere are left out.
 * Precision: products and sums in f32 (f64 for f64), at most 128 terms in a row before partial sums
 * meet, in the order of A's entries; rounded once to the dtype of the values.
 * Gradient: ga = (gc B^T) where A has entries, gb = (A^T gc) where B has: fmm_spgemm_dots.
 * Cost: two flops for each product, of which there are as many as A's entries have entries in their
 * rows of B. Each product reads an entry of B and a sum at its column, which is what decides.
 *
 * Here: the contract of the numeric phase and the choice of algorithm. */
#include "cpu.h"

#include <inttypes.h>

fmm_status fmm_spgemm_device(const fmm_exec *exec, const fmm_csr *a)
{
    const fmm_algorithm *found;
    const fmm_call call = {.a = a};
    TRY(fmm_check_matrix("spgemm", exec, a));
    return fmm_algorithm_find(FMM_SPGEMM, exec->device, 0, &call, &found);
}

fmm_status fmm_spgemm_check(const fmm_exec *exec, const fmm_csr *a, const fmm_csr *b)
{
    TRY(fmm_spgemm_device(exec, a));
    TRY(fmm_check_matrix("spgemm", exec, b));
    REQUIRE(a->cols == b->rows, FMM_INVALID_ARGUMENT,
            "spgemm: a has %" PRId64 " columns, b %" PRId64 " rows", a->cols, b->rows);
    return FMM_OK;
}

static fmm_status check(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *a_val,
                        const fmm_spgemm *of, const fmm_dense *c_val)
{
    REQUIRE(of && of->b && of->c && of->schedule && a_val, FMM_INVALID_ARGUMENT,
            "spgemm: b, c, a_val and schedule must be given");
    TRY(fmm_spgemm_check(exec, a, of->b));
    TRY(fmm_check_matrix("spgemm", exec, of->c));
    TRY(fmm_check_values("spgemm", a, a_val, 1));
    TRY(fmm_check_values("spgemm", of->b, &of->b_val, 1));
    TRY(fmm_check_dense("spgemm", "c_val", c_val));
    REQUIRE(of->c->rows == a->rows && of->c->cols == of->b->cols, FMM_INVALID_ARGUMENT,
            "spgemm: c is [%" PRId64 ", %" PRId64 "], should be [%" PRId64 ", %" PRId64 "]",
            of->c->rows, of->c->cols, a->rows, of->b->cols);
    REQUIRE(c_val->rows == of->c->nnz && c_val->heads == 1 && c_val->feat == 1,
            FMM_INVALID_ARGUMENT, "spgemm: c_val is not [%" PRId64 "]", of->c->nnz);
    REQUIRE((!a_val->data || a_val->dtype == c_val->dtype) &&
                (!of->b_val.data || of->b_val.dtype == c_val->dtype),
            FMM_INVALID_ARGUMENT, "spgemm: the values are not of one dtype");
    TRY(fmm_check_output("spgemm", "c_val", c_val));
    TRY(fmm_check_apart("spgemm", c_val, "a_val", a_val));
    return fmm_check_apart("spgemm", c_val, "b_val", &of->b_val);
}

fmm_status fmm_spgemm_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *a_val,
                                const fmm_spgemm *operands, const fmm_dense *c_val, int algorithm,
                                size_t *bytes)
{
    *bytes = 0;
    TRY(check(exec, a, a_val, operands, c_val));
    fmm_spgemm own = *operands;
    own.workers = fmm_spgemm_workers(exec, own.c->nnz + a->nnz + own.b->nnz);
    const fmm_call call = {.a = a, .val = a_val, .y = c_val, .own = &own};
    return fmm_workspace(FMM_SPGEMM, exec, algorithm, &call, bytes);
}

fmm_status fmm_spgemm_numeric(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *a_val,
                              const fmm_spgemm *operands, const fmm_dense *c_val, int algorithm)
{
    TRY(check(exec, a, a_val, operands, c_val));
    fmm_spgemm own = *operands;
    own.workers = fmm_spgemm_workers(exec, own.c->nnz + a->nnz + own.b->nnz);
    const fmm_call call = {.a = a, .val = a_val, .y = c_val, .own = &own};
    return fmm_run(FMM_SPGEMM, exec, algorithm, &call, !c_val->rows);
}
