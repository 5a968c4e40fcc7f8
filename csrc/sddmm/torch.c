/* fusedmm::_sddmm and fusedmm::sddmm. */
#include "../torch/frame.h"

/* (ptr, idx, eid, plan, [the same of the transpose,] val, a, b, int algorithm, int rows_are, and
 * whole_rows and whole_nnz, as attention has them, or rows_are of the transpose) -> e */
static bool sddmm(frame *f, int inputs, const StableIValue *number, fmm_whole whole, tensor *out)
{
    fmm_csr s;
    fmm_dense val, a, b, e;
    tensor given;
    if (!frame_dense(f, inputs - 1, "b", &b, NULL) ||
        !frame_dense(f, inputs - 2, "a", &a, &given) || !frame_values(f, inputs - 3, &val) ||
        !frame_matrix(f, b.rows, &s) ||
        !frame_result(f, given.dim - 1, a.dtype, s.nnz, a.heads, 1, out, &e))
        return false;
    s.rows_are = (fmm_rows)frame_int(number[1]);
    s.whole = whole;
    return frame_try(f, fmm_sddmm(&f->exec, &s, &val, &a, &b, &e, frame_int(number[0])));
}

/* The private operator carries one half of a CSR; the public one also its transpose, which its
 * gradient needs and its kernel skips. */
FMM_KERNEL(sddmm_half, 7, 1)
{
    const fmm_whole whole = {.rows = (int64_t)number[2], .nnz = (int64_t)number[3]};
    return sddmm(f, 7, number, whole, out);
}
FMM_KERNEL(sddmm_whole, 11, 1) { return sddmm(f, 11, number, (fmm_whole){0}, out); }

#define REST "Tensor val, Tensor a, Tensor b, int algorithm=0"
const fmm_torch_operator fmm_torch_sddmm[] = {
    FMM_OPERATOR(_sddmm, sddmm_half,
                 "(" FMM_HALF REST
                 ", int rows_are=0, int whole_rows=0, int whole_nnz=0) -> Tensor"),
    FMM_OPERATOR(sddmm, sddmm_whole, "(" FMM_WHOLE REST FMM_WHOLE_ROWS ") -> Tensor"),
    {0},
};
