/* What both devices have of SpGEMM: the arguments of its symbolic phase and of its gradient, which
 * spgemm.c has checked, and the length of sums. */
#ifndef FMM_SPGEMM_CALLS_H
#define FMM_SPGEMM_CALLS_H

#include "../core/core.h" /* fmm_exec, fmm_csr, fmm_dense */

#ifdef __cplusplus
extern "C" {
#endif

/* Terms that one accumulator adds in a row, at most: as FMM_BLOCK. */
enum { SPGEMM_TERMS = 128 };

/* Memory that is lent for a call, and how much of it is in use. */
typedef struct spgemm_memory {
    char *base;
    size_t used;
} spgemm_memory;
/* Asks the caller for a workspace. */
fmm_status fmm_spgemm_ask(const fmm_exec *exec, size_t bytes, spgemm_memory *m);

/* Where A B has entries; `out` says what of it is wanted. */
typedef struct fmm_spgemm_symbolic_call {
    const fmm_csr *a, *b;
    const fmm_spgemm_pattern *out;
} fmm_spgemm_symbolic_call;
fmm_status fmm_spgemm_symbolic_cpu(const fmm_exec *exec, const fmm_spgemm_symbolic_call *call);
fmm_status fmm_spgemm_symbolic_cuda(const fmm_exec *exec, const fmm_spgemm_symbolic_call *call);

/* Dot products of rows of x and rows of y where a has entries. */
typedef struct fmm_spgemm_dots_call {
    const fmm_csr *a, *x, *y;
    const fmm_dense *x_val, *y_val, *out;
} fmm_spgemm_dots_call;
fmm_status fmm_spgemm_dots_cpu(const fmm_exec *exec, const fmm_spgemm_dots_call *call);
fmm_status fmm_spgemm_dots_cuda(const fmm_exec *exec, const fmm_spgemm_dots_call *call);

#ifdef __cplusplus
}
#endif
#endif
