/* What the `segments` kernels of fused can take and how much workspace they need. This is host code
 * and looks at the sizes of the operands alone, so that a call never waits for the device. */
#include "../spmm/cuda.h"
#include "cuda_run.cuh"
#include "cuda.h"

/* A group spans all channels of a row: forward 32 lanes with 4 packs of 16 bytes, or 8 single
 * elements; in the gradients half as many. */
bool fmm_fused_segments_supports(const fmm_call *call)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    const bool forward = f->pass == FMM_FORWARD;
    /* A function in C cannot run on the card; far operands must be gatherable, in either direction.
     */
    if (f->function || !can_gather(f->y) || (f->z && !can_gather(f->z))) return false;
    if (!forward && (!can_gather(f->x) || !can_gather(f->g))) return false;
    const int64_t feat = f->z && f->z->feat > f->x->feat ? f->z->feat : f->x->feat;
    const int vec = fused_vec(f), most = vec == 1 ? 256 : vec * 128;
    return feat <= (forward ? most : most / 2) && segments_reach(call->a, f->x->heads, feat);
}

/* The plan once, and for each output as many slots and tickets as SpMM's would have. */
size_t fmm_fused_segments_workspace(const fmm_call *call)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    fmm_call spmm = *call;
    size_t bytes = plan_workspace(call->a);
    const fmm_dense *const outputs[] = {f->z ? f->z : f->x, f->pass == FMM_FORWARD ? NULL : f->x};
    for (const fmm_dense *d : outputs)
        if ((spmm.x = d) &&
            __builtin_add_overflow(
                bytes, fmm_spmm_segments_workspace(&spmm) - plan_workspace(call->a), &bytes))
            return SIZE_MAX;
    return bytes;
}
