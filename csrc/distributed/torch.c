/* fusedmm::_pick_into: the rows of an operand that travel to other ranks; see pick.c. */
#include "../torch/frame.h"
#include "pick.h"

/* (x, pick, y): bytes of [rows, bytes], whose rows may lie apart, numbers of rows, int32 or int64,
 * and where the rows of these numbers are written, [picked, bytes], which may lie apart too. */
FMM_KERNEL(pick_into, 3, 0)
{
    tensor x, from, y;
    if (!frame_take(f, 0, "x", &x) || !frame_describe(f, 1, &from)) return false;
    const bool wide = from.dtype != fmm_torch.aoti_torch_dtype_int32();
    if (!frame_take_list(f, 1, "pick", wide ? 8 : 4, &from)) return false;
    if (x.dim != 2 || x.dtype != fmm_torch.aoti_torch_dtype_uint8())
        return frame_fail(f, "x must be rows of bytes: uint8 [rows, bytes]");
    if ((x.stride[1] != 1 || x.stride[0] < x.size[1]) && !frame_copy(f, "x", &x)) return false;
    if (!frame_take(f, 2, "y", &y)) return false;
    if (y.dim != 2 || y.dtype != x.dtype || y.size[0] != from.numel || y.size[1] != x.size[1] ||
        (y.size[1] > 1 && y.stride[1] != 1) || (y.numel > y.size[1] && y.stride[0] < y.size[1]))
        return frame_fail(f, "y must be rows of as many bytes as x's that do not overlap: uint8");
    const fmm_pick_call call = {.x = x.data,
                                .rows = x.size[0],
                                .bytes = x.size[1],
                                .stride = x.stride[0],
                                .from = from.data,
                                .wide = wide,
                                .count = from.numel,
                                .y = y.data,
                                .apart = y.stride[0]};
    return frame_try(f, fmm_pick(&f->exec, &call));
}

const fmm_torch_operator fmm_torch_pick[] = {
    FMM_OPERATOR(_pick_into, pick_into, "(Tensor x, Tensor pick, Tensor(a!) y) -> ()"),
    {0},
};
