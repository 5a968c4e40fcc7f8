/* Row sums. Part of fusedmm.h. */
#ifndef FMM_ROWSUM_H
#define FMM_ROWSUM_H

#include "fusedmm.h"

FMM_C_BEGIN

/* y[i,h,:] = sum over row i's entries p of val[eid[p],h,:]; val [nnz, heads, feat]. */
FMM_API fmm_status fmm_rowsum(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                              const fmm_dense *y, int algorithm);

FMM_C_END
#endif
