/* The loops of fused on the CPU that are the specification. They also compute rows whose indices
 * are out of range, and skip those entries. */
#ifndef FMM_FUSED_CPU_H
#define FMM_FUSED_CPU_H

#include "../core/core.h"

void fmm_reference_fused(const fmm_call *call, int64_t first, int64_t last);
fmm_status fmm_fused_reference(const fmm_exec *exec, const fmm_call *call);

/* SDDMM, the edge function and SpMM, one after the other. */
bool fmm_back_to_back_supports(const fmm_call *call);
size_t fmm_back_to_back_workspace(const fmm_call *call);
fmm_status fmm_back_to_back(const fmm_exec *exec, const fmm_call *call);

#endif
