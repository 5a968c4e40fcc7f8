/* Sparse times sparse. Part of fusedmm.h. */
#ifndef FMM_SPGEMM_H
#define FMM_SPGEMM_H

#include "fusedmm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* C = A B with all three sparse, in two phases.
 *
 * The symbolic phase finds where C has entries: wherever some product falls, even if products
 * cancel. It also cuts the rows in chunks of about equal work. The numeric phase computes C's
 * values, any number of times for one symbolic phase. It can compute the values at other entries
 * than C has: those of a mask, which may be in any order and may repeat. */
typedef enum fmm_spgemm_want {
    FMM_SPGEMM_CHUNKS,   /* the schedule alone, all that a masked product needs */
    FMM_SPGEMM_COUNTS,   /* how many entries each row of C has, too */
    FMM_SPGEMM_SORTED,   /* and their columns, rising within each row */
    FMM_SPGEMM_UNSORTED, /* and their columns, in an order that depends on the structures alone */
} fmm_spgemm_want;

/* A schedule: how often a column repeats within a row of B at most, and the first row of each
 * chunk. A kernel clamps what it reads there. */
enum { FMM_SPGEMM_PARTS = 512, FMM_SPGEMM_SCHEDULE = FMM_SPGEMM_PARTS + 2 };

/* Values of both factors, with which the symbolic phase may compute those of the product on its
 * way. It does where one pass over the products is faster than two phases: then it calls `values`
 * once, for the memory of so many values of the dtype, with the pattern's owner. A NULL from it is
 * an out-of-memory. The values have the same bits as those of the numeric phase. */
typedef struct fmm_spgemm_values {
    fmm_dense a_val, b_val; /* [nnz] of a and of b, or absent: ones */
    fmm_dtype dtype;
    void *(*values)(void *owner, int64_t nnz);
} fmm_spgemm_values;

/* What the symbolic phase fills: ptr [rows + 1] unless only chunks are wanted; schedule
 * [FMM_SPGEMM_SCHEDULE]; and the columns, in the memory that `columns` gives for a number of
 * entries, which is known only then. A NULL from it is an out-of-memory. */
typedef struct fmm_spgemm_pattern {
    fmm_spgemm_want want;
    int64_t *ptr, *schedule;
    int32_t *(*columns)(void *owner, int64_t nnz);
    void *owner;
    const fmm_spgemm_values *with; /* or NULL: no values */
    /* Memory for n numbers that a plan keeps for `products` of fmm_spgemm, called once at most; or
     * NULL: nothing is kept. A NULL from it is an out-of-memory. On a CPU it is called where most
     * rows of C are as the row before, but for a shift of columns. */
    int32_t *(*kept)(void *owner, int64_t n);
} fmm_spgemm_pattern;

/* Its workspace follows from the contents of a and b, so exec->allocate must be given. */
FMM_API fmm_status fmm_spgemm_symbolic(const fmm_exec *exec, const fmm_csr *a, const fmm_csr *b,
                                       const fmm_spgemm_pattern *pattern);

/* What the numeric phase takes beside A, its values and those of C. */
typedef struct fmm_spgemm {
    const fmm_csr *b, *c;
    fmm_dense b_val;         /* [nnz] of b, or absent: ones; a_val as well */
    bool masked;             /* whether products may fall where c has no entry; else they may not */
    const int64_t *schedule; /* of a and b */
    const int32_t *colours;  /* [rows] of fmm_spgemm_colours, for kkmcr and kkmcw; else NULL */
    int workers;             /* set by fmm_spgemm: how many threads take part at most */
    const int32_t *products; /* [kept] of the symbolic phase of a, b and c, or NULL */
    /* CUDA: 1 says that all rows are small; more are where products go. CPU: (rows + 3) / 4, a byte
     * for each row says whether it is as the one before; other numbers say nothing. */
    int64_t kept;
} fmm_spgemm;

static inline const fmm_spgemm *fmm_spgemm_of(const fmm_call *call)
{
    return (const fmm_spgemm *)call->own;
}

/* c_val[eid[r]] = sum over the entries (i, k) of A's row i, in their order, and (k, j) of B's row k
 * of a_val * b_val, where j is the column of entry r in row i of c. */
FMM_API fmm_status fmm_spgemm_numeric(const fmm_exec *exec, const fmm_csr *a,
                                      const fmm_dense *a_val, const fmm_spgemm *operands,
                                      const fmm_dense *c_val, int algorithm);
FMM_API fmm_status fmm_spgemm_workspace(const fmm_exec *exec, const fmm_csr *a,
                                        const fmm_dense *a_val, const fmm_spgemm *operands,
                                        const fmm_dense *c_val, int algorithm, size_t *bytes);

/* Colours of c's rows, 0 and up: rows that share a column have different ones. exec->allocate must
 * be given. */
FMM_API fmm_status fmm_spgemm_colours(const fmm_exec *exec, const fmm_csr *c, int32_t *colours);

/* out[eid[p]] = < row i of x, row k of y > for every entry p = (i, k) of a: the gradient of the
 * numeric phase by A's values, with x the gradient by C's, y = B; by B's values on the transposes.
 * exec->allocate must be given. */
FMM_API fmm_status fmm_spgemm_dots(const fmm_exec *exec, const fmm_csr *a, const fmm_csr *x,
                                   const fmm_dense *x_val, const fmm_csr *y, const fmm_dense *y_val,
                                   const fmm_dense *out);

#ifdef __cplusplus
}
#endif
#endif
