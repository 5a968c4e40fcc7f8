/* Products over the entries that a max or min chose; see extreme.c. Internal: spmm's gradients. */
#pragma once

#include "../core/core.h"

FMM_C_BEGIN

typedef enum fmm_extreme_form {
    FMM_EXTREME_ROWS,
    FMM_EXTREME_COLS,
    FMM_EXTREME_EDGES,
    FMM_EXTREME_COUNTS
} fmm_extreme_form;

typedef struct fmm_extreme_call {
    fmm_extreme_form form;
    const fmm_csr *a;              /* A; COLS: its transpose */
    const fmm_dense *val, *weight; /* [nnz, 1 or heads]; data NULL: ones */
    const fmm_dense *x, *y;        /* of A: x [cols, heads, feat], y [rows, heads, feat] */
    const fmm_dense *z, *g;        /* as x and as y; data NULL: ones */
    const fmm_dense *out;          /* COUNTS: in the dtype of sums, f32 (f64 for f64) */
} fmm_extreme_call;

/* Gradients are exact for every dtype; sums are kept in double, hence no workspace. */
fmm_status fmm_extreme(const fmm_exec *exec, const fmm_extreme_call *call);

fmm_status fmm_extreme_cpu(const fmm_exec *exec, const fmm_extreme_call *call);
fmm_status fmm_extreme_cuda(const fmm_exec *exec, const fmm_extreme_call *call);

FMM_C_END
