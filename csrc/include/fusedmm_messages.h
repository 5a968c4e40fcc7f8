/* Messages: a number of each entry, made of up to two operands, reduced over rows or kept. Part of
 * fusedmm.h.
 *
 *     m[p, k] = lhs[.., k] op rhs[.., k]     entry p = (i, j), position e = eid[p], k in the axes
 *     out[i, k] = reduce over the entries p of row i of m[p, k]          out.at == FMM_AT_ROW
 *     out[e, k] = m[p, k], summed over the axes that out lacks           out.at == FMM_AT_EDGE
 *
 * Under a mask only those (p, k) count where mask_lhs mask_op mask_rhs, rounded to the operands'
 * dtype, equals mask_y: those that reached a maximum or minimum. A mask's op is not `one`. */
#ifndef FMM_MESSAGES_H
#define FMM_MESSAGES_H

#include "fusedmm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* copy is lhs alone; one is the number 1, of no operand. */
typedef enum fmm_combine {
    FMM_COMBINE_COPY,
    FMM_COMBINE_ADD,
    FMM_COMBINE_SUB,
    FMM_COMBINE_MUL,
    FMM_COMBINE_DIV,
    FMM_COMBINE_ONE
} fmm_combine;

/* What the rows of an operand belong to: rows i of the matrix, its columns j, or its entries in the
 * caller's order, e. */
typedef enum fmm_at { FMM_AT_ROW, FMM_AT_COL, FMM_AT_EDGE } fmm_at;

/* Features have up to four axes. Bit d of has: the operand has axis d, else it is broadcast there.
 * data is [rows, 1, product of the axes that it has], or NULL where it is absent. */
enum { FMM_AXES = 4 };
typedef struct fmm_term {
    const fmm_dense *data;
    fmm_at at;
    unsigned has;
} fmm_term;

/* One dtype for all but out of FMM_COMBINE_ONE, which is in the dtype of sums. An out of rows has
 * all axes; mean, max and min are those of rows, without a mask. */
typedef struct fmm_edge_message {
    int64_t axis[FMM_AXES];
    fmm_combine op, mask_op;
    fmm_term lhs, rhs, mask_lhs, mask_rhs, mask_y, out;
    fmm_reduce reduce;
} fmm_edge_message;

FMM_API fmm_status fmm_messages(const fmm_exec *exec, const fmm_csr *a, const fmm_edge_message *m,
                                int algorithm);
FMM_API fmm_status fmm_messages_workspace(const fmm_exec *exec, const fmm_csr *a,
                                          const fmm_edge_message *m, int algorithm, size_t *bytes);

/* What an algorithm finds behind fmm_call.own; the call's x is lhs (out, where that is absent), its
 * y is out. */
static inline const fmm_edge_message *fmm_messages_of(const fmm_call *call)
{
    return (const fmm_edge_message *)call->own;
}

#ifdef __cplusplus
}
#endif
#endif
