/* Products over the entries that a max or min chose; see extreme.c. Internal: spmm's gradients. */
#ifndef FMM_SELECT_H
#define FMM_SELECT_H

#include "../core/core.h"

typedef enum fmm_select_form {
    FMM_SELECT_ROWS,
    FMM_SELECT_COLS,
    FMM_SELECT_EDGES,
    FMM_SELECT_COUNTS
} fmm_select_form;

typedef struct fmm_select_call {
    fmm_select_form form;
    const fmm_csr *a;              /* A; COLS: its transpose */
    const fmm_dense *val, *weight; /* [nnz, 1 or heads]; data NULL: ones */
    const fmm_dense *x, *y;        /* of A: x [cols, heads, feat], y [rows, heads, feat] */
    const fmm_dense *z, *g;        /* as x and as y; data NULL: ones */
    const fmm_dense *out;          /* COUNTS: in the dtype of sums, f32 (f64 for f64) */
} fmm_select_call;

/* Gradients are exact for every dtype; sums are kept in double, hence no workspace. */
fmm_status fmm_select(const fmm_exec *exec, const fmm_select_call *call);

fmm_status fmm_cpu_select(const fmm_exec *exec, const fmm_select_call *call);
fmm_status fmm_cuda_select(const fmm_exec *exec, const fmm_select_call *call);

#endif
