/* What the `segments` kernels of SpMM can take and how much workspace they need. This is host code
 * and looks at the sizes of the operands alone, so that a call never waits for the device. */
#include "../cuda/segments.cuh"
#include "cuda.h"

bool fmm_spmm_segments_supports(const fmm_call *call)
{
    return can_gather(call->x) && segments_reach(call->a, call->x->heads, call->x->feat);
}

/* A slot for each piece and head, behind the plan, and tickets for each tile of 32 columns of it,
 * which is the least that a row of several tiles is cut in. */
size_t fmm_spmm_segments_workspace(const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const int64_t sum_bytes = call->x->dtype == FMM_F64 ? sizeof(double) : sizeof(float);
    /* Flat heads need a little less than heads padded one by one; this is the larger number. */
    const int64_t heads = call->x->heads, feat = call->x->feat;
    int64_t bytes;
    const int64_t each = ceil_div(feat, 4) * 4 * sum_bytes + ceil_div(feat, 32) * 4;
    if (__builtin_mul_overflow(plan_slots(a), heads, &bytes) ||
        __builtin_mul_overflow(bytes, each, &bytes))
        return SIZE_MAX;
    return plan_workspace(a) + (size_t)bytes;
}
