/* fusedmm::_spmm and fusedmm::spmm. */
#include "../torch/frame.h"

/* (ptr, idx, eid, plan, [the same of the transpose,] val, x, int reduce, int algorithm, int
 * rows_are[, that of the transpose]) -> y */
static void spmm(StableIValue *stack, int inputs)
{
    frame f;
    fmm_csr a;
    fmm_dense val, x, y;
    tensor given, out = {0};
    const fmm_reduce reduce = (fmm_reduce)frame_int(stack[inputs]);
    const int algorithm = frame_int(stack[inputs + 1]);
    if (!frame_begin(&f, stack, inputs) || !frame_dense(&f, inputs - 1, "x", &x, &given) ||
        !frame_values(&f, inputs - 2, &val) || !frame_matrix(&f, x.rows, &a))
        goto done;
    a.rows_are = (fmm_rows)frame_int(stack[inputs + 2]);
    y = x;
    y.rows = a.rows;
    y.row_stride = x.heads * x.feat;
    y.head_stride = x.feat;
    const int64_t flat[2] = {a.rows, x.feat}, headed[3] = {a.rows, x.heads, x.feat};
    if (!frame_allocate(&f, given.dim, given.dim == 3 ? headed : flat, given.dtype, &out))
        goto done;
    y.data = out.data;
    f.status = fmm_spmm(&f.exec, &a, &val, &x, &y, reduce, algorithm);
done:
    frame_finish(&f, "spmm", stack, &out, 1);
}

/* The private operator carries one half of a CSR; the public one also its transpose, which its
 * gradient needs and its kernel skips. */
static void spmm_half(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    spmm(stack, 6);
}

static void spmm_whole(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    spmm(stack, 10);
}

#define REST "Tensor val, Tensor x, int reduce, int algorithm"
const fmm_torch_operator fmm_torch_spmm[] = {
    {"_spmm", "_spmm(" FMM_HALF REST FMM_HALF_ROWS ") -> Tensor", .kernel = spmm_half},
    {"spmm", "spmm(" FMM_WHOLE REST FMM_WHOLE_ROWS ") -> Tensor", .kernel = spmm_whole},
    /* clang-format off */
    FMM_NUMBER(FMM_SUM), FMM_NUMBER(FMM_MEAN), FMM_NUMBER(FMM_MAX), FMM_NUMBER(FMM_MIN),
    /* clang-format on */
    {0},
};
