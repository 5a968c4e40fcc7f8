/* fusedmm::_extreme: products over the entries that a max or min chose; see extreme.c. */
#include "../torch/frame.h"
#include "extreme.h"

/* An operand that may be absent. */
static bool take_optional(frame *f, int k, const char *name, fmm_dense *d)
{
    tensor t;
    *d = (fmm_dense){.data = NULL};
    if (!frame_take(f, k, name, &t)) return false;
    return !t.numel || frame_dense(f, k, name, d, NULL);
}

enum { VAL = 4, WEIGHT, X, Y, Z, G, TENSORS };

/* (ptr, idx, eid, plan, val, weight, x, y, z, g, int form) -> out */
FMM_KERNEL(extreme, TENSORS, 1)
{
    fmm_csr a;
    fmm_dense val, weight, x, y, z, g, out_view;
    tensor given;
    const fmm_extreme_form form = (fmm_extreme_form)frame_int(number[0]);
    const bool cols = form == FMM_EXTREME_COLS, edges = form == FMM_EXTREME_EDGES;
    if (!frame_dense(f, X, "x", &x, &given) || !frame_dense(f, Y, "y", &y, NULL) ||
        !take_optional(f, Z, "z", &z) || !take_optional(f, G, "g", &g) ||
        !frame_values(f, VAL, &val) || !frame_numbers(f, WEIGHT, "weight", &weight) ||
        !frame_matrix(f, cols ? y.rows : x.rows, &a) ||
        !frame_result(f, given.dim - edges,
                      form == FMM_EXTREME_COUNTS ? frame_sums(x.dtype) : x.dtype,
                      edges ? a.nnz : a.rows, x.heads, edges ? 1 : x.feat, out, &out_view))
        return false;
    const fmm_extreme_call call = {.form = form,
                                   .a = &a,
                                   .val = &val,
                                   .weight = &weight,
                                   .x = &x,
                                   .y = &y,
                                   .z = &z,
                                   .g = &g,
                                   .out = &out_view};
    return frame_try(f, fmm_extreme(&f->exec, &call));
}

const fmm_torch_operator fmm_torch_extreme[] = {
    FMM_OPERATOR(
        _extreme, extreme,
        "(" FMM_HALF
        "Tensor val, Tensor weight, Tensor x, Tensor y, Tensor z, Tensor g, int form) -> Tensor"),
    /* clang-format off */
    FMM_NUMBER(FMM_EXTREME_ROWS), FMM_NUMBER(FMM_EXTREME_COLS), FMM_NUMBER(FMM_EXTREME_EDGES),
    FMM_NUMBER(FMM_EXTREME_COUNTS),
    /* clang-format on */
    {0},
};
