/* cuBLAS as an algorithm of an operator: the sparse matrix as a dense one, in f32 or f64.
 *
 * What sparsity must beat: it costs rows * cols whatever nnz is, so it is limited to DENSE_MAX
 * elements. A zero of A times a NaN or infinity of x is NaN here, where a sparse product skips it.
 * cuBLAS is column-major, in which our row-major operands are their transposes: y^T = x^T A^T.
 * Its scratch memory is part of our workspace; single precision stays that, without TF32. */
#include "vendor.h"

enum { SCRATCH = 32 << 20 /* what it asks for on 9.0 */ };
static const int64_t DENSE_MAX = INT64_C(1) << 30;

static struct {
    FMM_CUBLAS_API(FMM_VENDOR_SLOT)
} api;
static const char *const names[] = {FMM_CUBLAS_API(FMM_VENDOR_NAME) NULL};

static fmm_vendor_library library = {
    .label = "cuBLAS",
    .package = "nvidia-cublas",
    .files = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"},
    .names = names,
    .slots = &api,
};

#define TRY_CUBLAS(op, call)                                                                       \
    do {                                                                                           \
        const int try_status = (call);                                                             \
        REQUIRE(try_status == 0, FMM_DEVICE_ERROR, "%s: cuBLAS: %s", op,                           \
                api.cublasGetStatusString(try_status));                                            \
    } while (0)

/* The thread's handle for the call's device and stream, with its scratch in our workspace. */
static fmm_status handle_of(const char *op, const fmm_exec *exec, void **handle)
{
    static _Thread_local void *handles[VENDOR_DEVICES]; /* this thread's; see vendor.h */
    REQUIRE(exec->index < VENDOR_DEVICES, FMM_UNSUPPORTED,
            "%s: cuBLAS on CUDA device %d; at most %d", op, exec->index, VENDOR_DEVICES);
    if (!fmm_vendor_bind(op, &library)) return FMM_UNSUPPORTED;
    if (!handles[exec->index]) TRY_CUBLAS(op, api.cublasCreate_v2(&handles[exec->index]));
    *handle = handles[exec->index];
    /* In this order, since cuBLAS drops its workspace when the stream changes. */
    TRY_CUBLAS(op, api.cublasSetStream_v2(*handle, exec->stream));
    TRY_CUBLAS(op, api.cublasSetWorkspace_v2(*handle, exec->workspace, SCRATCH));
    return FMM_OK;
}

/* Its sizes are ints, and its rows must not overlap. */
static bool takes(const fmm_dense *d)
{
    return (d->rows <= 1 || d->row_stride >= d->feat) && d->row_stride <= INT32_MAX &&
           d->feat <= INT32_MAX;
}

bool fmm_cublas_supports(const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_dense *x = call->x;
    return call->reduce == FMM_SUM && (x->dtype == FMM_F32 || x->dtype == FMM_F64) &&
           a->rows <= INT32_MAX && a->cols <= INT32_MAX &&
           (!a->cols || a->rows <= DENSE_MAX / a->cols) && takes(x) &&
           takes(call->b ? call->b : call->y);
}

size_t fmm_cublas_workspace(const fmm_call *call)
{
    if (fmm_vendor_empty(call)) return 0;
    return SCRATCH + (size_t)(call->a->rows * call->a->cols) * fmm_dtype_bytes(call->x->dtype);
}

/* A single row may have any leading dimension that is at least its length. */
fmm_cublas_matrix fmm_cublas_view(const fmm_dense *d, int64_t head)
{
    return (fmm_cublas_matrix){.data = (char *)d->data +
                                       (size_t)(head * d->head_stride) * fmm_dtype_bytes(d->dtype),
                               .ld = (int)(d->row_stride > d->feat ? d->row_stride : d->feat)};
}

fmm_status fmm_cublas_multiply(const char *op, void *handle, fmm_dtype dtype, int op_a, int64_t m,
                               int64_t n, int64_t k, fmm_cublas_matrix a, fmm_cublas_matrix b,
                               fmm_cublas_matrix c)
{
    const double one = 1, zero = 0;
    const float one_f32 = 1, zero_f32 = 0;
    if (dtype == FMM_F64)
        TRY_CUBLAS(op, api.cublasDgemm_v2(handle, op_a, VENDOR_PLAIN, (int)m, (int)n, (int)k, &one,
                                          a.data, a.ld, b.data, b.ld, &zero, c.data, c.ld));
    else
        TRY_CUBLAS(op,
                   api.cublasSgemm_v2(handle, op_a, VENDOR_PLAIN, (int)m, (int)n, (int)k, &one_f32,
                                      a.data, a.ld, b.data, b.ld, &zero_f32, c.data, c.ld));
    return FMM_OK;
}

/* One head after the other: each makes A dense with its own values, and multiplies. */
fmm_status fmm_cublas_run(const char *op, const fmm_exec *exec, const fmm_call *call,
                          fmm_cublas_head *one)
{
    int before;
    void *handle = NULL;
    TRY(fmm_vendor_enter(op, exec, &before));
    fmm_status status = FMM_OK;
    if (fmm_vendor_empty(call))
        fmm_vendor_zero(exec, call->y);
    else
        status = handle_of(op, exec, &handle);
    for (int64_t h = 0; status == FMM_OK && !fmm_vendor_empty(call) && h < call->x->heads; h++)
        status = one(exec, call, handle, h, (char *)exec->workspace + SCRATCH);
    return fmm_vendor_leave(op, exec, before, status);
}
