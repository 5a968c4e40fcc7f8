/* The boxed kernels: tensor handles in, views to the C interface, tensor handles out.
 *
 * A boxed kernel owns its input handles, and nothing frees them when an exception passes through.
 * So every kernel keeps all handles it holds in one frame, releases the frame on every path, and
 * raises last. An absent tensor is one without elements: the schemas have no optional arguments,
 * because those could not be freed from C. */
#include "../core.h"
#include "shim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { INPUTS_MAX = 12, HELD_MAX = 18 };

/* What one call holds. */
typedef struct frame {
    AtenTensorHandle held[HELD_MAX]; /* inputs first, then copies, workspace and outputs */
    int count;
    int32_t device_type, device_index; /* those of the first input, which all must share */
    fmm_exec exec;
    fmm_status status;
} frame;

typedef struct tensor {
    AtenTensorHandle handle;
    int64_t dim, numel, *size, *stride;
    int32_t dtype;
    void *data;
} tensor;

static bool fail(frame *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(frame *f, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    f->status = fmm_fail(FMM_INVALID_ARGUMENT, "%s", text);
    return false;
}

static void run_parallel(int64_t count, fmm_range *body, void *ctx)
{
    fmm_torch.torch_parallel_for(0, count, 1, body, ctx);
}

static bool begin(frame *f, const StableIValue *stack, int inputs)
{
    *f = (frame){.count = inputs, .exec = {.parallel_for = run_parallel}};
    for (int k = 0; k < inputs; k++) memcpy(&f->held[k], &stack[k], sizeof f->held[k]);
    fmm_torch.aoti_torch_get_device_type(f->held[0], &f->device_type);
    fmm_torch.aoti_torch_get_device_index(f->held[0], &f->device_index);
    if (f->device_type == fmm_torch.aoti_torch_device_type_cpu()) return true;
    f->exec.device = FMM_CUDA;
    f->exec.index = f->device_index;
    if (!fmm_torch.aoti_torch_get_current_cuda_stream ||
        fmm_torch.aoti_torch_get_current_cuda_stream(f->device_index, &f->exec.stream))
        return fail(f, "no current stream of CUDA device %d", f->device_index);
    return true;
}

static bool look(frame *f, AtenTensorHandle handle, tensor *t)
{
    t->handle = handle;
    fmm_torch.aoti_torch_get_dim(handle, &t->dim);
    fmm_torch.aoti_torch_get_numel(handle, &t->numel);
    fmm_torch.aoti_torch_get_sizes(handle, &t->size);
    fmm_torch.aoti_torch_get_strides(handle, &t->stride);
    fmm_torch.aoti_torch_get_dtype(handle, &t->dtype);
    if (fmm_torch.aoti_torch_get_data_ptr(handle, &t->data))
        return fail(f, "a tensor has no memory to read");
    return true;
}

/* Takes input k: present tensors must be on the device of the first. */
static bool take(frame *f, int k, const char *name, tensor *t)
{
    if (!look(f, f->held[k], t)) return false;
    int32_t type, index;
    fmm_torch.aoti_torch_get_device_type(f->held[k], &type);
    fmm_torch.aoti_torch_get_device_index(f->held[k], &index);
    if (t->numel && (type != f->device_type || index != f->device_index))
        return fail(f, "%s is on another device than the first tensor", name);
    return true;
}

static bool allocate(frame *f, int64_t dim, const int64_t *size, int32_t dtype, tensor *t)
{
    int64_t stride[3] = {1, 1, 1};
    for (int64_t d = dim - 1; d > 0; d--) stride[d - 1] = stride[d] * (size[d] > 0 ? size[d] : 1);
    AtenTensorHandle handle = NULL;
    if (fmm_torch.aoti_torch_empty_strided(dim, size, stride, dtype, f->device_type,
                                           f->device_index, &handle)) {
        int64_t elements = 1;
        for (int64_t d = 0; d < dim; d++) elements *= size[d];
        f->status =
            fmm_fail(FMM_OUT_OF_MEMORY, "could not allocate %" PRId64 " elements", elements);
        return false;
    }
    f->held[f->count++] = handle;
    return look(f, handle, t);
}

static bool allocate_workspace(frame *f, size_t bytes)
{
    tensor t;
    const int64_t size = (int64_t)bytes;
    if (!bytes) return true;
    if (!allocate(f, 1, &size, fmm_torch.aoti_torch_dtype_uint8(), &t)) return false;
    f->exec.workspace = t.data;
    f->exec.workspace_bytes = bytes;
    return true;
}

static bool dtype_of(frame *f, const char *name, const tensor *t, fmm_dtype *dtype)
{
    if (t->dtype == fmm_torch.aoti_torch_dtype_float32()) return *dtype = FMM_F32, true;
    if (t->dtype == fmm_torch.aoti_torch_dtype_float64()) return *dtype = FMM_F64, true;
    if (t->dtype == fmm_torch.aoti_torch_dtype_float16()) return *dtype = FMM_F16, true;
    if (t->dtype == fmm_torch.aoti_torch_dtype_bfloat16()) return *dtype = FMM_BF16, true;
    return fail(f, "%s must be float32, float64, float16 or bfloat16", name);
}

static bool is_list(frame *f, const char *name, const tensor *t, int32_t dtype,
                    const char *dtype_name)
{
    if (t->dim != 1 || t->dtype != dtype)
        return fail(f, "%s must be a vector of %s", name, dtype_name);
    if (t->numel > 1 && t->stride[0] != 1) return fail(f, "%s must be contiguous", name);
    return true;
}

/* Inputs 0 and 1: ptr and idx. */
static bool take_structure(frame *f, int64_t cols, fmm_csr *a)
{
    tensor ptr, idx;
    if (!take(f, 0, "ptr", &ptr) || !take(f, 1, "idx", &idx) ||
        !is_list(f, "ptr", &ptr, fmm_torch.aoti_torch_dtype_int64(), "int64") ||
        !is_list(f, "idx", &idx, fmm_torch.aoti_torch_dtype_int32(), "int32"))
        return false;
    if (ptr.numel < 1) return fail(f, "ptr must have rows + 1 elements, not 0");
    *a = (fmm_csr){
        .rows = ptr.numel - 1, .cols = cols, .nnz = idx.numel, .ptr = ptr.data, .idx = idx.data};
    return true;
}

/* Inputs 0 to 3: ptr, idx, eid and plan. */
static bool take_matrix(frame *f, int64_t cols, fmm_csr *a)
{
    tensor eid, plan;
    if (!take_structure(f, cols, a) || !take(f, 2, "eid", &eid) || !take(f, 3, "plan", &plan))
        return false;
    const bool wide = a->nnz > INT32_MAX;
    const int32_t id =
        wide ? fmm_torch.aoti_torch_dtype_int64() : fmm_torch.aoti_torch_dtype_int32();
    if (eid.numel) {
        if (!is_list(f, "eid", &eid, id, wide ? "int64" : "int32")) return false;
        if (eid.numel != a->nnz)
            return fail(f, "eid has %" PRId64 " elements for %" PRId64 " entries", eid.numel,
                        a->nnz);
        a->eid = eid.data;
    }
    if (plan.numel) {
        if (!is_list(f, "plan", &plan, fmm_torch.aoti_torch_dtype_uint8(), "uint8")) return false;
        a->plan = plan.data;
        a->plan_bytes = (size_t)plan.numel;
    }
    return true;
}

/* [n, F] or [n, H, F], the last stride 1: a tensor of another layout is copied first. */
static bool to_dense(frame *f, const char *name, tensor *t, fmm_dense *d)
{
    if (t->dim != 2 && t->dim != 3)
        return fail(f, "%s must have 2 or 3 dimensions, not %" PRId64, name, t->dim);
    if (!dtype_of(f, name, t, &d->dtype)) return false;
    const int64_t last = t->dim - 1;
    if (t->size[last] > 1 && t->stride[last] != 1) {
        tensor copy;
        if (!allocate(f, t->dim, t->size, t->dtype, &copy)) return false;
        if (fmm_torch.aoti_torch_copy_(copy.handle, t->handle, 0))
            return fail(f, "%s could not be made contiguous", name);
        *t = copy;
    }
    d->data = t->data;
    d->rows = t->size[0];
    d->heads = t->dim == 3 ? t->size[1] : 1;
    d->feat = t->size[last];
    d->head_stride = d->heads > 1 ? t->stride[1] : d->feat;
    d->row_stride = d->rows > 1 ? t->stride[0] : d->heads * d->feat;
    return true;
}

static bool take_dense(frame *f, int k, const char *name, fmm_dense *d, tensor *t)
{
    return take(f, k, name, t) && to_dense(f, name, t, d);
}

/* Edge values [nnz] or [nnz, H]; absent without elements. */
static bool take_values(frame *f, int k, fmm_dense *val)
{
    tensor t;
    *val = (fmm_dense){.heads = 1, .feat = 1};
    if (!take(f, k, "val", &t)) return false;
    if (!t.numel) return true;
    if (t.dim != 1 && t.dim != 2)
        return fail(f, "val must have 1 or 2 dimensions, not %" PRId64, t.dim);
    val->data = t.data;
    val->rows = t.size[0];
    val->heads = t.dim == 2 ? t.size[1] : 1;
    val->row_stride = val->rows > 1 ? t.stride[0] : val->heads;
    val->head_stride = val->heads > 1 ? t.stride[1] : 1;
    return dtype_of(f, "val", &t, &val->dtype);
}

/* Ends a kernel: frees what the frame holds but `out`, which becomes result 0, or raises. */
static void finish(frame *f, const char *function, StableIValue *stack, AtenTensorHandle out)
{
    /* Python tells the classes of errors apart by this prefix. */
    static const char *const prefixes[] = {
        "", "invalid: ", "out of memory: ", "unsupported: ", "device: "};
    const bool good = f->status == FMM_OK;
    for (int k = 0; k < f->count; k++)
        if (!good || f->held[k] != out) fmm_torch.aoti_torch_delete_tensor_object(f->held[k]);
    if (good) {
        memcpy(&stack[0], &out, sizeof out);
        return;
    }
    char text[320];
    snprintf(text, sizeof text, "%s%s", prefixes[f->status], fmm_last_error());
    fmm_torch.aoti_torch_check(false, function, __FILE__, __LINE__, text); /* throws */
}

/* (ptr, idx, eid, plan, [the same of the transpose,] val, x, int reduce, int algorithm) -> y */
static void spmm(StableIValue *stack, int inputs)
{
    frame f;
    fmm_csr a;
    fmm_dense val, x, y;
    tensor given, out = {0};
    size_t bytes;
    const fmm_reduce reduce = (fmm_reduce)(int64_t)stack[inputs];
    const int algorithm = (int)(int64_t)stack[inputs + 1];
    if (!begin(&f, stack, inputs) || !take_dense(&f, inputs - 1, "x", &x, &given) ||
        !take_values(&f, inputs - 2, &val) || !take_matrix(&f, x.rows, &a))
        goto done;
    y = x;
    y.rows = a.rows;
    y.row_stride = x.heads * x.feat;
    y.head_stride = x.feat;
    const int64_t flat[2] = {a.rows, x.feat}, headed[3] = {a.rows, x.heads, x.feat};
    if (!allocate(&f, given.dim, given.dim == 3 ? headed : flat, given.dtype, &out)) goto done;
    y.data = out.data;
    f.status = fmm_spmm_workspace(&f.exec, &a, &val, &x, &y, reduce, algorithm, &bytes);
    if (f.status != FMM_OK || !allocate_workspace(&f, bytes)) goto done;
    f.status = fmm_spmm(&f.exec, &a, &val, &x, &y, reduce, algorithm);
done:
    finish(&f, "spmm", stack, out.handle);
}

/* (ptr, idx, eid, plan, [the same of the transpose,] val, a, b, int algorithm) -> e */
static void sddmm(StableIValue *stack, int inputs)
{
    frame f;
    fmm_csr s;
    fmm_dense val, a, b, e;
    tensor given, out = {0};
    size_t bytes;
    const int algorithm = (int)(int64_t)stack[inputs];
    if (!begin(&f, stack, inputs) || !take_dense(&f, inputs - 1, "b", &b, &given) ||
        !take_dense(&f, inputs - 2, "a", &a, &given) || !take_values(&f, inputs - 3, &val) ||
        !take_matrix(&f, b.rows, &s))
        goto done;
    const int64_t size[2] = {s.nnz, a.heads};
    if (!allocate(&f, given.dim - 1, size, given.dtype, &out)) goto done;
    e = (fmm_dense){.data = out.data,
                    .dtype = a.dtype,
                    .rows = s.nnz,
                    .heads = a.heads,
                    .feat = 1,
                    .row_stride = a.heads,
                    .head_stride = 1};
    f.status = fmm_sddmm_workspace(&f.exec, &s, &val, &a, &b, &e, algorithm, &bytes);
    if (f.status != FMM_OK || !allocate_workspace(&f, bytes)) goto done;
    f.status = fmm_sddmm(&f.exec, &s, &val, &a, &b, &e, algorithm);
done:
    finish(&f, "sddmm", stack, out.handle);
}

/* (ptr, idx, int cols) -> the report word of fmm_csr_check, int64 [1] */
static void check(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    fmm_csr a;
    tensor out = {0};
    const int64_t cols = (int64_t)stack[2], one = 1;
    (void)inputs, (void)results;
    if (!begin(&f, stack, 2) || !take_structure(&f, cols, &a) ||
        !allocate(&f, 1, &one, fmm_torch.aoti_torch_dtype_int64(), &out))
        goto done;
    f.status = fmm_csr_check(&f.exec, &a, out.data);
done:
    finish(&f, "check", stack, out.handle);
}

/* (ptr, idx) -> plan, uint8 [bytes], empty where kernels need none */
static void plan(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    fmm_csr a;
    tensor out = {0};
    size_t bytes;
    (void)inputs, (void)results;
    if (!begin(&f, stack, 2) || !take_structure(&f, INT32_MAX, &a)) goto done;
    const int64_t size = (int64_t)fmm_plan_bytes(&f.exec, &a);
    f.status = fmm_plan_workspace(&f.exec, &a, &bytes);
    if (f.status != FMM_OK || !allocate_workspace(&f, bytes) ||
        !allocate(&f, 1, &size, fmm_torch.aoti_torch_dtype_uint8(), &out))
        goto done;
    f.status = size ? fmm_plan(&f.exec, &a, out.data) : FMM_OK;
done:
    finish(&f, "plan", stack, out.handle);
}

/* The private operators carry one half of a CSR; the public ones also its transpose, which their
 * gradients need and their kernels skip. */
static void spmm_half(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    spmm(stack, 6);
}

static void spmm_whole(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    spmm(stack, 10);
}

static void sddmm_half(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    sddmm(stack, 7);
}

static void sddmm_whole(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    sddmm(stack, 11);
}

#define HALF "Tensor ptr, Tensor idx, Tensor eid, Tensor plan, "
#define WHOLE HALF "Tensor ptr_t, Tensor idx_t, Tensor eid_t, Tensor plan_t, "
const fmm_torch_operator fmm_torch_operators[] = {
    {"_spmm", "_spmm(" HALF "Tensor val, Tensor x, int reduce, int algorithm) -> Tensor",
     spmm_half},
    {"spmm", "spmm(" WHOLE "Tensor val, Tensor x, int reduce, int algorithm) -> Tensor",
     spmm_whole},
    {"_sddmm", "_sddmm(" HALF "Tensor val, Tensor a, Tensor b, int algorithm) -> Tensor",
     sddmm_half},
    {"sddmm", "sddmm(" WHOLE "Tensor val, Tensor a, Tensor b, int algorithm) -> Tensor",
     sddmm_whole},
    {"_check", "_check(Tensor ptr, Tensor idx, int cols) -> Tensor", check},
    {"_plan", "_plan(Tensor ptr, Tensor idx) -> Tensor", plan},
    {NULL, NULL, NULL},
};
