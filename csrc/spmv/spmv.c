/* SpMV: y[i] = alpha * sum over row i's entries (i, j) of v * x[j] + beta * y_in[i].
 *
 *   A [rows, cols] in one of the formats of fusedmm_spmv.h; x [cols]; y_in, y [rows].
 * Precision: products and sums in f32 (f64 for f64), at most 512 terms in a row before partial sums
 * meet; alpha and beta are applied to the sum, and the result is rounded once to y's dtype.
 * An empty row gives beta * y_in. beta = 0 means that y_in is not read, so its NaN goes nowhere.
 * Gradient: gx = alpha * A^T gy, an SpMV on the transpose; gval = alpha * gy[i] * x[j], an SDDMM;
 * gy_in = beta * gy. They exist for CSR and COO.
 * Cost: 2 nnz flops. Every entry is read once, with its column, and one element of x is gathered:
 * bytes decide the time.
 *
 * Here: the contract. The arithmetic is in cpu*.inc and cuda*.cu*. */
#include "../core/checks.h"

#include <inttypes.h>

/* Slices longer than this would not fit the sums that a CPU kernel keeps of one. */
enum { SLICE_MOST = 512 };

static const fmm_dense ones = {.heads = 1, .feat = 1};

/* The part of a matrix that is CSR or COO; the other formats only have its sizes. */
static fmm_status check_entries(const fmm_exec *exec, const fmm_spmv_matrix *a)
{
    static const int64_t nowhere[1] = {0};
    fmm_csr csr = a->csr;
    if (a->format != FMM_FORMAT_CSR) csr.ptr = nowhere; /* nobody reads it */
    TRY(fmm_check_matrix("spmv", exec, &csr));
    VALID((a->format == FMM_FORMAT_COO || a->format == FMM_FORMAT_HYB) || !a->row,
          "spmv: only COO and HYB have row");
    VALID(a->row || !csr.nnz || a->format == FMM_FORMAT_CSR,
          "spmv: %" PRId64 " entries without row", csr.nnz);
    return fmm_check_values("spmv", &csr, a->val, 1);
}

/* How many elements the padding leaves, which must be those that `stored` says. */
static fmm_status check_padded(const fmm_spmv_matrix *a)
{
    const bool slices = a->format == FMM_FORMAT_SELL, dia = a->format == FMM_FORMAT_DIA;
    int64_t size;
    VALID(a->width >= 0 && a->stored >= 0, "spmv: width %" PRId64 " of %" PRId64 " elements",
          a->width, a->stored);
    if (slices)
        VALID(a->width >= 1 && a->width <= SLICE_MOST && (!a->csr.rows || (a->offsets && a->order)),
              "spmv: SELL needs offsets, order and slices of 1 to %d rows, not %" PRId64,
              (int)SLICE_MOST, a->width);
    else
        VALID(!__builtin_mul_overflow(a->width, a->csr.rows, &size) && size == a->stored,
              "spmv: %" PRId64 " elements for %" PRId64 " times %" PRId64 " rows", a->stored,
              a->width, a->csr.rows);
    VALID(!dia || a->offsets || !a->width, "spmv: DIA needs offsets");
    VALID(dia || a->padded_idx || !a->stored, "spmv: no padded_idx");
    const fmm_dense *v = a->padded_val;
    TRY(fmm_check_dense("spmv", "padded_val", v));
    TRY(fmm_check_shape("spmv", "padded_val", v, v->dtype, a->stored, 1, 1));
    VALID(a->stored <= 1 || v->row_stride == 1, "spmv: padded_val must be contiguous");
    return FMM_OK;
}

/* All that can be seen without reading the matrix, whose memory may be the device's. Its content is
 * checked by the kernels, where it is used. */
static fmm_status check(const fmm_exec *exec, const fmm_spmv_matrix *a, const fmm_dense *x,
                        const fmm_dense *y_in, const fmm_dense *y, double beta)
{
    VALID(a, "spmv: the matrix must be given");
    VALID((unsigned)a->format < FMM_FORMATS, "spmv: no format number %d", (int)a->format);
    TRY(check_entries(exec, a));
    if (a->format > FMM_FORMAT_COO) TRY(check_padded(a));
    TRY(fmm_check_dense("spmv", "x", x));
    TRY(fmm_check_shape("spmv", "x", x, x->dtype, a->csr.cols, 1, 1));
    TRY(fmm_check_shape("spmv", "y", y, x->dtype, a->csr.rows, 1, 1));
    TRY(fmm_check_output("spmv", "y", y));
    /* Kernels write y while others still read: a shared element would change under them. */
    TRY(fmm_check_apart("spmv", y, "x", x));
    TRY(fmm_check_apart("spmv", y, "val", a->val));
    TRY(fmm_check_apart("spmv", y, "padded_val", a->padded_val));
    if (beta == 0) return FMM_OK;
    VALID(y_in, "spmv: beta is %g, so y_in must be given", beta);
    TRY(fmm_check_shape("spmv", "y_in", y_in, x->dtype, a->csr.rows, 1, 1));
    return fmm_check_apart("spmv", y, "y_in", y_in);
}

/* What algorithms get. `own` has what fmm_call has no place for. */
static fmm_call call_of(const fmm_exec *exec, const fmm_spmv_operands *own, const fmm_dense *x,
                        const fmm_dense *y)
{
    const fmm_spmv_matrix *a = own->matrix;
    return (fmm_call){.index = exec->index,
                      .a = &a->csr,
                      .val = a->val ? a->val : &ones,
                      .x = x,
                      .y = y,
                      .own = own};
}

fmm_status fmm_spmv_workspace(const fmm_exec *exec, const fmm_spmv_matrix *a, const fmm_dense *x,
                              const fmm_dense *y_in, const fmm_dense *y, double alpha, double beta,
                              int algorithm, size_t *bytes)
{
    *bytes = 0;
    TRY(check(exec, a, x, y_in, y, beta));
    const fmm_spmv_operands own = {a, beta != 0 ? y_in : NULL, alpha, beta};
    const fmm_call call = call_of(exec, &own, x, y);
    return fmm_workspace(FMM_SPMV, exec, algorithm, &call, bytes);
}

fmm_status fmm_spmv(const fmm_exec *exec, const fmm_spmv_matrix *a, const fmm_dense *x,
                    const fmm_dense *y_in, const fmm_dense *y, double alpha, double beta,
                    int algorithm)
{
    TRY(check(exec, a, x, y_in, y, beta));
    const fmm_spmv_operands own = {a, beta != 0 ? y_in : NULL, alpha, beta};
    const fmm_call call = call_of(exec, &own, x, y);
    return fmm_run(FMM_SPMV, exec, algorithm, &call, !y->rows);
}
