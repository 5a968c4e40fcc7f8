/* cuSPARSE as algorithms of an operator: descriptors of its operands, the workspace, the products.
 *
 * Its indices are of one type, so ptr is narrowed to int32 in the workspace, COO gets the row of
 * every entry, and values that are not already as it wants them (absent, of another type, in
 * another order) are gathered there: those passes are part of the call, since a user would pay for
 * them too. Heads that share their values and lie side by side are one wide product; others are
 * taken one by one.
 *
 * A `_preprocess` entry analyses the structure in every call. cuSPARSE means such an analysis to
 * serve many calls, but a call here keeps nothing of earlier ones.
 *
 * BSR and blocked ELL, its other formats, are not what a general CSR matrix can be cast into. */
#include "vendor.h"

enum { ROW_MAJOR = 2 }; /* of cusparse.h */
const int fmm_cusparse_type[] = {[FMM_F32] = 0, [FMM_F64] = 1, [FMM_F16] = 2, [FMM_BF16] = 14};

fmm_cusparse_functions fmm_cusparse;
static const char *const names[] = {FMM_CUSPARSE_API(FMM_VENDOR_NAME) NULL};

static fmm_vendor_library library = {
    .label = "cuSPARSE",
    .package = "nvidia-cusparse",
    .files = {"libcusparse.so.12", "libcusparse.so"},
    .names = names,
    .slots = &fmm_cusparse,
};

fmm_status fmm_cusparse_said(const char *op, int status)
{
    REQUIRE(status == 0, FMM_DEVICE_ERROR, "%s: cuSPARSE: %s", op,
            fmm_cusparse.cusparseGetErrorString(status));
    return FMM_OK;
}
#define TRY_CUSPARSE(op, call) TRY(fmm_cusparse_said(op, call))

fmm_status fmm_cusparse_handle(const char *op, int device, void *stream, void **handle)
{
    static _Thread_local void *handles[VENDOR_DEVICES]; /* this thread's; see vendor.h */
    REQUIRE(device >= 0 && device < VENDOR_DEVICES, FMM_UNSUPPORTED,
            "%s: cuSPARSE on CUDA device %d; at most %d", op, device, VENDOR_DEVICES);
    if (!fmm_vendor_bind(op, &library)) return FMM_UNSUPPORTED;
    if (!handles[device]) TRY_CUSPARSE(op, fmm_cusparse.cusparseCreate(&handles[device]));
    *handle = handles[device];
    TRY_CUSPARSE(op, fmm_cusparse.cusparseSetStream(*handle, stream));
    return FMM_OK;
}

/* One product: heads that share values and lie side by side are columns of it. */
typedef struct shape {
    const fmm_cusparse_calls *calls;
    const char *op;
    int64_t products, width;
    bool direct;                /* values (or results) lie as cuSPARSE takes them */
    size_t value_at, buffer_at; /* parts of the workspace; the index is the first */
} shape;

/* val, or e, as a plain vector of x's type in the order of storage. */
static bool is_plain(const fmm_csr *a, const fmm_dense *v, const fmm_dense *x)
{
    return v->data && !a->eid && v->heads == 1 && v->dtype == x->dtype &&
           (v->rows <= 1 || v->row_stride == 1) && (uintptr_t)v->data % 16 == 0;
}

/* How the call becomes products. The workspace holds the index, the values where they are not
 * `direct`, and cuSPARSE's own buffer, one behind the other. */
static shape shape_of(const fmm_cusparse_calls *calls, const fmm_call *call, fmm_cusparse_variant v)
{
    const fmm_dense *x = call->x, *y = call->y, *val = call->val;
    shape s = {.calls = calls, .op = calls->op};
    const bool side = x->heads == 1 || (x->head_stride == x->feat && y->head_stride == y->feat);
    const bool wide = !calls->edges && side && (!val->data || val->heads == 1);
    s.products = wide ? 1 : x->heads;
    s.width = wide ? x->heads * x->feat : x->feat;
    s.direct = calls->edges ? !val->data && is_plain(call->a, y, x) : is_plain(call->a, val, x);
    s.value_at = fmm_vendor_part(v.coo ? call->a->nnz : call->a->rows + 1, sizeof(int32_t));
    s.buffer_at = s.value_at;
    if (!s.direct) s.buffer_at += fmm_vendor_part(call->a->nnz, fmm_dtype_bytes(x->dtype));
    return s;
}

/* Descriptors and scalars of one product: left is x; right is b where the call has one, else y. */
typedef struct product {
    void *handle, *sparse, *left, *right;
    double wide[2];
    float narrow[2];
    const void *alpha, *beta;
    int compute;
} product;

/* Frees those descriptors that were made. */
static void destroy(product *p)
{
    if (p->sparse) fmm_cusparse.cusparseDestroySpMat(p->sparse);
    if (p->left) fmm_cusparse.cusparseDestroyDnMat(p->left);
    if (p->right) fmm_cusparse.cusparseDestroyDnMat(p->right);
}

/* One head of an operand, or all of them as one wide matrix. */
static fmm_status describe_dense(const shape *s, const fmm_dense *d, int64_t head, void **matrix)
{
    char *at = (char *)d->data + (size_t)(head * d->head_stride) * fmm_dtype_bytes(d->dtype);
    const int64_t ld = d->row_stride > s->width ? d->row_stride : s->width; /* of one row: any */
    TRY_CUSPARSE(s->op, fmm_cusparse.cusparseCreateDnMat(matrix, d->rows, s->width, ld, at,
                                                         fmm_cusparse_type[d->dtype], ROW_MAJOR));
    return FMM_OK;
}

/* index and values: in the workspace, or any address while only sizes are asked for. */
static fmm_status describe(product *p, const shape *s, fmm_cusparse_variant v, const fmm_call *call,
                           int64_t head, void *index, void *values)
{
    const fmm_csr *a = call->a;
    const fmm_dtype dtype = call->x->dtype;
    void *idx = (void *)(uintptr_t)a->idx; /* cuSPARSE's const variants came late */
    p->wide[0] = p->narrow[0] = 1;         /* alpha; beta is the 0 behind it */
    p->alpha = dtype == FMM_F64 ? (void *)&p->wide[0] : (void *)&p->narrow[0];
    p->beta = dtype == FMM_F64 ? (void *)&p->wide[1] : (void *)&p->narrow[1];
    p->compute = fmm_cusparse_type[dtype == FMM_F64 ? FMM_F64 : FMM_F32];
    if (v.coo)
        TRY_CUSPARSE(s->op, fmm_cusparse.cusparseCreateCoo(
                                &p->sparse, a->rows, a->cols, a->nnz, index, idx, values,
                                CUSPARSE_INDEX_32, CUSPARSE_BASE_ZERO, fmm_cusparse_type[dtype]));
    else
        TRY_CUSPARSE(s->op, fmm_cusparse.cusparseCreateCsr(&p->sparse, a->rows, a->cols, a->nnz,
                                                           index, idx, values, CUSPARSE_INDEX_32,
                                                           CUSPARSE_INDEX_32, CUSPARSE_BASE_ZERO,
                                                           fmm_cusparse_type[dtype]));
    TRY(describe_dense(s, call->x, head, &p->left));
    return describe_dense(s, call->b ? call->b : call->y, head, &p->right);
}

/* c = a b of the sparse matrix and x, or of x and b's transpose where it is sparse. */
#define APPLY(calls, step, p, v, last)                                                             \
    (*(calls)->step)((p)->handle, VENDOR_PLAIN, (calls)->edges ? VENDOR_TRANSPOSED : VENDOR_PLAIN, \
                     (p)->alpha, (calls)->edges ? (p)->left : (p)->sparse,                         \
                     (calls)->edges ? (p)->right : (p)->left, (p)->beta,                           \
                     (calls)->edges ? (p)->sparse : (p)->right, (p)->compute, (v).algorithm, last)

/* Without the library, the call itself fails and says so; here it needs nothing. */
size_t fmm_cusparse_workspace(const fmm_cusparse_calls *calls, const fmm_call *call,
                              fmm_cusparse_variant v)
{
    if (fmm_vendor_empty(call)) return 0;
    const shape s = shape_of(calls, call, v);
    product p = {0};
    size_t buffer = 0;
    int device, before;
    if (fmm_vendor_enter_at(s.op, call->x->data, &device, &before) != FMM_OK) return s.buffer_at;
    void *any = (void *)(uintptr_t)call->a->ptr;
    if (fmm_cusparse_handle(s.op, device, NULL, &p.handle) == FMM_OK &&
        describe(&p, &s, v, call, 0, any, any) == FMM_OK &&
        APPLY(calls, bytes, &p, v, &buffer) != 0)
        buffer = 0;
    destroy(&p);
    fmm_vendor_return(before);
    return s.buffer_at + buffer;
}

/* Values are gathered before the product, or results scattered behind it, unless they lie so that
 * cuSPARSE can take them. */
static fmm_status one_product(const fmm_exec *exec, const fmm_call *call, const shape *s,
                              fmm_cusparse_variant v, void *handle, int64_t head)
{
    char *base = exec->workspace;
    const fmm_cusparse_calls *calls = s->calls;
    const fmm_dense *plain = calls->edges ? call->y : call->val;
    void *values = s->direct ? plain->data : base + s->value_at;
    void *buffer = base + s->buffer_at;
    if (!s->direct && !calls->edges)
        fmm_vendor_values(exec, call->a, call->val, head, call->x->dtype, values);
    product p = {.handle = handle};
    fmm_status status = describe(&p, s, v, call, head, base, values);
    if (status == FMM_OK && v.preprocess)
        status = fmm_cusparse_said(s->op, APPLY(calls, preprocess, &p, v, buffer));
    if (status == FMM_OK) status = fmm_cusparse_said(s->op, APPLY(calls, multiply, &p, v, buffer));
    destroy(&p);
    if (status == FMM_OK && calls->edges && !s->direct) fmm_vendor_edges(exec, call, head, values);
    return status;
}

/* The index is made once, for all products of the call. */
static fmm_status products(const fmm_cusparse_calls *calls, const fmm_exec *exec,
                           const fmm_call *call, fmm_cusparse_variant v)
{
    const shape s = shape_of(calls, call, v);
    void *handle;
    if (fmm_vendor_empty(call)) return fmm_vendor_zero(exec, call->y), FMM_OK;
    TRY(fmm_cusparse_handle(s.op, exec->index, exec->stream, &handle));
    if (v.coo)
        fmm_vendor_rows(exec, call->a, exec->workspace);
    else
        fmm_vendor_ptr(exec, call->a, exec->workspace);
    for (int64_t head = 0; head < s.products; head++)
        TRY(one_product(exec, call, &s, v, handle, head));
    return FMM_OK;
}

fmm_status fmm_cusparse_run(const fmm_cusparse_calls *calls, const fmm_exec *exec,
                            const fmm_call *call, fmm_cusparse_variant v)
{
    int before;
    TRY(fmm_vendor_enter(calls->op, exec, &before));
    return fmm_vendor_leave(calls->op, exec, before, products(calls, exec, call, v));
}

/* Whether an operand lies as it wants them; `apart` where each head begins a matrix of its own. */
static bool takes(const fmm_dense *d, int64_t width, bool apart)
{
    const size_t each = fmm_dtype_bytes(d->dtype);
    return (d->rows <= 1 || d->row_stride >= width) && (uintptr_t)d->data % 16 == 0 &&
           (!apart || d->heads == 1 || (size_t)d->head_stride * each % 16 == 0);
}

/* Sums; 32-bit sizes; rows that do not overlap, at 16 bytes as its vector loads want them. SDDMM in
 * 16 bits is declined, since it rounds otherwise than ours, and so is a matrix of more entries than
 * rows * cols. */
bool fmm_cusparse_supports(const fmm_cusparse_calls *calls, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_dense *x = call->x, *other = call->b ? call->b : call->y;
    const shape s = shape_of(calls, call, (fmm_cusparse_variant){0});
    const bool bits16 = x->dtype != FMM_F32 && x->dtype != FMM_F64;
    return call->reduce == FMM_SUM && !(bits16 && calls->edges) && a->rows < INT32_MAX &&
           a->cols < INT32_MAX && a->nnz < INT32_MAX && a->nnz <= a->rows * a->cols &&
           takes(x, s.width, s.products > 1) && takes(other, s.width, s.products > 1);
}
