/* What the `segments` kernels of SDDMM can take and how much workspace they need. This is host code
 * and looks at the sizes of the operands alone, so that a call never waits for the device. */
#include "../cuda/segments.cuh"
#include "cuda.h"

bool fmm_sddmm_segments_supports(const fmm_call *call)
{
    return can_gather(call->b) && segments_reach(call->a, call->x->heads, 0);
}

size_t fmm_sddmm_segments_workspace(const fmm_call *call) { return plan_workspace(call->a); }
