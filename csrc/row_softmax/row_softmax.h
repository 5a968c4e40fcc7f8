/* Softmax over the entries of each row, on the CPU; row_softmax.c has the equations. */
#ifndef FMM_ROW_SOFTMAX_H
#define FMM_ROW_SOFTMAX_H

#include "../core/core.h"

/* x, w and out are [nnz, numbers] in the caller's edge order, of one dtype. out is the softmax of
 * x, or where `back` is set the gradient of the softmax w, of which x is that of the result. */
typedef struct fmm_row_softmax_call {
    fmm_csr a;           /* idx is read for its check alone */
    fmm_dense x, w, out; /* w: with back */
    bool back;
} fmm_row_softmax_call;

fmm_status fmm_row_softmax(const fmm_exec *exec, const fmm_row_softmax_call *call);

#endif
