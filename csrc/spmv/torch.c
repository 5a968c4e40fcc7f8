/* fusedmm::_spmv for CSR and COO, and fusedmm::_spmv_padded for DIA, ELL, HYB and SELL.
 *
 * The C functions take pointers on trust, so the lengths of tensors are compared here. */
#include "../torch/frame.h"

#include <inttypes.h>

typedef struct operands {
    fmm_spmv_matrix a;
    fmm_dense val, padded_val, x, y_in;
    tensor x_given;
} operands;

static bool has_length(frame *f, const char *name, const tensor *t, int64_t length)
{
    if (t->numel == length) return true;
    return frame_fail(f, "spmv: %s has %" PRId64 " elements, %" PRId64 " are needed", name,
                      t->numel, length);
}

/* Inputs x and, behind it, y, which is absent without elements. */
static bool take_vectors(frame *f, int x, operands *o)
{
    if (!frame_vector(f, x, "x", &o->x, &o->x_given) || !frame_numbers(f, x + 1, "y", &o->y_in))
        return false;
    if (!o->y_in.data) o->y_in.dtype = o->x.dtype;
    return true;
}

static void compute(frame *f, const operands *o, const StableIValue *numbers, tensor *out)
{
    if (!frame_allocate(f, 1, &o->a.csr.rows, o->x_given.dtype, out)) return;
    const fmm_dense y = {.data = out->data,
                         .dtype = o->x.dtype,
                         .rows = o->a.csr.rows,
                         .heads = 1,
                         .feat = 1,
                         .row_stride = 1,
                         .head_stride = 1};
    f->status = fmm_spmv(&f->exec, &o->a, &o->x, &o->y_in, &y, frame_float(numbers[0]),
                         frame_float(numbers[1]), frame_int(numbers[2]));
}

/* (ptr, idx, eid, plan, val, row, x, y, int format, float alpha, float beta, int algorithm) -> y;
 * row is COO's, absent for CSR. */
static void spmv(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { VAL = 4, ROW, X, Y, TENSORS, FORMAT = TENSORS, NUMBERS, ROWS_ARE = NUMBERS + 3 };
    frame f;
    operands o = {.a = {.val = &o.val}};
    tensor row, out = {0};
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) || !take_vectors(&f, X, &o) ||
        !frame_matrix(&f, o.x.rows, &o.a.csr) || !frame_values(&f, VAL, &o.val) ||
        !frame_list(&f, ROW, "row", false, &row))
        goto done;
    o.a.csr.rows_are = (fmm_rows)frame_int(stack[ROWS_ARE]);
    o.a.format = (fmm_format)frame_int(stack[FORMAT]);
    o.a.row = row.numel ? row.data : NULL;
    if (o.a.format != FMM_FORMAT_CSR && o.a.format != FMM_FORMAT_COO) {
        frame_fail(&f, "spmv: format number %d is neither CSR nor COO", (int)o.a.format);
        goto done;
    }
    if (row.numel && !has_length(&f, "row", &row, o.a.csr.nnz)) goto done;
    compute(&f, &o, stack + NUMBERS, &out);
done:
    frame_finish(&f, "spmv", stack, &out, 1);
}

/* (offsets, padded_idx, padded_val, order, row, idx, val, x, y, int format, int rows, int width,
 * float alpha, float beta, int algorithm) -> y; row, idx and val are those of HYB. */
static void spmv_padded(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { OFFSETS, PADDED_IDX, PADDED_VAL, ORDER, ROW, IDX, VAL, X, Y, TENSORS };
    enum { FORMAT = TENSORS, ROWS, WIDTH, NUMBERS };
    frame f;
    operands o = {.a = {.val = &o.val, .padded_val = &o.padded_val}};
    tensor offsets, padded_idx, padded_val, order, row, idx, out = {0};
    fmm_spmv_matrix *a = &o.a;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) || !take_vectors(&f, X, &o) ||
        !frame_list(&f, OFFSETS, "offsets", true, &offsets) ||
        !frame_list(&f, PADDED_IDX, "padded_idx", false, &padded_idx) ||
        !frame_vector(&f, PADDED_VAL, "padded_val", &o.padded_val, &padded_val) ||
        !frame_list(&f, ORDER, "order", false, &order) ||
        !frame_list(&f, ROW, "row", false, &row) || !frame_list(&f, IDX, "idx", false, &idx) ||
        !frame_values(&f, VAL, &o.val))
        goto done;
    a->format = (fmm_format)frame_int(stack[FORMAT]);
    a->csr = (fmm_csr){
        .rows = (int64_t)stack[ROWS], .cols = o.x.rows, .nnz = idx.numel, .idx = idx.data};
    a->row = row.numel ? row.data : NULL;
    a->width = (int64_t)stack[WIDTH];
    a->stored = padded_val.numel;
    a->offsets = offsets.data;
    a->padded_idx = padded_idx.data;
    a->order = order.data;
    const bool dia = a->format == FMM_FORMAT_DIA, sell = a->format == FMM_FORMAT_SELL;
    if (a->format <= FMM_FORMAT_COO) {
        frame_fail(&f, "spmv: format number %d is not padded", (int)a->format);
        goto done;
    }
    if (!has_length(&f, "row", &row, idx.numel) ||
        (!dia && !has_length(&f, "padded_idx", &padded_idx, a->stored)) ||
        (dia && !has_length(&f, "offsets", &offsets, a->width)) ||
        (sell && !has_length(&f, "order", &order, a->csr.rows)) ||
        (sell && a->width > 0 &&
         !has_length(&f, "offsets", &offsets,
                     a->csr.rows / a->width + !!(a->csr.rows % a->width) + 1)))
        goto done;
    compute(&f, &o, stack + NUMBERS, &out);
done:
    frame_finish(&f, "spmv", stack, &out, 1);
}

#define VECTORS "Tensor x, Tensor y, "
#define REST "float alpha, float beta, int algorithm"
const fmm_torch_operator fmm_torch_spmv[] = {
    {"_spmv",
     "_spmv(" FMM_HALF "Tensor val, Tensor row, " VECTORS "int format, " REST FMM_HALF_ROWS
     ") -> Tensor",
     .kernel = spmv},
    {"_spmv_padded",
     "_spmv_padded(Tensor offsets, Tensor padded_idx, Tensor padded_val, Tensor order, Tensor row, "
     "Tensor idx, Tensor val, " VECTORS "int format, int rows, int width, " REST ") -> Tensor",
     .kernel = spmv_padded},
    /* clang-format off */
    FMM_NUMBER(FMM_FORMAT_CSR), FMM_NUMBER(FMM_FORMAT_COO), FMM_NUMBER(FMM_FORMAT_DIA),
    FMM_NUMBER(FMM_FORMAT_ELL), FMM_NUMBER(FMM_FORMAT_HYB), FMM_NUMBER(FMM_FORMAT_SELL),
    /* clang-format on */
    {0},
};
