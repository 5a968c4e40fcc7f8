/* What the CPU's files share: a call cut in chunks of rows, and the kernels of an instruction set.
 *
 * Decomposition: a chunk is a run of whole rows with about equal rows + entries, found by binary
 * search on ptr[i] + i (the prefix sum that CSR already is). Chunks depend on the operands alone,
 * and each row is computed by one owner in one order, so the result does not depend on threads. */
#pragma once

#include "../core/core.h"

#include <stdatomic.h>

enum {
    /* Terms that one register adds in a row. An addition is off by at most u times the power of
     * two below its result. Of 128 equal terms that makes 44 u times their sum in all, and the
     * promised bound is 4 sqrt(128) u, which is 45 u. */
    FMM_BLOCK = 128,
    FMM_AHEAD = 12, /* a row of the gathered operand is fetched this many entries before its use */
};

typedef struct fmm_rows_task fmm_rows_task;
/* Computes rows [first, last), whose ptr, idx and eid are known to be in range. */
typedef void fmm_rows_kernel(const fmm_rows_task *task, int64_t first, int64_t last);
/* Computes rows [first, last) of any content: entries whose indices are outside are skipped. */
typedef void fmm_rows_guarded(const fmm_call *call, int64_t first, int64_t last);
/* Rows of a matrix where nobody else writes: ptr [rows + 1], idx and, where it is read, eid. */
typedef struct fmm_chunk {
    int64_t rows, *ptr;
    int32_t *idx;
    void *eid;
} fmm_chunk;
/* Copies the idx and eid that the chunk's ptr tells of; whether all of it is in range. */
typedef bool fmm_rows_copy(const fmm_csr *a, const fmm_chunk *to);

struct fmm_rows_task {
    const fmm_call *call;
    fmm_rows_kernel *kernel;
    fmm_rows_copy *copy;
    fmm_rows_guarded *guarded; /* for rows with an index out of range */
    atomic_bool *forged;       /* where not NULL: set when an index was out of range */
    int64_t heads, feat; /* of the gathered operand, its heads folded into feat where they may */
    bool uses_edges;     /* eid is read */
    int64_t val_head;    /* head stride of val, 0 where one value serves every head */
    int64_t fetch_end; /* entries p < fetch_end fetch for entry p + FMM_AHEAD; 0: table in cache */
    int64_t chunks, per_chunk; /* per_chunk counts rows + entries */
    double *parts;             /* NULL, or sums that no row owns: [heads, feat] for each chunk */
};

/* Where chunks lie that are too long for a thread's stack. */
size_t fmm_rows_workspace(const fmm_call *call);
/* Runs a task whose gathered operand is x, fetched ahead when it has more than `near` bytes; chunks
 * > 0 on entry fixes their number. The workspace is fmm_rows_workspace's. */
fmm_status fmm_rows_run(const fmm_exec *exec, fmm_rows_task *task, const fmm_dense *x,
                        int64_t near);
/* Runs the specification: all rows by loops that trust no index. */
fmm_status fmm_rows_reference(const fmm_exec *exec, const fmm_call *call, fmm_rows_guarded *loops);
/* Which chunk starts at row `first`. */
int64_t fmm_rows_chunk(const fmm_rows_task *task, int64_t first);

/* Position of entry p in the caller's edge order, of a structure that nobody else writes. */
static inline int64_t fmm_edge(const fmm_csr *a, int64_t p)
{
    if (!a->eid) return p;
    return a->nnz <= INT32_MAX ? ((const int32_t *)a->eid)[p] : ((const int64_t *)a->eid)[p];
}

/* The row of entry p, where row i is p's or comes before it: rows without entries are passed over.
 */
static inline int64_t fmm_row_of(const fmm_csr *a, int64_t i, int64_t p)
{
    while (a->ptr[i + 1] <= p) i++;
    return i;
}
