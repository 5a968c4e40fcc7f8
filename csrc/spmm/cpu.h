/* The loops of SpMM on the CPU that are the specification. They also compute rows whose indices
 * are out of range, and skip those entries. */
#ifndef FMM_SPMM_CPU_H
#define FMM_SPMM_CPU_H

#include "../core/core.h"

void fmm_reference_spmm(const fmm_call *call, int64_t first, int64_t last);
fmm_status fmm_spmm_reference(const fmm_exec *exec, const fmm_call *call);

#endif
