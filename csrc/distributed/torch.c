/* fusedmm::_pick: the rows of an operand that travel to other ranks; see pick.c. */
#include "../torch/frame.h"
#include "pick.h"

/* (x, pick) -> y: bytes of [rows, bytes], whose rows may lie apart, and numbers of rows, int32 or
 * int64. */
FMM_KERNEL(pick, 2, 1)
{
    tensor x, from;
    if (!frame_take(f, 0, "x", &x) || !frame_describe(f, 1, &from)) return false;
    const bool wide = from.dtype != fmm_torch.aoti_torch_dtype_int32();
    if (!frame_take_list(f, 1, "pick", wide, &from)) return false;
    if (x.dim != 2 || x.dtype != fmm_torch.aoti_torch_dtype_uint8())
        return frame_fail(f, "x must be rows of bytes: uint8 [rows, bytes]");
    if ((x.stride[1] != 1 || x.stride[0] < x.size[1]) && !frame_copy(f, "x", &x)) return false;
    const int64_t size[2] = {from.numel, x.size[1]};
    if (!frame_allocate(f, 2, size, x.dtype, out)) return false;
    const fmm_pick_call call = {.x = x.data,
                                .rows = x.size[0],
                                .bytes = x.size[1],
                                .stride = x.stride[0],
                                .from = from.data,
                                .wide = wide,
                                .count = from.numel,
                                .y = out->data};
    return frame_try(f, fmm_pick(&f->exec, &call));
}

const fmm_torch_operator fmm_torch_pick[] = {
    {"_pick", "_pick(Tensor x, Tensor pick) -> Tensor", .kernel = pick},
    {0},
};
