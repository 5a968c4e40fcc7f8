/* Making a CSR: coordinates by row and column, and a CSR by column; on CUDA see
 * matrix/cuda_compress.cu.
 *
 * Both are counting sorts on the CPU: keys are counted, the counts' running sum is where each group
 * begins, and a walk over the entries puts each behind what its group has already, which is stable.
 * Coordinates are put in order of column and then, as that order is walked, of row. A CSR is in
 * order of row, so one walk by column is its transpose. Cost: three passes over the coordinates for
 * the first, two for the second, in one thread, which up to a million entries is quicker than a
 * sort. Everything is one call, since a graph of some hundred edges waits for calls. */
#include "compress.h"
#include "../core/checks.h"
#include "../cpu/reference.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { FEW_NUMBERS = 32768 }; /* one thread divides fewer before others have woken */

typedef struct placed {
    int32_t row, number;
} placed;

/* A coordinate is read once, as cpu/reference.h reads a structure: another thread may write it. */
static int64_t once(const int64_t *at) { return *(const volatile int64_t *)at; }

/* How many self loops a matrix can have. */
static int64_t nodes_of(const fmm_coo *a) { return a->rows < a->cols ? a->rows : a->cols; }

/* Loops may be added later, one for each node, so nnz has to leave room for them: the number of an
 * entry must fit int32 then too. INT32_MAX rows are refused, since ptr has one number more. */
fmm_status fmm_check_sizes(const char *op, int64_t rows, int64_t cols, int64_t nnz)
{
    VALID(rows >= 0 && rows < INT32_MAX && cols >= 0 && cols < INT32_MAX,
          "%s: [%" PRId64 ", %" PRId64 "] is beyond int32", op, rows, cols);
    const int64_t loops = rows < cols ? rows : cols;
    VALID(nnz >= 0 && nnz <= INT32_MAX - loops, "%s: %" PRId64 " entries, beyond int32", op, nnz);
    return FMM_OK;
}

fmm_status fmm_coo_check(const fmm_exec *exec, const fmm_coo *a, fmm_coo_facts *facts)
{
    TRY(fmm_check_sizes("compress", a->rows, a->cols, a->nnz));
    if (exec->device == FMM_CUDA) {
        TRY(fmm_check_workspace("compress", exec, FMM_COO_CHECK_BYTES));
        return fmm_cuda_coo_check(exec, a, facts);
    }
    /* Whether the coordinates are sorted decides the way of fmm_compress, and is free to learn
     * here, since they are read anyway. */
    int64_t last_row = -1, last_col = -1, loops = 0, falls = 0;
    for (int64_t p = 0; p < a->nnz; p++) {
        const int64_t r = once(a->row + p * a->row_stride), c = once(a->col + p * a->col_stride);
        VALID(r >= 0 && r < a->rows,
              "compress: row[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")", p, r,
              a->rows);
        VALID(c >= 0 && c < a->cols,
              "compress: col[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")", p, c,
              a->cols);
        loops += r == c;
        falls += (r < last_row) | ((r == last_row) & (c < last_col));
        last_row = r;
        last_col = c;
        a->places[p] = (fmm_place){(int32_t)r, (int32_t)c};
    }
    *facts = (fmm_coo_facts){.loops = loops, .sorted = falls == 0};
    return FMM_OK;
}

/* Makes of the numbers of groups, begin[1] on, the ends of groups; begin[g] is then where group g
 * begins, since begin[0] is 0. */
static void sum_up(int64_t groups, int64_t *begin)
{
    for (int64_t g = 0; g < groups; g++) begin[g + 1] += begin[g];
}

/* Makes begin[g] again where group g begins, after a walk has moved it to the group's end. */
static void step_back(int64_t groups, int64_t *begin)
{
    if (groups) memmove(begin + 1, begin, (size_t)groups * sizeof *begin);
    begin[0] = 0;
}

/* The bytes of a ptr. */
static size_t bounds_bytes(int64_t groups) { return ((size_t)groups + 1) * sizeof(int64_t); }

/* The order by column: where columns end, and the entries in that order. */
size_t fmm_compress_workspace(const fmm_exec *exec, const fmm_coo *a, const fmm_coo_facts *facts,
                              bool loops, bool identity)
{
    if (exec->device == FMM_CUDA)
        return fmm_cuda_compress_workspace(exec, a, facts, loops, identity);
    return identity ? 0 : bounds_bytes(a->cols) + (size_t)a->nnz * sizeof(placed);
}

/* Entries that are sorted stay where they are: rows are counted, columns copied. */
static void compress_sorted(const fmm_coo *a, int64_t *ptr, int32_t *idx)
{
    for (int64_t p = 0; p < a->nnz; p++) {
        ptr[a->places[p].row + 1]++;
        idx[p] = a->places[p].col;
    }
    sum_up(a->rows, ptr);
}

/* The first pass counts rows and columns, the second puts the entries in the order of columns, the
 * third takes them in that order to their rows. So columns rise within a row, and entries of one
 * place stay in the caller's order. Nothing is written outside, because what is counted and what is
 * placed are the same copy of the coordinates. */
fmm_status fmm_compress(const fmm_exec *exec, const fmm_coo *a, const fmm_coo_facts *facts,
                        bool loops, int64_t *ptr, int32_t *idx, int32_t *eid, void *plan,
                        int64_t *others)
{
    const bool identity = !loops && !eid;
    TRY(fmm_check_sizes("compress", a->rows, a->cols, a->nnz));
    TRY(fmm_check_workspace("compress", exec,
                            fmm_compress_workspace(exec, a, facts, loops, identity)));
    if (exec->device == FMM_CUDA)
        return fmm_cuda_compress(exec, a, facts, loops, ptr, idx, eid, plan, others);
    memset(ptr, 0, bounds_bytes(a->rows));
    if (identity) return compress_sorted(a, ptr, idx), FMM_OK;
    int64_t *end = exec->workspace;
    placed *by_col = (placed *)(end + a->cols + 1);
    memset(end, 0, bounds_bytes(a->cols));
    for (int64_t p = 0; p < a->nnz; p++) {
        const int64_t r = a->places[p].row, c = a->places[p].col;
        if (loops && r == c) continue;
        ptr[r + 1]++;
        end[c + 1]++;
    }
    /* Every node gets its loop, also one that had a loop among the entries. */
    const int64_t nodes = loops ? nodes_of(a) : 0;
    for (int64_t i = 0; i < nodes; i++) ptr[i + 1]++;
    sum_up(a->rows, ptr);
    sum_up(a->cols, end);

    int64_t number = 0;
    for (int64_t p = 0; p < a->nnz; p++) {
        const int64_t r = a->places[p].row, c = a->places[p].col;
        if (loops && r == c) continue;
        if (others) others[number] = p;
        by_col[end[c]++] = (placed){.row = (int32_t)r, .number = (int32_t)number++};
    }
    /* As on CUDA, zeros follow the numbers. */
    if (others) memset(others + number, 0, (size_t)(a->nnz - number) * sizeof *others);
    /* end[c] is the end of column c by now, so an entry's column need not be kept with it. */
    for (int64_t c = 0, q = 0; c < a->cols; c++)
        for (; q < end[c]; q++) {
            const int64_t p = ptr[by_col[q].row]++;
            idx[p] = (int32_t)c;
            eid[p] = by_col[q].number;
        }
    /* The place that is left in each row is its loop's. Loops are numbered behind all entries. */
    for (int64_t i = 0; i < nodes; i++) {
        const int64_t p = ptr[i]++;
        idx[p] = (int32_t)i;
        eid[p] = (int32_t)(number + i);
    }
    step_back(a->rows, ptr);
    return FMM_OK;
}

size_t fmm_transpose_workspace(const fmm_exec *exec, const fmm_csr *a)
{
    return exec->device == FMM_CUDA ? fmm_cuda_transpose_workspace(exec, a) : 0;
}

/* One walk over the rows puts each entry behind what its column has, so rows rise within a column.
 * It needs no workspace: ptr itself moves to the ends of columns, and back. Another thread may
 * change the structure between the passes; then entries are left out, and nothing is written
 * outside. */
fmm_status fmm_transpose(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr, int32_t *idx,
                         int32_t *eid, void *plan)
{
    uint64_t report;
    TRY(fmm_check_sizes("transpose", a->rows, a->cols, a->nnz));
    if (exec->device == FMM_CUDA) {
        TRY(fmm_check_workspace("transpose", exec, fmm_transpose_workspace(exec, a)));
        return fmm_cuda_transpose(exec, a, ptr, idx, eid, plan);
    }
    TRY(fmm_csr_check(exec, a, &report));
    VALID(report == UINT64_MAX, "transpose: ptr or idx is malformed");
    const int32_t *given = a->eid;
    memset(ptr, 0, bounds_bytes(a->cols));
    for (int64_t p = 0; p < a->nnz; p++) {
        const int64_t j = column_of(a, p);
        if (j >= 0) ptr[j + 1]++;
    }
    sum_up(a->cols, ptr);
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t end = row_end(a, i);
        for (int64_t p = row_begin(a, i); p < end; p++) {
            const int64_t j = column_of(a, p);
            if (j < 0 || ptr[j] >= a->nnz) continue; /* changed since the check */
            const int64_t q = ptr[j]++;
            idx[q] = (int32_t)i;
            eid[q] = given ? given[p] : (int32_t)p;
        }
    }
    step_back(a->cols, ptr);
    return FMM_OK;
}

/* A weight is the product of one number for its row and one for its column, rounded once, so its
 * bits are those of torch's product. ptr and idx may have changed since they were checked, so each
 * is checked again here, and an entry outside gets 0. */
fmm_status fmm_normalize(const fmm_exec *exec, const fmm_csr *a, float *val, float *here)
{
    TRY(fmm_check_sizes("normalize", a->rows, a->cols, a->nnz));
    VALID(a->rows == a->cols, "normalize: the matrix must be square");
    if (exec->device == FMM_CUDA) return fmm_cuda_normalize(exec, a, val, here);
    TRY(fmm_check_workspace("normalize", exec, (size_t)a->rows * sizeof *val));
    float *scale = exec->workspace;
    /* A node of degree 0 has no entry to weigh, and must not divide. */
    for (int64_t i = 0; i < a->rows; i++) {
        const float degree = (float)(row_end(a, i) - row_begin(a, i));
        scale[i] = degree > 0 ? 1 / sqrtf(degree) : 0;
    }
    if (!a->nnz) return FMM_OK; /* val and here may be NULL */
    /* `here` has the weights in the order of storage, val in the caller's order of edges. Neither
     * may keep what its memory held, whatever ptr and eid name now. */
    memset(val, 0, (size_t)a->nnz * sizeof *val);
    memset(here, 0, (size_t)a->nnz * sizeof *here);
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t end = row_end(a, i);
        for (int64_t p = row_begin(a, i); p < end; p++) {
            const int64_t j = column_of(a, p), edge = edge_of(a, p);
            here[p] = j >= 0 ? scale[i] * scale[j] : 0;
            if (edge >= 0) val[edge] = here[p];
        }
    }
    return FMM_OK;
}

/* The gradient of a mean over rows, before it is spread over the entries. */
typedef struct mean_task {
    const int64_t *ptr;
    const fmm_dense *g;
    float *out;
} mean_task;

static void mean_rows(int64_t first, int64_t last, void *ctx)
{
    const mean_task *t = ctx;
    const fmm_dense *g = t->g;
    for (int64_t i = first; i < last; i++) {
        /* ptr may hold anything, and a difference of unsigned numbers is defined for all. */
        const int64_t entries = (int64_t)((uint64_t)t->ptr[i + 1] - (uint64_t)t->ptr[i]);
        /* The gradient of an empty row reaches no entry, but its memory is written too. */
        const float count = entries > 1 ? (float)entries : 1;
        for (int64_t h = 0; h < g->heads; h++) {
            const float *in = (const float *)g->data + i * g->row_stride + h * g->head_stride;
            float *out = t->out + (i * g->heads + h) * g->feat;
            for (int64_t c = 0; c < g->feat; c++) out[c] = in[c] / count;
        }
    }
}

fmm_status fmm_mean_back(const fmm_exec *exec, int64_t rows, const int64_t *ptr, const fmm_dense *g,
                         float *out)
{
    TRY(fmm_check_dense("mean_back", "g", g));
    VALID(g->dtype == FMM_F32 && g->rows == rows,
          "mean_back: g is %s with %" PRId64 " rows, should be f32 with %" PRId64,
          fmm_dtype_name(g->dtype), g->rows, rows);
    const int64_t numbers = rows * g->heads * g->feat;
    if (!numbers) return FMM_OK; /* there may be no heads */
    if (exec->device == FMM_CUDA) return fmm_cuda_mean_back(exec, ptr, g, out);
    mean_task task = {.ptr = ptr, .g = g, .out = out};
    if (numbers < FEW_NUMBERS)
        mean_rows(0, rows, &task);
    else
        fmm_parallel(exec, rows, mean_rows, &task);
    return FMM_OK;
}
