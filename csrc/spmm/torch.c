/* fusedmm::_spmm and fusedmm::spmm. */
#include "../torch/frame.h"

/* (ptr, idx, eid, plan, [the same of the transpose,] val, x, int reduce, int algorithm, int
 * rows_are, and whole_nnz or rows_are of the transpose) -> y, which is new or given as `into` */
static bool spmm(frame *f, int inputs, const StableIValue *number, int64_t whole_nnz,
                 const fmm_dense *into, tensor *out)
{
    fmm_csr a;
    fmm_dense val, x, y;
    tensor given;
    if (!frame_dense(f, inputs - 1, "x", &x, &given) || !frame_values(f, inputs - 2, &val) ||
        !frame_matrix(f, x.rows, &a) ||
        (!into && !frame_result(f, given.dim, x.dtype, a.rows, x.heads, x.feat, out, &y)))
        return false;
    a.rows_are = (fmm_rows)frame_int(number[2]);
    a.whole.nnz = whole_nnz;
    return frame_try(f, fmm_spmm(&f->exec, &a, &val, &x, into ? into : &y,
                                 (fmm_reduce)frame_int(number[0]), frame_int(number[1])));
}

/* The private operator carries one half of a CSR; the public one also its transpose, which its
 * gradient needs and its kernel skips. */
FMM_KERNEL(spmm_half, 6, 1) { return spmm(f, 6, number, (int64_t)number[3], NULL, out); }
FMM_KERNEL(spmm_whole, 10, 1) { return spmm(f, 10, number, 0, NULL, out); }

/* (ptr, idx, eid, plan, val, x, y, int reduce, int algorithm, int rows_are, int whole_nnz): some
 * columns of a product, written to y, which may be those columns of a larger tensor. */
FMM_KERNEL(spmm_into, 7, 0)
{
    fmm_dense y;
    tensor given;
    if (!frame_describe(f, 6, &given) || !frame_dense(f, 6, "y", &y, NULL)) return false;
    if (given.data != y.data)
        return frame_fail(f, "y must be written where it lies: aligned, with a last stride of 1");
    return spmm(f, 6, number, (int64_t)number[3], &y, out);
}

#define REST "Tensor val, Tensor x, int reduce=0, int algorithm=0"
const fmm_torch_operator fmm_torch_spmm[] = {
    FMM_OPERATOR(_spmm, spmm_half, "(" FMM_HALF REST FMM_HALF_ROWS ") -> Tensor"),
    FMM_OPERATOR(_spmm_into, spmm_into,
                 "(" FMM_HALF "Tensor val, Tensor x, Tensor(a!) y, int reduce, int algorithm, "
                 "int rows_are, int whole_nnz=0) -> ()"),
    FMM_OPERATOR(spmm, spmm_whole, "(" FMM_WHOLE REST FMM_WHOLE_ROWS ") -> Tensor"),
    /* clang-format off */
    FMM_NUMBER(FMM_SUM), FMM_NUMBER(FMM_MEAN), FMM_NUMBER(FMM_MAX), FMM_NUMBER(FMM_MIN),
    /* clang-format on */
    {0},
};
