/* SDDMM: e[eid[p],h] = val[eid[p],h] * < a[i,h,:], b[idx[p],h,:] > for each entry p of row i. Part
 * of fusedmm.h. */
#ifndef FMM_SDDMM_H
#define FMM_SDDMM_H

#include "fusedmm.h"

FMM_C_BEGIN

/* a is [rows, heads, feat], b [cols, heads, feat], e [nnz, heads, 1]. val is [nnz, heads or 1, 1],
 * or absent, which counts as ones. */
FMM_API fmm_status fmm_sddmm(const fmm_exec *exec, const fmm_csr *s, const fmm_dense *val,
                             const fmm_dense *a, const fmm_dense *b, const fmm_dense *e,
                             int algorithm);
FMM_API fmm_status fmm_sddmm_workspace(const fmm_exec *exec, const fmm_csr *s, const fmm_dense *val,
                                       const fmm_dense *a, const fmm_dense *b, const fmm_dense *e,
                                       int algorithm, size_t *bytes);

FMM_C_END
#endif
