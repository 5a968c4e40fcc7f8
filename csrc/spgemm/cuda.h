/* What the C files of SpGEMM need of its CUDA files. */
#ifndef FMM_SPGEMM_CUDA_H
#define FMM_SPGEMM_CUDA_H

#include "calls.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows are numbered in 32 bits. */
fmm_status fmm_spgemm_countable(const fmm_csr *a);

/* Where a row keeps its sums; AUTO asks for each row. */
typedef enum spgemm_where {
    SPGEMM_AUTO,
    SPGEMM_IN_DENSE,
    SPGEMM_IN_HASH,
    SPGEMM_IN_SORTED,
    SPGEMM_IN_RANKED
} spgemm_where;
/* The values of all rows; its workspace holds a list of those that are not small. */
fmm_status fmm_spgemm_rows_cuda(const fmm_exec *exec, const fmm_call *call, spgemm_where where);
size_t fmm_spgemm_rows_workspace(const fmm_call *call);
/* The same, as the formula reads, without a workspace. */
fmm_status fmm_spgemm_reference_cuda(const fmm_exec *exec, const fmm_call *call);

#ifdef __cplusplus
}
#endif
#endif
