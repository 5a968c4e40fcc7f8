/* fusedmm::_rowsum. */
#include "../torch/frame.h"

/* (ptr, idx, eid, plan, val, int algorithm) -> y, of val's dimensions */
FMM_KERNEL(rowsum, 5, 1)
{
    fmm_csr a;
    fmm_dense val, y;
    tensor given;
    return frame_dense(f, 4, "val", &val, &given) && frame_matrix(f, INT32_MAX, &a) &&
           frame_result(f, given.dim, val.dtype, a.rows, val.heads, val.feat, out, &y) &&
           frame_try(f, fmm_rowsum(&f->exec, &a, &val, &y, frame_int(number[0])));
}

const fmm_torch_operator fmm_torch_rowsum[] = {
    FMM_OPERATOR(_rowsum, rowsum, "(" FMM_HALF "Tensor val, int algorithm) -> Tensor"),
    {0},
};
