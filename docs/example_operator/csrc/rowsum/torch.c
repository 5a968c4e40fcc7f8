/* fusedmm::_rowsum. */
#include "../torch/frame.h"

/* (ptr, idx, eid, plan, val, int algorithm) -> y, of val's dimensions */
static void rowsum(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { VAL = 4, TENSORS };
    frame f;
    fmm_csr a;
    fmm_dense val, y;
    tensor given, out = {0};
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) || !frame_dense(&f, VAL, "val", &val, &given) ||
        !frame_matrix(&f, INT32_MAX, &a))
        goto done;
    const int64_t flat[2] = {a.rows, val.feat}, headed[3] = {a.rows, val.heads, val.feat};
    if (!frame_allocate(&f, given.dim, given.dim == 3 ? headed : flat, given.dtype, &out))
        goto done;
    y = val;
    y.data = out.data;
    y.rows = a.rows;
    y.row_stride = val.heads * val.feat;
    y.head_stride = val.feat;
    f.status = fmm_rowsum(&f.exec, &a, &val, &y, frame_int(stack[TENSORS]));
done:
    frame_finish(&f, "rowsum", stack, &out, 1);
}

const fmm_torch_operator fmm_torch_rowsum[] = {
    {"_rowsum", "_rowsum(" FMM_HALF "Tensor val, int algorithm) -> Tensor", .kernel = rowsum},
    {0},
};
