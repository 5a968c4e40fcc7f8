/* fusedmm::spmv for CSR, fusedmm::_spmv for CSR and COO, fusedmm::_spmv_padded for the rest.
 *
 * The C functions take pointers on trust, so the lengths of tensors are compared here. Each of the
 * operators takes what its formats have and no more, since every argument costs the host time. */
#include "../torch/frame.h"

#include <inttypes.h>

/* Refuses by name a tensor of another length. */
static bool has_length(frame *f, const char *name, const tensor *t, int64_t length)
{
    if (t->numel == length) return true;
    return frame_fail(f, "spmv: %s has %" PRId64 " elements, %" PRId64 " are needed", name,
                      t->numel, length);
}

/* Inputs x and, behind it, y_in, which is absent without elements. */
static bool take_vectors(frame *f, int k, fmm_dense *x, fmm_dense *y_in)
{
    tensor given;
    if (!frame_take_vector(f, k, "x", x, &given) || !frame_numbers(f, k + 1, "y_in", y_in))
        return false;
    if (!y_in->data) y_in->dtype = x->dtype;
    return true;
}

/* Allocates y and computes it. number: alpha, beta, algorithm. */
static bool compute(frame *f, const fmm_spmv_matrix *a, const fmm_dense *x, const fmm_dense *y_in,
                    const StableIValue *number, tensor *out)
{
    fmm_dense y;
    return frame_result(f, 1, x->dtype, a->csr.rows, 1, 1, out, &y) &&
           frame_try(f, fmm_spmv(&f->exec, a, x, y_in, &y, frame_float(number[0]),
                                 frame_float(number[1]), frame_int(number[2])));
}

/* CSR or COO, with the values at input `at_val`, and x and y_in from `at_x` on. number: alpha,
 * beta, algorithm, rows_are. */
static bool multiply(frame *f, fmm_format format, const tensor *row, int at_val, int at_x,
                     const StableIValue *number, int64_t whole_nnz, tensor *out)
{
    fmm_spmv_matrix a = {.format = format, .row = row->numel ? row->data : NULL};
    fmm_dense val, x, y_in;
    if (!take_vectors(f, at_x, &x, &y_in) || !frame_matrix(f, x.rows, &a.csr) ||
        !frame_values(f, at_val, &val))
        return false;
    if (row->numel && !has_length(f, "row", row, a.csr.nnz)) return false;
    a.csr.rows_are = (fmm_rows)frame_int(number[3]);
    a.csr.whole.nnz = whole_nnz;
    a.val = &val;
    return compute(f, &a, &x, &y_in, number, out);
}

/* (ptr, idx, eid, plan, val, row, x, y_in, int format, float alpha, float beta, int algorithm, int
 * rows_are, int whole_nnz) -> y; row is COO's, absent for CSR. */
FMM_KERNEL(spmv_half, 8, 1)
{
    enum { VAL = 4, ROW, X };
    const int format = frame_int(number[0]);
    tensor row;
    if (format != FMM_FORMAT_CSR && format != FMM_FORMAT_COO)
        return frame_fail(f, "spmv: format number %d is neither CSR nor COO", format);
    return frame_take_list(f, ROW, "row", 4, &row) &&
           multiply(f, (fmm_format)format, &row, VAL, X, number + 1, (int64_t)number[5], out);
}

/* (ptr, idx, eid, plan, the same of the transpose, val, x, y_in, float alpha, float beta, int
 * algorithm, int rows_are, int rows_are_t) -> y; the transpose is for the gradient, not for this
 * kernel. */
FMM_KERNEL(spmv_whole, 11, 1)
{
    enum { VAL = 8, X };
    const tensor no_row = {0};
    return multiply(f, FMM_FORMAT_CSR, &no_row, VAL, X, number, 0, out);
}

/* Whether the parts of a padded matrix have the lengths that belong together. That of the values
 * follows from the sizes, which fmm_spmv checks. */
static bool fits(frame *f, const fmm_spmv_matrix *a, const tensor *offsets, const tensor *idx,
                 const tensor *order)
{
    if (a->format == FMM_FORMAT_DIA) return has_length(f, "offsets", offsets, a->width);
    if (!has_length(f, "padded_idx", idx, a->stored)) return false;
    if (a->format != FMM_FORMAT_SELL || a->width <= 0) return true;
    const int64_t rows = a->csr.rows, slices = rows / a->width + (rows % a->width != 0);
    return has_length(f, "order", order, rows) && has_length(f, "offsets", offsets, slices + 1);
}

/* (offsets, padded_idx, padded_val, order, row, idx, val, x, y_in, int format, int rows, int width,
 * float alpha, float beta, int algorithm) -> y; row, idx and val are those of HYB. */
FMM_KERNEL(spmv_padded, 9, 1)
{
    enum { OFFSETS, PADDED_IDX, PADDED_VAL, ORDER, ROW, IDX, VAL, X };
    fmm_dense val, padded_val, x, y_in;
    tensor offsets, padded_idx, stored, order, row, idx;
    if (!take_vectors(f, X, &x, &y_in) || !frame_take_list(f, OFFSETS, "offsets", 8, &offsets) ||
        !frame_take_list(f, PADDED_IDX, "padded_idx", 4, &padded_idx) ||
        !frame_take_vector(f, PADDED_VAL, "padded_val", &padded_val, &stored) ||
        !frame_take_list(f, ORDER, "order", 4, &order) ||
        !frame_take_list(f, ROW, "row", 4, &row) || !frame_take_list(f, IDX, "idx", 4, &idx) ||
        !frame_values(f, VAL, &val))
        return false;
    const fmm_spmv_matrix a = {
        .format = (fmm_format)frame_int(number[0]),
        .csr = {.rows = (int64_t)number[1], .cols = x.rows, .nnz = idx.numel, .idx = idx.data},
        .val = &val,
        .row = row.numel ? row.data : NULL,
        .width = (int64_t)number[2],
        .stored = stored.numel,
        .offsets = offsets.data,
        .padded_idx = padded_idx.data,
        .padded_val = &padded_val,
        .order = order.data};
    /* Their structure is another operator's: here ptr and eid are absent. */
    if (a.format <= FMM_FORMAT_COO)
        return frame_fail(f, "spmv: format number %d is not padded", (int)a.format);
    return has_length(f, "row", &row, idx.numel) && fits(f, &a, &offsets, &padded_idx, &order) &&
           compute(f, &a, &x, &y_in, number + 3, out);
}

#define VECTORS "Tensor x, Tensor y_in, "
#define REST "float alpha=1.0, float beta=0.0, int algorithm=0"
const fmm_torch_operator fmm_torch_spmv[] = {
    FMM_OPERATOR(_spmv, spmv_half,
                 "(" FMM_HALF "Tensor val, Tensor row, " VECTORS "int format=0, " REST FMM_HALF_ROWS
                 ") -> Tensor"),
    FMM_OPERATOR(spmv, spmv_whole,
                 "(" FMM_WHOLE "Tensor val, " VECTORS REST FMM_WHOLE_ROWS ") -> Tensor"),
    FMM_OPERATOR(_spmv_padded, spmv_padded,
                 "(Tensor offsets, Tensor padded_idx, Tensor padded_val, Tensor order, Tensor row, "
                 "Tensor idx, Tensor val, " VECTORS "int format, int rows, int width, " REST
                 ") -> Tensor"),
    /* clang-format off */
    FMM_NUMBER(FMM_FORMAT_CSR), FMM_NUMBER(FMM_FORMAT_COO), FMM_NUMBER(FMM_FORMAT_DIA),
    FMM_NUMBER(FMM_FORMAT_ELL), FMM_NUMBER(FMM_FORMAT_HYB), FMM_NUMBER(FMM_FORMAT_SELL),
    /* clang-format on */
    {0},
};
