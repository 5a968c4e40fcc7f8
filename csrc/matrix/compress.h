/* Coordinates to a CSR, a CSR to its transpose, the weights of a graph convolution and the gradient
 * of a mean; see compress.c. These functions are internal: a training step that makes a graph of
 * its own needs one call of each. */
#pragma once

#include "../core/core.h"

FMM_C_BEGIN

/* Fails where int32 does not count the sizes, or the entries with a loop for each node. All
 * functions below call it first. */
fmm_status fmm_check_sizes(const char *op, int64_t rows, int64_t cols, int64_t nnz);

typedef struct fmm_place {
    int32_t row, col;
} fmm_place;

/* Of a check whose answer is waited for later: what the device writes to host memory when it knows
 * whether a coordinate is outside, said or said + 1, and where; NULL without such a check. */
typedef struct fmm_answer {
    uint64_t *word, said;
} fmm_answer;

/* Entry p is at row[p * row_stride], col[p * col_stride]. On the CPU the check copies it to
 * places[p], which is all that is read after it: another thread may write row and col meanwhile,
 * and what was counted must be what is placed. */
typedef struct fmm_coo {
    int64_t rows, cols, nnz;
    const int64_t *row, *col;
    int64_t row_stride, col_stride;
    fmm_place *places; /* [nnz]; NULL on CUDA */
    fmm_answer answer; /* of a deferred check, on CUDA */
} fmm_coo;

typedef struct fmm_coo_facts {
    int64_t loops; /* entries with row == col */
    bool sorted;   /* by row, and by column within a row */
} fmm_coo_facts;

/* Fails where a coordinate is outside, on the CPU at the first, and where there are more entries
 * than int32 counts. On CUDA it waits for the device, and needs a workspace of that many bytes. */
enum { FMM_COO_CHECK_BYTES = 1 << 14 };
fmm_status fmm_coo_check(const fmm_exec *exec, const fmm_coo *a, fmm_coo_facts *facts);

/* On CUDA the check in two parts, which the caller's ticket, a number that no other check has,
 * holds together. The first says where fmm_compress leaves the answer; nowhere if the device checks
 * in a launch of its own, and then the caller has to check now. The second waits for the answer,
 * and fails where a coordinate is outside. */
fmm_answer fmm_cuda_coo_answer(const fmm_exec *exec, const fmm_coo *a, int64_t ticket);
fmm_status fmm_cuda_coo_wait(const fmm_exec *exec, int64_t ticket);

/* Makes ptr [rows + 1], idx and eid [entries] of coordinates that fmm_coo_check has checked. On
 * CUDA they may be unchecked, and facts are then zeros. With `loops` the self loops are left out,
 * the other entries are numbered anew, and min(rows, cols) loops follow, each the last of its row.
 * others, [nnz] where given, then begins with the old numbers of the nnz - facts.loops other
 * entries. eid may be NULL where it would be the identity: the entries are sorted, and `loops` is
 * false. On CUDA plan, of fmm_plan_bytes, is made too. */
fmm_status fmm_compress(const fmm_exec *exec, const fmm_coo *a, const fmm_coo_facts *facts,
                        bool loops, int64_t *ptr, int32_t *idx, int32_t *eid, void *plan,
                        int64_t *others);
size_t fmm_compress_workspace(const fmm_exec *exec, const fmm_coo *a, const fmm_coo_facts *facts,
                              bool loops, bool identity);

/* ptr [cols + 1], idx and eid [nnz] of the transpose, and its plan on CUDA; on the CPU it fails
 * where a is malformed. */
fmm_status fmm_transpose(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr, int32_t *idx,
                         int32_t *eid, void *plan);
size_t fmm_transpose_workspace(const fmm_exec *exec, const fmm_csr *a);

/* 1 / sqrt(d_i d_j) for every entry (i, j), d the entries of each row: val in the caller's order,
 * here in that of the rows. The workspace is a float for each row, none on CUDA. */
fmm_status fmm_normalize(const fmm_exec *exec, const fmm_csr *a, float *val, float *here);

/* out[i, c] = g[i, c] / max(1, entries of row i): the gradient of each row's mean, f32, [rows,
 * heads, feat] where only out need be contiguous. */
fmm_status fmm_mean_back(const fmm_exec *exec, int64_t rows, const int64_t *ptr, const fmm_dense *g,
                         float *out);

fmm_status fmm_cuda_coo_check(const fmm_exec *exec, const fmm_coo *a, fmm_coo_facts *facts);
fmm_status fmm_cuda_compress(const fmm_exec *exec, const fmm_coo *a, const fmm_coo_facts *facts,
                             bool loops, int64_t *ptr, int32_t *idx, int32_t *eid, void *plan,
                             int64_t *others);
size_t fmm_cuda_compress_workspace(const fmm_exec *exec, const fmm_coo *a,
                                   const fmm_coo_facts *facts, bool loops, bool identity);
fmm_status fmm_cuda_transpose(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr, int32_t *idx,
                              int32_t *eid, void *plan);
size_t fmm_cuda_transpose_workspace(const fmm_exec *exec, const fmm_csr *a);
fmm_status fmm_cuda_normalize(const fmm_exec *exec, const fmm_csr *a, float *val, float *here);
fmm_status fmm_cuda_mean_back(const fmm_exec *exec, const int64_t *ptr, const fmm_dense *g,
                              float *out);

FMM_C_END
