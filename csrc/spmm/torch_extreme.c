/* fusedmm::_extreme: products over the entries that a max or min chose; see extreme.c. */
#include "../torch/frame.h"
#include "extreme.h"

/* An operand that may be absent. */
static bool take_optional(frame *f, int k, const char *name, fmm_dense *d)
{
    tensor t;
    *d = (fmm_dense){.data = NULL};
    if (!frame_take(f, k, name, &t)) return false;
    return !t.numel || frame_dense(f, k, name, d, &t);
}

/* (ptr, idx, eid, plan, val, weight, x, y, z, g, int form) -> out */
static void extreme(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { VAL = 4, WEIGHT, X, Y, Z, G, TENSORS };
    frame f;
    fmm_csr a;
    fmm_dense val, weight, x, y, z, g, out_view;
    tensor x_given, y_given, out = {0};
    const fmm_extreme_form form = (fmm_extreme_form)frame_int(stack[TENSORS]);
    const bool cols = form == FMM_EXTREME_COLS, edges = form == FMM_EXTREME_EDGES;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) || !frame_dense(&f, X, "x", &x, &x_given) ||
        !frame_dense(&f, Y, "y", &y, &y_given) || !take_optional(&f, Z, "z", &z) ||
        !take_optional(&f, G, "g", &g) || !frame_values(&f, VAL, &val) ||
        !frame_numbers(&f, WEIGHT, "weight", &weight) ||
        !frame_matrix(&f, cols ? y.rows : x.rows, &a))
        goto done;
    const int64_t edge_size[2] = {a.nnz, x.heads};
    const int64_t flat[2] = {a.rows, x.feat}, headed[3] = {a.rows, x.heads, x.feat};
    const bool heads = x_given.dim == 3, wide = form == FMM_EXTREME_COUNTS && x.dtype != FMM_F64;
    if (!frame_allocate(&f, x_given.dim - edges,
                        edges   ? edge_size
                        : heads ? headed
                                : flat,
                        wide ? fmm_torch.aoti_torch_dtype_float32() : x_given.dtype, &out))
        goto done;
    out_view = x;
    if (wide) out_view.dtype = FMM_F32;
    out_view.data = out.data;
    out_view.rows = edges ? a.nnz : a.rows;
    out_view.feat = edges ? 1 : x.feat;
    out_view.head_stride = out_view.feat;
    out_view.row_stride = x.heads * out_view.feat;
    f.status = fmm_extreme(&f.exec, &(fmm_extreme_call){.form = form,
                                                        .a = &a,
                                                        .val = &val,
                                                        .weight = &weight,
                                                        .x = &x,
                                                        .y = &y,
                                                        .z = &z,
                                                        .g = &g,
                                                        .out = &out_view});
done:
    frame_finish(&f, "extreme", stack, &out, 1);
}

const fmm_torch_operator fmm_torch_extreme[] = {
    {"_extreme",
     "_extreme(" FMM_HALF
     "Tensor val, Tensor weight, Tensor x, Tensor y, Tensor z, Tensor g, int form) -> Tensor",
     .kernel = extreme},
    /* clang-format off */
    FMM_NUMBER(FMM_EXTREME_ROWS), FMM_NUMBER(FMM_EXTREME_COLS), FMM_NUMBER(FMM_EXTREME_EDGES),
    FMM_NUMBER(FMM_EXTREME_COUNTS),
    /* clang-format on */
    {0},
};
