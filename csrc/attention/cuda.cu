/* Which calls attention's `segments` can take, and how much workspace it needs. Both follow from
 * the sizes of the operands alone, so this is host code, and the caller can ask before it
 * allocates. */
#include "cuda.cuh"
#include "cuda.h"

bool fmm_attention_segments_supports(const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_attention *t = fmm_attention_of(call);
    const bool cols = t->pass == FMM_ATTENTION_COLS;
    /* Gathered rows need strides of 32 bits, and a head must fit a warp's registers. gridDim.y
     * counts groups of heads and gridDim.x gatt's parts, hence the limits of a grid. */
    const int64_t feat = t->q.feat > t->v.feat ? t->q.feat : t->v.feat;
    return can_gather(cols ? &t->q : &t->k) && can_gather(cols ? &t->gout : &t->v) &&
           (a->cols || !a->nnz) && feat <= attention_widest(t) && t->q.heads <= UINT16_MAX &&
           t->gatt.rows <= INT32_MAX && segments_reach(a, 1, 0);
}

size_t fmm_attention_segments_workspace(const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_attention passes = in_passes(call), *const t = &passes;
    const int64_t sum_bytes = t->q.dtype == FMM_F64 ? sizeof(double) : sizeof(float);
    /* A size that no integer holds is more than any device has. */
    int64_t bytes;
    if (__builtin_mul_overflow(plan_slots(a) * sum_bytes, t->q.heads, &bytes) ||
        __builtin_mul_overflow(bytes, slot_width(t), &bytes))
        return SIZE_MAX;
    return plan_workspace(a) + plan_padded(stats_bytes(call)) + (size_t)bytes;
}
