/* What the gradients of SpMM's max and min are made of: a product over the entries that were
 * chosen.
 *
 * With M[p,h,c] = 1 where val[eid[p],h] * x[j,h,c], rounded as y is, equals y[i,h,c] (entry p =
 * (i,j) reached the extreme, several may), and 0 elsewhere, three sums that are each other's
 * derivatives:
 *
 *     ROWS    out[i,h,c]    = sum over p of row i     w[eid[p],h] M[p,h,c] z[j,h,c]
 *     COLS    out[j,h,c]    = sum over p of column j  w[eid[p],h] M[p,h,c] g[i,h,c]
 *     EDGES   out[eid[p],h] = sum over c              M[p,h,c] z[j,h,c] g[i,h,c]
 *
 * COUNTS is ROWS with w and z absent (ones), the number of entries that share an extreme, and is
 * stored in the dtype of sums, since f16 ends at 65,504 and bf16 skips numbers above 256. gy /
 * count through COLS is the gradient of x when ties share evenly, through EDGES that of val. COLS
 * runs on the transpose, whose rows are the columns of A: every form has one owner per output and
 * adds nothing to memory. M is recomputed from x and y wherever it is needed; nothing of size nnz *
 * feat is ever stored. */
#include "extreme.h"
#include "../core/checks.h"

#include <inttypes.h>

fmm_status fmm_extreme(const fmm_exec *exec, const fmm_extreme_call *call)
{
    const fmm_csr *a = call->a;
    const bool transposed = call->form == FMM_EXTREME_COLS;
    TRY(fmm_check_matrix("extreme", exec, a));
    VALID((unsigned)call->form <= FMM_EXTREME_COUNTS, "extreme: no form %d", (int)call->form);
    const fmm_dense *x = call->x;
    TRY(fmm_check_dense("extreme", "x", x));
    const int64_t rows = transposed ? a->cols : a->rows, cols = transposed ? a->rows : a->cols;
    TRY(fmm_check_values("extreme", a, call->val, x->heads));
    TRY(fmm_check_values("extreme", a, call->weight, x->heads));
    TRY(fmm_check_like("extreme", "x", x, x, cols, x->feat));
    TRY(fmm_check_like("extreme", "y", call->y, x, rows, x->feat));
    if (fmm_given(call->z)) TRY(fmm_check_like("extreme", "z", call->z, x, cols, x->feat));
    if (fmm_given(call->g)) TRY(fmm_check_like("extreme", "g", call->g, x, rows, x->feat));
    const bool edges = call->form == FMM_EXTREME_EDGES;
    const bool wide = call->form == FMM_EXTREME_COUNTS && x->dtype != FMM_F64;
    TRY(fmm_check_shape("extreme", "out", call->out, wide ? FMM_F32 : x->dtype,
                        edges ? a->nnz : a->rows, x->heads, edges ? 1 : x->feat));
    TRY(fmm_check_output("extreme", "out", call->out));
    if (!call->out->rows || !call->out->heads || !call->out->feat) return FMM_OK;
    return exec->device == FMM_CUDA ? fmm_extreme_cuda(exec, call) : fmm_extreme_cpu(exec, call);
}
