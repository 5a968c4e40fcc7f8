/* What fused's `segments` kernel can take and how much workspace it needs: host code, from the
 * sizes of the operands alone. */
#include "cuda.h"
#include "fused.cuh"

static bool gathers(const fmm_dense *d) { return d->rows < 2 || d->row_stride <= UINT32_MAX; }

/* A group spans all channels of a row: 32 lanes with 4 packs of 16 bytes, or 8 single elements. */
bool fmm_fused_segments_supports(const fmm_call *call)
{
    const fmm_fusion *f = call->fusion;
    if (f->pass != FMM_FORWARD || f->function || !gathers(f->y) || (f->z && !gathers(f->z)))
        return false;
    const int64_t feat = f->x->feat > f->out->feat ? f->x->feat : f->out->feat;
    const int vec = fused_vec(f);
    return feat <= (vec == 1 ? 256 : vec * 128) && segments_reach(call->a, f->x->heads, feat);
}

size_t fmm_fused_segments_workspace(const fmm_call *call)
{
    fmm_call spmm = *call;
    spmm.x = call->fusion->out;
    return fmm_spmm_segments_workspace(&spmm);
}
