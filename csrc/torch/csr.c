/* fusedmm::_check, _plan and _group: what making a CSR asks of the library. */
#include "frame.h"

/* (ptr, idx, int cols) -> the report word of fmm_csr_check, int64 [1] */
static void check(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    fmm_csr a;
    tensor out = {0};
    const int64_t cols = (int64_t)stack[2], one = 1;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 2) || !frame_structure(&f, cols, &a) ||
        !frame_allocate(&f, 1, &one, fmm_torch.aoti_torch_dtype_int64(), &out))
        goto done;
    f.status = fmm_csr_check(&f.exec, &a, out.data);
done:
    frame_finish(&f, "check", stack, &out, 1);
}

/* (ptr, idx) -> plan, uint8 [bytes], empty where kernels need none */
static void plan(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    fmm_csr a;
    tensor out = {0};
    size_t bytes;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 2) || !frame_structure(&f, INT32_MAX, &a)) goto done;
    const int64_t size = (int64_t)fmm_plan_bytes(&f.exec, &a);
    f.status = fmm_plan_workspace(&f.exec, &a, &bytes);
    if (f.status != FMM_OK || !frame_workspace(&f, bytes) ||
        !frame_allocate(&f, 1, &size, fmm_torch.aoti_torch_dtype_uint8(), &out))
        goto done;
    f.status = size ? fmm_plan(&f.exec, &a, out.data) : FMM_OK;
done:
    frame_finish(&f, "plan", stack, &out, 1);
}

/* (key, order, int groups) -> ptr, int64 [groups + 1], and the order by key, int32 [n] */
static void group(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    tensor key, order, out[2] = {{0}};
    const int64_t groups = (int64_t)stack[2], bounds = groups + 1;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 2) || !frame_take(&f, 0, "key", &key) ||
        !frame_take(&f, 1, "order", &order))
        goto done;
    const bool wide = key.dtype == fmm_torch.aoti_torch_dtype_int64();
    if (key.dim != 1 || (key.numel > 1 && key.stride[0] != 1) || groups < 0 ||
        (!wide && key.dtype != fmm_torch.aoti_torch_dtype_int32())) {
        frame_fail(&f,
                   "key must be a contiguous vector of int32 or int64, and groups not negative");
        goto done;
    }
    if (order.numel && (order.numel != key.numel || order.dim != 1 || order.stride[0] != 1 ||
                        order.dtype != fmm_torch.aoti_torch_dtype_int32())) {
        frame_fail(&f, "order must be a contiguous vector of int32, one for each key");
        goto done;
    }
    if (!frame_allocate(&f, 1, &bounds, fmm_torch.aoti_torch_dtype_int64(), &out[0]) ||
        !frame_allocate(&f, 1, &key.numel, fmm_torch.aoti_torch_dtype_int32(), &out[1]))
        goto done;
    f.status = fmm_group(&f.exec, key.numel, key.data, wide, order.numel ? order.data : NULL,
                         groups, out[0].data, out[1].data);
done:
    frame_finish(&f, "group", stack, out, 2);
}

const fmm_torch_operator fmm_torch_csr[] = {
    {"_check", "_check(Tensor ptr, Tensor idx, int cols) -> Tensor", check},
    {"_plan", "_plan(Tensor ptr, Tensor idx) -> Tensor", plan},
    {"_group", "_group(Tensor key, Tensor order, int groups) -> (Tensor, Tensor)", group},
    {NULL, NULL, NULL},
};
