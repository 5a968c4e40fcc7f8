/* SpMM: y[i,h,:] = reduce_p val[eid[p],h] * x[idx[p],h,:] over the entries p of row i. Part of
 * fusedmm.h. */
#ifndef FMM_SPMM_H
#define FMM_SPMM_H

#include "fusedmm.h"

FMM_C_BEGIN

/* y is [rows, heads, feat], x [cols, heads, feat]. val is [nnz, heads or 1, 1], or absent, which
 * counts as ones. */
FMM_API fmm_status fmm_spmm(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                            const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce,
                            int algorithm);
FMM_API fmm_status fmm_spmm_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                                      const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce,
                                      int algorithm, size_t *bytes);

FMM_C_END
#endif
