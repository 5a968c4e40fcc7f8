/* SpMV by cuSPARSE: every algorithm that it has for CSR, COO and sliced ELL. What it does not take
 * as it is gets made in the workspace, as part of the call:
 *
 *     workspace   | ptr, or SELL's offsets, as int32 | values | sums | buffer of cuSPARSE |
 *                                                      |        |
 *                   gathered, if they are not of x's type       SELL's results, in the order of
 *                   in the order of storage                     slices, before they go home
 *
 * It computes y = alpha A x + beta y in place, so y_in is copied to y before. */
#include "cuda.h"
#include "cuda_vendor.h"

/* One algorithm of the list in cuda_vendor.h. */
typedef struct variant {
    fmm_format format;
    int algorithm;
    bool preprocess;
} variant;

/* What is multiplied: entries and their values; of SELL the slices, whose offsets are ptr. */
typedef struct parts {
    fmm_csr entries;
    const fmm_dense *val;
    bool plain; /* the values lie as cuSPARSE takes them */
    size_t value_at, sum_at, buffer_at;
} parts;

/* Where each part of the workspace begins. `supports`, `workspace` and `run` all ask here, so they
 * cannot disagree about what is copied. */
static parts parts_of(const fmm_call *call, variant v)
{
    const fmm_spmv_matrix *m = fmm_spmv_of(call)->matrix;
    parts s = {.entries = *call->a, .val = call->val};
    const bool sell = v.format == FMM_FORMAT_SELL;
    if (sell) {
        s.val = m->padded_val;
        s.entries = (fmm_csr){.rows = (call->a->rows + m->width - 1) / m->width,
                              .cols = call->a->cols,
                              .nnz = m->stored,
                              .ptr = m->offsets,
                              .idx = m->padded_idx};
    }
    const size_t each = fmm_dtype_bytes(call->x->dtype);
    s.plain = s.val->data && !s.entries.eid && s.val->dtype == call->x->dtype &&
              (s.val->rows <= 1 || s.val->row_stride == 1) && (uintptr_t)s.val->data % 16 == 0;
    /* COO has no ptr. cuSPARSE wants that of CSR and SELL's offsets in 32 bits, ours have 64. */
    if (v.format != FMM_FORMAT_COO)
        s.value_at = fmm_vendor_part(s.entries.rows + 1, sizeof(int32_t));
    s.sum_at = s.value_at + (s.plain ? 0 : fmm_vendor_part(s.entries.nnz, each));
    s.buffer_at = s.sum_at + (sell ? fmm_vendor_part(call->a->rows, each > 4 ? 8 : 4) : 0);
    return s;
}

/* Descriptors of one product, and its scalars, of the type that it is computed in: cuSPARSE reads
 * alpha and beta as it reads sums, in double for f64 and in float for all other types. */
typedef struct product {
    void *handle, *a, *x, *y;
    union {
        double f64;
        float f32;
    } alpha, beta;
    int compute;
} product;

/* Descriptors that were not made yet are NULL, so this also ends a call that failed half way. */
static void destroy(const product *p)
{
    if (p->a) fmm_cusparse.cusparseDestroySpMat(p->a);
    if (p->x) fmm_cusparse.cusparseDestroyDnVec(p->x);
    if (p->y) fmm_cusparse.cusparseDestroyDnVec(p->y);
}

#define TRY_CUSPARSE(call) TRY(fmm_cusparse_said("spmv", call))

/* Descriptors hold addresses and sizes, and making them reads nothing of the matrix. So base is the
 * workspace, or any address while only its size is asked for. A descriptor that cannot be made ends
 * the call; what was made before it, `destroy` gives back. */
static fmm_status describe(product *p, const parts *s, variant v, const fmm_call *call, char *base)
{
    const fmm_spmv_operands *own = fmm_spmv_of(call);
    const fmm_spmv_matrix *m = own->matrix;
    const fmm_csr *e = &s->entries;
    const fmm_dtype dtype = call->x->dtype, sums = dtype == FMM_F64 ? FMM_F64 : FMM_F32;
    const int type = fmm_cusparse_type[dtype];
    const bool sell = v.format == FMM_FORMAT_SELL;
    void *idx = (void *)(uintptr_t)e->idx, *row = (void *)(uintptr_t)m->row; /* it has no const */
    void *values = s->plain ? s->val->data : base + s->value_at;
    /* SELL's sums come in the order of slices; alpha and beta are applied when they go home. */
    const double alpha = sell ? 1 : own->alpha, beta = sell ? 0 : own->beta;
    if (sums == FMM_F64)
        p->alpha.f64 = alpha, p->beta.f64 = beta;
    else
        p->alpha.f32 = (float)alpha, p->beta.f32 = (float)beta;
    p->compute = fmm_cusparse_type[sums];
    if (sell)
        TRY_CUSPARSE(fmm_cusparse.cusparseCreateSlicedEll(
            &p->a, call->a->rows, e->cols, e->nnz, e->nnz, m->width, base, idx, values,
            CUSPARSE_INDEX_32, CUSPARSE_INDEX_32, CUSPARSE_BASE_ZERO, type));
    else if (v.format == FMM_FORMAT_COO)
        TRY_CUSPARSE(fmm_cusparse.cusparseCreateCoo(&p->a, e->rows, e->cols, e->nnz, row, idx,
                                                    values, CUSPARSE_INDEX_32, CUSPARSE_BASE_ZERO,
                                                    type));
    else
        TRY_CUSPARSE(fmm_cusparse.cusparseCreateCsr(&p->a, e->rows, e->cols, e->nnz, base, idx,
                                                    values, CUSPARSE_INDEX_32, CUSPARSE_INDEX_32,
                                                    CUSPARSE_BASE_ZERO, type));
    TRY_CUSPARSE(fmm_cusparse.cusparseCreateDnVec(&p->x, e->cols, call->x->data, type));
    TRY_CUSPARSE(fmm_cusparse.cusparseCreateDnVec(
        &p->y, call->a->rows, sell ? base + s->sum_at : call->y->data, sell ? p->compute : type));
    return FMM_OK;
}

/* The three steps of cuSPARSE take the same arguments but for the last. */
#define APPLY(step, p, v, last)                                                                    \
    fmm_cusparse.step((p)->handle, VENDOR_PLAIN, &(p)->alpha, (p)->a, (p)->x, &(p)->beta, (p)->y,  \
                      (p)->compute, (v).algorithm, last)

/* cuSPARSE says how large its buffer is once it knows the product. The library missing is run's
 * error to give: here it only has no needs. */
static size_t workspace(const fmm_call *call, variant v)
{
    const parts s = parts_of(call, v);
    product p = {0};
    size_t buffer = 0;
    int device, before;
    if (fmm_vendor_enter_at("spmv", call->x->data, &device, &before) != FMM_OK) return s.buffer_at;
    if (fmm_cusparse_handle("spmv", device, NULL, &p.handle) == FMM_OK &&
        describe(&p, &s, v, call, call->x->data) == FMM_OK &&
        APPLY(cusparseSpMV_bufferSize, &p, v, &buffer) != 0)
        buffer = 0;
    destroy(&p);
    fmm_vendor_return(before);
    return s.buffer_at + buffer;
}

/* The order matters: values and ptr are in the workspace before a descriptor points there, and y
 * holds y_in before it is multiplied by beta. All run on the caller's stream, so nothing waits. */
static fmm_status multiply(const fmm_exec *exec, const fmm_call *call, variant v)
{
    const parts s = parts_of(call, v);
    const fmm_dense *in = fmm_spmv_of(call)->y_in;
    char *base = exec->workspace;
    product p = {0};
    TRY(fmm_cusparse_handle("spmv", exec->index, exec->stream, &p.handle));
    if (v.format != FMM_FORMAT_COO) fmm_vendor_ptr(exec, &s.entries, (int32_t *)base);
    if (!s.plain) fmm_vendor_values(exec, &s.entries, s.val, 0, call->x->dtype, base + s.value_at);
    if (in && v.format != FMM_FORMAT_SELL) fmm_vendor_copy(exec, in, call->y);
    fmm_status status = describe(&p, &s, v, call, base);
    if (status == FMM_OK && v.preprocess)
        status =
            fmm_cusparse_said("spmv", APPLY(cusparseSpMV_preprocess, &p, v, base + s.buffer_at));
    if (status == FMM_OK)
        status = fmm_cusparse_said("spmv", APPLY(cusparseSpMV, &p, v, base + s.buffer_at));
    destroy(&p);
    if (status == FMM_OK && v.format == FMM_FORMAT_SELL)
        fmm_spmv_sell_place(exec, call, base + s.sum_at);
    return status;
}

/* The call's device is made the current one, and the one before is current again at the end, also
 * after an error. */
static fmm_status run(const fmm_exec *exec, const fmm_call *call, variant v)
{
    int before;
    TRY(fmm_vendor_enter("spmv", exec, &before));
    return fmm_vendor_leave("spmv", exec, before, multiply(exec, call, v));
}

/* Whether cuSPARSE reads a vector as it lies. */
static bool takes(const fmm_dense *d)
{
    return (d->rows <= 1 || d->row_stride == 1) && (uintptr_t)d->data % 16 == 0;
}

/* Vectors without gaps, at 16 bytes as its vector loads want them; 32-bit sizes; some entries, and
 * no more than places; values that do not lose when they get x's type. */
static bool supports(const fmm_call *call, variant v)
{
    const fmm_spmv_operands *own = fmm_spmv_of(call);
    if (own->matrix->format != v.format || !call->a->rows || !call->a->cols) return false;
    const parts s = parts_of(call, v);
    const fmm_csr *e = &s.entries;
    const fmm_dtype dtype = call->x->dtype;
    return call->a->rows < INT32_MAX && e->nnz > 0 && e->nnz < INT32_MAX &&
           (v.format == FMM_FORMAT_SELL || e->nnz <= e->rows * e->cols) &&
           (!s.val->data || s.val->dtype == dtype || fmm_dtype_bytes(dtype) > 2) &&
           takes(call->x) && takes(call->y) && (!own->y_in || takes(own->y_in));
}

/* The registry knows functions of a call alone, so each algorithm gets three that add its variant.
 */
#define DEFINE(id, what, format, algorithm, preprocess, bits)                                      \
    bool fmm_spmv_cusparse_##what##_supports(const fmm_call *call)                                 \
    {                                                                                              \
        return supports(call, (variant){format, algorithm, preprocess});                           \
    }                                                                                              \
    size_t fmm_spmv_cusparse_##what##_workspace(const fmm_call *call)                              \
    {                                                                                              \
        return workspace(call, (variant){format, algorithm, preprocess});                          \
    }                                                                                              \
    fmm_status fmm_spmv_cusparse_##what(const fmm_exec *exec, const fmm_call *call)                \
    {                                                                                              \
        return run(exec, call, (variant){format, algorithm, preprocess});                          \
    }
FMM_CUSPARSE_SPMV_LIST(DEFINE)
