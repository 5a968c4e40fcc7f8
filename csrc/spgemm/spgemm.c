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
 * Here: the contract of both phases and of the gradient, and the choice of device and algorithm. */
#include "cpu.h"

#include <inttypes.h>

/* A build or a machine without the device refuses here, before anything is read. */
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
    VALID(a->cols == b->rows, "spgemm: a has %" PRId64 " columns, b %" PRId64 " rows", a->cols,
          b->rows);
    return FMM_OK;
}

/* Both factors' values, where they are there, are of the result's dtype. */
static fmm_status check_factors(const fmm_csr *a, const fmm_dense *a_val, const fmm_csr *b,
                                const fmm_dense *b_val, fmm_dtype dtype)
{
    TRY(fmm_check_values("spgemm", a, a_val, 1));
    TRY(fmm_check_values("spgemm", b, b_val, 1));
    VALID((!a_val->data || a_val->dtype == dtype) && (!b_val->data || b_val->dtype == dtype),
          "spgemm: the values are not of one dtype");
    return FMM_OK;
}

/* What the numeric phase stands on. Contents of ptr and idx are not looked at: kernels check what
 * they read. The result may not lie where values are still read. */
static fmm_status check(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *a_val,
                        const fmm_spgemm *of, const fmm_dense *c_val)
{
    VALID(of && of->b && of->c && of->schedule && a_val,
          "spgemm: b, c, a_val and schedule must be given");
    TRY(fmm_spgemm_check(exec, a, of->b));
    TRY(fmm_check_matrix("spgemm", exec, of->c));
    TRY(fmm_check_dense("spgemm", "c_val", c_val));
    TRY(check_factors(a, a_val, of->b, &of->b_val, c_val->dtype));
    VALID(of->c->rows == a->rows && of->c->cols == of->b->cols,
          "spgemm: c is [%" PRId64 ", %" PRId64 "], should be [%" PRId64 ", %" PRId64 "]",
          of->c->rows, of->c->cols, a->rows, of->b->cols);
    VALID(c_val->rows == of->c->nnz && c_val->heads == 1 && c_val->feat == 1,
          "spgemm: c_val is not [%" PRId64 "]", of->c->nnz);
    TRY(fmm_check_output("spgemm", "c_val", c_val));
    TRY(fmm_check_apart("spgemm", c_val, "a_val", a_val));
    return fmm_check_apart("spgemm", c_val, "b_val", &of->b_val);
}

/* What both of the next functions do before they differ. How many threads take part is decided once
 * for a call, so that its workspace, which has room for each, and its run agree. */
#define NUMERIC_CALL(call)                                                                         \
    TRY(check(exec, a, a_val, operands, c_val));                                                   \
    fmm_spgemm own = *operands;                                                                    \
    const int64_t entries = own.c->nnz + a->nnz + own.b->nnz;                                      \
    own.workers = exec->device == FMM_CPU ? fmm_spgemm_workers(exec, entries) : 0;                 \
    const fmm_call call = {.a = a, .val = a_val, .y = c_val, .own = &own}

fmm_status fmm_spgemm_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *a_val,
                                const fmm_spgemm *operands, const fmm_dense *c_val, int algorithm,
                                size_t *bytes)
{
    *bytes = 0;
    NUMERIC_CALL(call);
    return fmm_workspace(FMM_SPGEMM, exec, algorithm, &call, bytes);
}

fmm_status fmm_spgemm_numeric(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *a_val,
                              const fmm_spgemm *operands, const fmm_dense *c_val, int algorithm)
{
    NUMERIC_CALL(call);
    return fmm_run(FMM_SPGEMM, exec, algorithm, &call, !c_val->rows);
}

/* Needs nothing of A's and B's values but, where they are given, that they fit. */
fmm_status fmm_spgemm_symbolic(const fmm_exec *exec, const fmm_csr *a, const fmm_csr *b,
                               const fmm_spgemm_pattern *out)
{
    TRY(fmm_spgemm_check(exec, a, b));
    VALID(out && (unsigned)out->want <= FMM_SPGEMM_UNSORTED && out->schedule &&
              (out->ptr || out->want == FMM_SPGEMM_CHUNKS) &&
              (out->columns || out->want <= FMM_SPGEMM_COUNTS),
          "spgemm: the pattern wants what it has no memory for");
    const fmm_spgemm_values *with = out->with;
    if (with) {
        TRY(check_factors(a, &with->a_val, b, &with->b_val, with->dtype));
        VALID(with->values, "spgemm: values must be given");
    }
    const fmm_spgemm_symbolic_call call = {a, b, out};
    return exec->device == FMM_CUDA ? fmm_spgemm_symbolic_cuda(exec, &call)
                                    : fmm_spgemm_symbolic_cpu(exec, &call);
}

/* The same for the gradient: rows of x belong to rows of a, rows of y to its columns. */
static fmm_status check_dots(const fmm_exec *exec, const fmm_csr *a, const fmm_csr *x,
                             const fmm_dense *x_val, const fmm_csr *y, const fmm_dense *y_val,
                             const fmm_dense *out)
{
    TRY(fmm_spgemm_device(exec, a));
    TRY(fmm_check_matrix("spgemm_dots", exec, x));
    TRY(fmm_check_matrix("spgemm_dots", exec, y));
    VALID(x->rows == a->rows && y->rows == a->cols && x->cols == y->cols,
          "spgemm_dots: a, x and y have shapes that do not fit");
    TRY(fmm_check_dense("spgemm_dots", "out", out));
    TRY(check_factors(x, x_val, y, y_val, out->dtype));
    VALID(out->rows == a->nnz && out->heads == 1 && out->feat == 1,
          "spgemm_dots: out is not [entries of a]");
    TRY(fmm_check_output("spgemm_dots", "out", out));
    TRY(fmm_check_apart("spgemm_dots", out, "x_val", x_val));
    return fmm_check_apart("spgemm_dots", out, "y_val", y_val);
}

fmm_status fmm_spgemm_dots(const fmm_exec *exec, const fmm_csr *a, const fmm_csr *x,
                           const fmm_dense *x_val, const fmm_csr *y, const fmm_dense *y_val,
                           const fmm_dense *out)
{
    TRY(check_dots(exec, a, x, x_val, y, y_val, out));
    const fmm_spgemm_dots_call call = {a, x, y, x_val, y_val, out};
    return exec->device == FMM_CUDA ? fmm_spgemm_dots_cuda(exec, &call)
                                    : fmm_spgemm_dots_cpu(exec, &call);
}
