/* SpMV: y = alpha * A * x + beta * y_in, one vector at a time, with A in one of six formats.
 *
 *     format   entry (i, j) of value v lies at          padding
 *     CSR      ptr[i] <= p < ptr[i + 1]: idx[p] = j     none
 *     COO      row[p] = i, idx[p] = j, row never falls  none
 *     DIA      v[d * rows + i], j = i + offsets[d]      v = 0, which is no entry
 *     ELL      v[k * rows + i], k < width               idx = -1
 *     HYB      ELL, and COO for what rows have beyond   idx = -1
 *     SELL     slice s = places [s * width, (s + 1) * width) of `order`, which lists all rows;
 *              v[offsets[s] + k * width + lane] for the row at place s * width + lane;
 *              offsets[s + 1] - offsets[s] is width times its longest row      idx = -1
 *
 * This header is a part of fusedmm.h. */
#ifndef FUSEDMM_SPMV_H
#define FUSEDMM_SPMV_H

#include "fusedmm.h"

FMM_C_BEGIN

typedef enum fmm_format {
    FMM_FORMAT_CSR,
    FMM_FORMAT_COO,
    FMM_FORMAT_DIA,
    FMM_FORMAT_ELL,
    FMM_FORMAT_HYB,
    FMM_FORMAT_SELL,
    FMM_FORMATS
} fmm_format;

/* A borrowed view of A. rows and cols of `csr` hold for every format. Its nnz, idx and eid, and val
 * and row beside it, are those of CSR, of COO and of the part of HYB that is COO; ptr is read for
 * CSR alone, a plan, if there is one, for CSR and COO. The other fields belong to DIA, ELL, HYB and
 * SELL. */
typedef struct fmm_spmv_matrix {
    fmm_format format;
    fmm_csr csr;
    const fmm_dense *val; /* [nnz], in the order that eid gives; NULL is ones */
    const int32_t *row;   /* [nnz], 0 <= row < rows */

    int64_t width;          /* DIA: diagonals. ELL, HYB: entries kept a row. SELL: rows a slice */
    int64_t stored;         /* elements of padded_val, padding too */
    const int64_t *offsets; /* DIA [width]; SELL [slices + 1], multiples of width */
    const int32_t *padded_idx;   /* [stored]: a column, or -1; DIA has none */
    const fmm_dense *padded_val; /* [stored], stride 1 */
    const int32_t *order;        /* SELL [rows], a permutation */
} fmm_spmv_matrix;

/* x [cols] and y_in, y [rows] are views of one head and one feature, of one dtype. y_in is not read
 * where beta is 0, and may be NULL then. y shares no memory with the operands. Sums are in f32 (f64
 * for f64), of at most 512 terms in a row, then alpha and beta are applied, and the result is
 * rounded once. */
FMM_API fmm_status fmm_spmv(const fmm_exec *exec, const fmm_spmv_matrix *a, const fmm_dense *x,
                            const fmm_dense *y_in, const fmm_dense *y, double alpha, double beta,
                            int algorithm);
FMM_API fmm_status fmm_spmv_workspace(const fmm_exec *exec, const fmm_spmv_matrix *a,
                                      const fmm_dense *x, const fmm_dense *y_in, const fmm_dense *y,
                                      double alpha, double beta, int algorithm, size_t *bytes);

/* What an algorithm of SpMV finds behind fmm_call.own. The call's a is the matrix's csr, val its
 * values (without data: ones), x and y the vectors. */
typedef struct fmm_spmv_operands {
    const fmm_spmv_matrix *matrix;
    const fmm_dense *y_in; /* NULL where beta is 0 */
    double alpha, beta;
} fmm_spmv_operands;
static inline const fmm_spmv_operands *fmm_spmv_of(const fmm_call *call)
{
    return (const fmm_spmv_operands *)call->own;
}

FMM_C_END
#endif
