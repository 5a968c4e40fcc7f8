/* fusedmm::_row_softmax and _row_softmax_back: softmax over the entries of each row and its
 * gradient, on the CPU. x, w and g are [nnz, n] in the caller's edge order. */
#include "../torch/frame.h"
#include "row_softmax.h"

enum { X = 4, W };

/* Columns are checked for their sign alone: nothing is read of what they name. */
static bool compute(frame *f, fmm_row_softmax_call *c, tensor *out)
{
    const char *name = c->back ? "g" : "x";
    if (!frame_matrix(f, INT32_MAX, &c->a) || !frame_dense(f, X, name, &c->x, NULL)) return false;
    if (!frame_result(f, 2, c->x.dtype, c->x.rows, c->x.heads, c->x.feat, out, &c->out))
        return false;
    return frame_try(f, fmm_row_softmax(&f->exec, c));
}

FMM_KERNEL(row_softmax, 5, 1)
{
    fmm_row_softmax_call c = {0};
    return compute(f, &c, out);
}

FMM_KERNEL(row_softmax_back, 6, 1)
{
    fmm_row_softmax_call c = {.back = true};
    return frame_dense(f, W, "w", &c.w, NULL) && compute(f, &c, out);
}

const fmm_torch_operator fmm_torch_row_softmax[] = {
    FMM_OPERATOR(_row_softmax, row_softmax, "(" FMM_HALF "Tensor x) -> Tensor"),
    FMM_OPERATOR(_row_softmax_back, row_softmax_back, "(" FMM_HALF "Tensor g, Tensor w) -> Tensor"),
    {0},
};
