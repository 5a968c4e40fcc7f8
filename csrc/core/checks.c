/* Argument checks of all operators, and the check of a CSR's content.
 *
 * Sizes are compared, never subtracted or multiplied before it is known that the result fits, so no
 * input can make a check overflow. The content check proves ptr wholly before it reads idx. */
#include "checks.h"

#include <inttypes.h>

/* No memory holds more elements of ptr and idx than this, so rows + nnz fits in int64, and so do
 * the bounds that are computed from it. */
#define MOST (INT64_MAX / 32)

const fmm_dense fmm_absent = {.heads = 1, .feat = 1};

fmm_status fmm_check_matrix(const char *op, const fmm_exec *exec, const fmm_csr *a)
{
    VALID(exec && a, "%s: exec and matrix must be given", op);
    VALID((unsigned)exec->device <= FMM_CUDA, "%s: no device %d", op, (int)exec->device);
    VALID(a->rows >= 0 && a->nnz >= 0 && a->rows <= MOST && a->nnz <= MOST,
          "%s: matrix of %" PRId64 " rows and %" PRId64 " entries", op, a->rows, a->nnz);
    VALID(a->cols >= 0 && a->cols <= INT32_MAX, "%s: %" PRId64 " columns are outside [0, 2^31)", op,
          a->cols);
    VALID((unsigned)a->rows_are <= FMM_ROWS_NEITHER,
          "%s: rows_are is %d, which says nothing of rows", op, (int)a->rows_are);
    const fmm_whole *w = &a->whole;
    VALID(w->rows >= 0 && w->nnz >= 0 && w->rows <= MOST && w->nnz <= MOST,
          "%s: a part of a matrix of %" PRId64 " rows and %" PRId64 " entries", op, w->rows,
          w->nnz);
    VALID(a->ptr, "%s: matrix without ptr", op);
    VALID(a->idx || a->nnz == 0, "%s: matrix without idx", op);
    return FMM_OK;
}

/* |size * stride| summed over the axes, or failure past int64: the reach of a view in elements. */
static bool reach(const fmm_dense *d, int64_t *elements)
{
    int64_t r = 0, h = 0;
    if (d->rows > 0 && __builtin_mul_overflow(d->rows - 1, d->row_stride, &r)) return false;
    if (d->heads > 0 && __builtin_mul_overflow(d->heads - 1, d->head_stride, &h)) return false;
    return !__builtin_add_overflow(r, h, elements) &&
           !__builtin_add_overflow(*elements, d->feat, elements) && *elements <= INT64_MAX / 8;
}

/* Rows may share memory, so a view may have more elements than its memory. Workspaces are sized by
 * the number of elements, and some by that of one row, so no size counts as less than 1. */
static bool countable(const fmm_dense *d)
{
    const int64_t rows = d->rows ? d->rows : 1, feat = d->feat ? d->feat : 1;
    int64_t count;
    return !__builtin_mul_overflow(rows, d->heads, &count) &&
           !__builtin_mul_overflow(count, feat, &count) && count <= INT64_MAX / 8;
}

fmm_status fmm_check_dense(const char *op, const char *name, const fmm_dense *d)
{
    VALID(d, "%s: %s must be given", op, name);
    VALID((unsigned)d->dtype < FMM_DTYPES, "%s: %s has dtype number %d", op, name, (int)d->dtype);
    VALID(d->rows >= 0 && d->heads >= 0 && d->feat >= 0 && d->row_stride >= 0 &&
              d->head_stride >= 0,
          "%s: %s has sizes [%" PRId64 ", %" PRId64 ", %" PRId64 "] and strides %" PRId64
          ", %" PRId64,
          op, name, d->rows, d->heads, d->feat, d->row_stride, d->head_stride);
    int64_t elements;
    VALID(reach(d, &elements) && countable(d),
          "%s: %s of [%" PRId64 ", %" PRId64 ", %" PRId64 "] does not fit in 64 bits", op, name,
          d->rows, d->heads, d->feat);
    VALID(d->data || d->rows == 0 || d->heads == 0 || d->feat == 0, "%s: %s has no data", op, name);
    return FMM_OK;
}

fmm_status fmm_check_shape(const char *op, const char *name, const fmm_dense *d, fmm_dtype dtype,
                           int64_t rows, int64_t heads, int64_t feat)
{
    TRY(fmm_check_dense(op, name, d));
    VALID(d->rows == rows && d->heads == heads && d->feat == feat && d->dtype == dtype,
          "%s: %s is %s [%" PRId64 ", %" PRId64 ", %" PRId64 "], should be %s [%" PRId64
          ", %" PRId64 ", %" PRId64 "]",
          op, name, fmm_dtype_name(d->dtype), d->rows, d->heads, d->feat, fmm_dtype_name(dtype),
          rows, heads, feat);
    return FMM_OK;
}

fmm_status fmm_check_values(const char *op, const fmm_csr *a, const fmm_dense *val, int64_t heads)
{
    if (!val) return FMM_OK;
    TRY(fmm_check_dense(op, "val", val));
    if (!fmm_given(val)) return FMM_OK;
    VALID(val->rows == a->nnz, "%s: val has %" PRId64 " values for %" PRId64 " entries", op,
          val->rows, a->nnz);
    VALID(val->feat == 1 && (val->heads == 1 || val->heads == heads),
          "%s: val has %" PRId64 " heads of %" PRId64 " features, 1 or %" PRId64
          " heads of 1 are needed",
          op, val->heads, val->feat, heads);
    return FMM_OK;
}

/* Whether n rows of feat elements, which begin `stride` apart, do not overlap, and m such blocks,
 * which begin `apart` apart, neither. */
static bool nested(int64_t feat, int64_t n, int64_t stride, int64_t m, int64_t apart)
{
    return (n <= 1 || stride >= feat) && (m <= 1 || apart >= (n - 1) * stride + feat);
}

fmm_status fmm_check_output(const char *op, const char *name, const fmm_dense *out)
{
    const bool empty = !out->rows || !out->heads || !out->feat;
    VALID(empty || nested(out->feat, out->heads, out->head_stride, out->rows, out->row_stride) ||
              nested(out->feat, out->rows, out->row_stride, out->heads, out->head_stride),
          "%s: the output %s overlaps itself: [%" PRId64 ", %" PRId64 ", %" PRId64
          "] with strides %" PRId64 ", %" PRId64,
          op, name, out->rows, out->heads, out->feat, out->row_stride, out->head_stride);
    return FMM_OK;
}

/* Views are compared from their first byte to their last, so that two whose rows interlock without
 * a common byte are refused too. */
fmm_status fmm_check_apart(const char *op, const fmm_dense *out, const char *name,
                           const fmm_dense *in)
{
    int64_t m, n;
    if (!in || !in->data || !out->data || !reach(out, &m) || !reach(in, &n)) return FMM_OK;
    if (!out->rows || !out->heads || !in->rows || !in->heads || m <= 0 || n <= 0) return FMM_OK;
    const uintptr_t o = (uintptr_t)out->data, i = (uintptr_t)in->data;
    const uintptr_t o_end = o + (uintptr_t)m * fmm_dtype_bytes(out->dtype);
    const uintptr_t i_end = i + (uintptr_t)n * fmm_dtype_bytes(in->dtype);
    VALID(o_end <= i || i_end <= o, "%s: the output overlaps %s", op, name);
    return FMM_OK;
}

fmm_status fmm_check_workspace(const char *op, const fmm_exec *exec, size_t bytes)
{
    VALID(exec->workspace_bytes >= bytes && (exec->workspace || !bytes),
          "%s: workspace of %zu bytes, %zu are needed", op, exec->workspace_bytes, bytes);
    VALID((uintptr_t)exec->workspace % 16 == 0, "%s: the workspace must be aligned to 16 bytes",
          op);
    return FMM_OK;
}

/* What FMM_CSR_FAULT put in the word. */
fmm_csr_code fmm_csr_report(uint64_t report, int64_t *where)
{
    if (report == UINT64_MAX) return FMM_CSR_OK;
    *where = (int64_t)(report << 1 >> 4);
    return (fmm_csr_code)(report & 7);
}

/* In the order of report words, so that the first fault that is found is the one to report. */
static uint64_t check_on_cpu(const fmm_csr *a)
{
    if (a->ptr[0] != 0) return FMM_CSR_FAULT(FMM_CSR_PTR_FIRST, 0);
    for (int64_t i = 1; i <= a->rows; i++)
        if (a->ptr[i] < a->ptr[i - 1]) return FMM_CSR_FAULT(FMM_CSR_PTR_FALLS, i);
    if (a->ptr[a->rows] != a->nnz) return FMM_CSR_FAULT(FMM_CSR_PTR_LAST, a->rows);

    /* Branch-free over blocks, so that it runs at the speed of memory; the culprit is searched for
     * only in the block that has one. */
    enum { BLOCK = 4096 };
    const uint32_t cols = (uint32_t)a->cols;
    for (int64_t begin = 0; begin < a->nnz; begin += BLOCK) {
        const int64_t end = begin + BLOCK < a->nnz ? begin + BLOCK : a->nnz;
        uint32_t bad = 0;
        for (int64_t p = begin; p < end; p++) bad |= (uint32_t)((uint32_t)a->idx[p] >= cols);
        for (int64_t p = begin; bad && p < end; p++)
            if ((uint32_t)a->idx[p] >= cols) return FMM_CSR_FAULT(FMM_CSR_IDX, p);
    }
    return UINT64_MAX;
}

fmm_status fmm_csr_check(const fmm_exec *exec, const fmm_csr *a, uint64_t *report)
{
    TRY(fmm_check_matrix("csr_check", exec, a));
    VALID(report, "csr_check: report must be given");
    if (exec->device == FMM_CUDA) return fmm_cuda_csr_check(exec, a, report);
    *report = check_on_cpu(a);
    return FMM_OK;
}

size_t fmm_plan_bytes(const fmm_exec *exec, const fmm_csr *a)
{
    return exec->device == FMM_CUDA ? fmm_cuda_plan_bytes(a) : 0;
}

fmm_status fmm_plan_workspace(const fmm_exec *exec, const fmm_csr *a, size_t *bytes)
{
    *bytes = 0;
    TRY(fmm_check_matrix("plan", exec, a));
    return exec->device == FMM_CUDA ? fmm_cuda_plan_workspace(a, bytes) : FMM_OK;
}

fmm_status fmm_plan(const fmm_exec *exec, const fmm_csr *a, void *plan)
{
    size_t bytes;
    TRY(fmm_plan_workspace(exec, a, &bytes));
    TRY(fmm_check_workspace("plan", exec, bytes));
    return exec->device == FMM_CUDA ? fmm_cuda_plan(exec, a, plan) : FMM_OK;
}
