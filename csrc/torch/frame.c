/* Tensor handles to views, and back; see frame.h. */
#define _DEFAULT_SOURCE /* madvise */
#include "frame.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_DIMENSIONS = 3, LARGEST_ELEMENT = 8 };

bool frame_fail(frame *f, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    f->status = fmm_fail(FMM_INVALID_ARGUMENT, "%s", text);
    return false;
}

int frame_int(StableIValue slot)
{
    const int64_t value = (int64_t)slot;
    return value > INT_MAX ? INT_MAX : value < INT_MIN ? INT_MIN : (int)value;
}

double frame_float(StableIValue slot)
{
    double value;
    memcpy(&value, &slot, sizeof value);
    return value;
}

/* exec.allocate: a tensor of torch's, which the frame holds until the call ends. */
static fmm_status allocate_workspace(void *owner, size_t bytes, void **workspace)
{
    frame *f = owner;
    *workspace = frame_workspace(f, bytes) ? f->exec.workspace : NULL;
    const fmm_status status = f->status;
    f->status = FMM_OK; /* who asked may do without, or else fails with this */
    return status;
}

bool frame_begin(frame *f, const StableIValue *stack, int inputs)
{
    /* Not all of it is cleared: most of the room for handles stays unused. */
    f->count = inputs, f->status = FMM_OK;
    f->exec =
        (fmm_exec){.parallel_for = frame_parallel, .allocate = allocate_workspace, .owner = f};
    for (int k = 0; k < inputs; k++) memcpy(&f->held[k], &stack[k], sizeof f->held[k]);
    fmm_torch.aoti_torch_get_device_type(f->held[0], &f->device_type);
    fmm_torch.aoti_torch_get_device_index(f->held[0], &f->device_index);
    if (f->device_type == fmm_torch.aoti_torch_device_type_cpu()) return true;
    f->exec.device = FMM_CUDA;
    f->exec.index = f->device_index;
    if (!fmm_torch.aoti_torch_get_current_cuda_stream ||
        fmm_torch.aoti_torch_get_current_cuda_stream(f->device_index, &f->exec.stream))
        return frame_fail(f, "no current stream of CUDA device %d", f->device_index);
    return true;
}

int32_t frame_dtype(fmm_dtype dtype)
{
    return dtype == FMM_F64    ? fmm_torch.aoti_torch_dtype_float64()
           : dtype == FMM_F16  ? fmm_torch.aoti_torch_dtype_float16()
           : dtype == FMM_BF16 ? fmm_torch.aoti_torch_dtype_bfloat16()
                               : fmm_torch.aoti_torch_dtype_float32();
}

bool frame_is_float(int32_t number, fmm_dtype *dtype)
{
    for (*dtype = FMM_F32; *dtype < FMM_DTYPES; ++*dtype)
        if (number == frame_dtype(*dtype)) return true;
    return false;
}

/* Bytes of an element of the dtypes that operators take; 1 for others, which they refuse. */
static uintptr_t element_bytes(int32_t number)
{
    fmm_dtype dtype;
    if (frame_is_float(number, &dtype)) return fmm_dtype_bytes(dtype);
    return number == fmm_torch.aoti_torch_dtype_int64()   ? 8
           : number == fmm_torch.aoti_torch_dtype_int32() ? 4
                                                          : 1;
}

/* Fills t with what torch says of the handle. */
static bool describe(frame *f, AtenTensorHandle handle, tensor *t)
{
    t->handle = handle;
    fmm_torch.aoti_torch_get_dim(handle, &t->dim);
    fmm_torch.aoti_torch_get_numel(handle, &t->numel);
    fmm_torch.aoti_torch_get_sizes(handle, &t->size);
    fmm_torch.aoti_torch_get_strides(handle, &t->stride);
    fmm_torch.aoti_torch_get_dtype(handle, &t->dtype);
    if (fmm_torch.aoti_torch_get_data_ptr(handle, &t->data))
        return frame_fail(f, "a tensor has no memory to read");
    return true;
}

/* malloc gives blocks of 32 MiB and more back to the system, so that each result of this size is
 * made of pages that come when they are first written. A result of an SpMM took up to four times as
 * long to receive in pages of 4 KiB as to compute. Large pages are a wish: the system may decline.
 */
static void wish_for_large_pages(const tensor *t)
{
    enum { FROM = 32 << 20 };
    const uintptr_t page = 2 << 20, begin = (uintptr_t)t->data;
    const uintptr_t end = begin + (uintptr_t)t->numel * element_bytes(t->dtype);
    if (end - begin < FROM) return;
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    madvise((void *)first, last - first, MADV_HUGEPAGE);
}

/* Sizes may come from a caller's arguments, so their product is checked before torch sees it. */
bool frame_allocate(frame *f, int64_t dim, const int64_t *size, int32_t dtype, tensor *t)
{
    int64_t stride[MOST_DIMENSIONS], bytes = LARGEST_ELEMENT;
    bool fits = true;
    for (int64_t d = dim - 1; d >= 0; d--) {
        stride[d] = bytes / LARGEST_ELEMENT;
        fits &= size[d] >= 0 && !__builtin_mul_overflow(bytes, size[d] ? size[d] : 1, &bytes);
    }
    if (!fits)
        return frame_fail(f,
                          "a tensor of [%" PRId64 ", %" PRId64 ", %" PRId64
                          "] would have more bytes than int64 counts",
                          size[0], dim > 1 ? size[1] : 1, dim > 2 ? size[2] : 1);
    AtenTensorHandle handle = NULL;
    if (fmm_torch.aoti_torch_empty_strided(dim, size, stride, dtype, f->device_type,
                                           f->device_index, &handle)) {
        return frame_try(f, fmm_fail(FMM_OUT_OF_MEMORY, "could not allocate %" PRId64 " elements",
                                     bytes / LARGEST_ELEMENT));
    }
    f->held[f->count++] = handle;
    if (!describe(f, handle, t)) return false;
    if (f->exec.device == FMM_CPU) wish_for_large_pages(t);
    return true;
}

bool frame_vector(frame *f, int64_t n, int32_t dtype, tensor *t)
{
    return frame_allocate(f, 1, &n, dtype, t);
}

fmm_dense frame_view(void *data, fmm_dtype dtype, int64_t rows, int64_t heads, int64_t feat)
{
    return (fmm_dense){.data = data,
                       .dtype = dtype,
                       .rows = rows,
                       .heads = heads,
                       .feat = feat,
                       .row_stride = heads * feat,
                       .head_stride = feat};
}

bool frame_result(frame *f, int64_t dim, fmm_dtype dtype, int64_t rows, int64_t heads, int64_t feat,
                  tensor *t, fmm_dense *d)
{
    int64_t width;
    if (__builtin_mul_overflow(heads, feat, &width)) width = INT64_MAX; /* which is refused */
    const int64_t size[MOST_DIMENSIONS] = {rows, dim == 3 ? heads : width, feat};
    if (!frame_allocate(f, dim, size, frame_dtype(dtype), t)) return false;
    *d = frame_view(t->data, dtype, rows, heads, feat);
    return true;
}

bool frame_result_if(frame *f, bool wanted, int64_t dim, fmm_dtype dtype, int64_t rows,
                     int64_t heads, int64_t feat, tensor *t, fmm_dense *d)
{
    if (wanted) return frame_result(f, dim, dtype, rows, heads, feat, t, d);
    *d = (fmm_dense){0};
    return frame_vector(f, 0, frame_dtype(dtype), t);
}

bool frame_copy(frame *f, const char *name, tensor *t)
{
    tensor copy;
    if (t->dim > MOST_DIMENSIONS)
        return frame_fail(f, "%s must have at most %d dimensions, not %" PRId64, name,
                          MOST_DIMENSIONS, t->dim);
    if (!frame_allocate(f, t->dim, t->size, t->dtype, &copy)) return false;
    if (fmm_torch.aoti_torch_copy_(copy.handle, t->handle, 0))
        return frame_fail(f, "%s could not be made contiguous", name);
    *t = copy;
    return true;
}

bool frame_describe(frame *f, int k, tensor *t) { return describe(f, f->held[k], t); }

bool frame_take(frame *f, int k, const char *name, tensor *t)
{
    if (!describe(f, f->held[k], t)) return false;
    if (!t->numel) return true;
    int32_t type, index;
    fmm_torch.aoti_torch_get_device_type(f->held[k], &type);
    fmm_torch.aoti_torch_get_device_index(f->held[k], &index);
    if (type != f->device_type || index != f->device_index)
        return frame_fail(f, "%s is on another device than the first tensor", name);
    if ((uintptr_t)t->data % LARGEST_ELEMENT == 0) return true;
    const uintptr_t bytes = element_bytes(t->dtype);
    if ((uintptr_t)t->data % bytes == 0) return true;
    if (f->exec.device == FMM_CPU) return frame_copy(f, name, t);
    return frame_fail(f,
                      "%s begins at an address that is no multiple of its elements' %d bytes: copy "
                      "it to memory of its own",
                      name, (int)bytes);
}

bool frame_workspace(frame *f, size_t bytes)
{
    tensor t;
    if (!bytes) return true;
    if (!frame_vector(f, (int64_t)bytes, fmm_torch.aoti_torch_dtype_uint8(), &t)) return false;
    f->exec.workspace = t.data;
    f->exec.workspace_bytes = bytes;
    return true;
}

static bool dtype_of(frame *f, const char *name, const tensor *t, fmm_dtype *dtype)
{
    return frame_is_float(t->dtype, dtype) ||
           frame_fail(f, "%s must be float32, float64, float16 or bfloat16", name);
}

/* Whether t is a contiguous vector of integers of so many bytes; those of 1 byte have no sign. */
static bool is_list(frame *f, const char *name, const tensor *t, int bytes)
{
    const int32_t dtype = bytes == 8   ? fmm_torch.aoti_torch_dtype_int64()
                          : bytes == 4 ? fmm_torch.aoti_torch_dtype_int32()
                                       : fmm_torch.aoti_torch_dtype_uint8();
    if (t->dim != 1 || t->dtype != dtype)
        return frame_fail(f, "%s must be a vector of %sint%d", name, bytes == 1 ? "u" : "",
                          8 * bytes);
    if (t->numel > 1 && t->stride[0] != 1) return frame_fail(f, "%s must be contiguous", name);
    return true;
}

/* Input k. Of an absent one no more than numel is asked: the rest of the questions about the absent
 * tensors of a product of 16 x 16 took a hundredth of its time. */
static bool take_if_there(frame *f, int k, const char *name, tensor *t)
{
    t->data = NULL, t->numel = -1; /* where that question fails, frame_take says why */
    fmm_torch.aoti_torch_get_numel(f->held[k], &t->numel);
    return !t->numel || frame_take(f, k, name, t);
}

bool frame_take_list(frame *f, int k, const char *name, int bytes, tensor *t)
{
    return take_if_there(f, k, name, t) && (!t->numel || is_list(f, name, t, bytes));
}

/* What errors call the tensors of a matrix, and those of its transpose behind it. */
static const char *const parts[2][4] = {{"ptr", "idx", "eid", "plan"},
                                        {"ptr_t", "idx_t", "eid_t", "plan_t"}};

/* ptr and idx alone. Their content is not read here: on CUDA that would wait for the device. */
static bool structure(frame *f, int first, const char *const *names, int64_t cols, fmm_csr *a)
{
    tensor ptr, idx;
    if (!frame_take(f, first, names[0], &ptr) || !frame_take(f, first + 1, names[1], &idx) ||
        !is_list(f, names[0], &ptr, 8) || !is_list(f, names[1], &idx, 4))
        return false;
    if (ptr.numel < 1) return frame_fail(f, "%s must have rows + 1 elements, not 0", names[0]);
    *a = (fmm_csr){
        .rows = ptr.numel - 1, .cols = cols, .nnz = idx.numel, .ptr = ptr.data, .idx = idx.data};
    return true;
}

bool frame_structure(frame *f, int64_t cols, fmm_csr *a)
{
    return structure(f, 0, parts[0], cols, a);
}

bool frame_named(frame *f, int first, const char *const *names, int64_t cols, fmm_csr *a)
{
    tensor eid, plan;
    if (!structure(f, first, names, cols, a) ||
        !frame_take_list(f, first + 2, names[2], a->nnz > INT32_MAX ? 8 : 4, &eid) ||
        !frame_take_list(f, first + 3, names[3], 1, &plan))
        return false;
    if (eid.numel && eid.numel != a->nnz)
        return frame_fail(f, "%s has %" PRId64 " elements for %" PRId64 " entries", names[2],
                          eid.numel, a->nnz);
    a->eid = eid.data;
    a->plan = plan.data;
    a->plan_bytes = (size_t)plan.numel;
    return true;
}

bool frame_half(frame *f, int first, int64_t cols, fmm_csr *a)
{
    return frame_named(f, first, parts[first > 0], cols, a);
}

bool frame_matrix(frame *f, int64_t cols, fmm_csr *a) { return frame_half(f, 0, cols, a); }

/* torch lets a dimension of one element have any stride, so such a stride is replaced by what it
 * should be. */
bool frame_dense(frame *f, int k, const char *name, fmm_dense *d, tensor *t)
{
    tensor unused;
    if (!t) t = &unused;
    if (!frame_take(f, k, name, t)) return false;
    if (t->dim != 2 && t->dim != 3)
        return frame_fail(f, "%s must have 2 or 3 dimensions, not %" PRId64, name, t->dim);
    if (!dtype_of(f, name, t, &d->dtype)) return false;
    const int64_t last = t->dim - 1;
    if (t->size[last] > 1 && t->stride[last] != 1 && !frame_copy(f, name, t)) return false;
    d->data = t->data;
    d->rows = t->size[0];
    d->heads = t->dim == 3 ? t->size[1] : 1;
    d->feat = t->size[last];
    int64_t width;
    if (__builtin_mul_overflow(d->heads, d->feat, &width))
        return frame_fail(f,
                          "%s of [%" PRId64 ", %" PRId64 ", %" PRId64 "] does not fit in 64 bits",
                          name, d->rows, d->heads, d->feat);
    d->head_stride = d->heads > 1 ? t->stride[1] : d->feat;
    d->row_stride = d->rows > 1 ? t->stride[0] : width;
    return true;
}

/* A tensor of 1 or 2 dimensions as one number per row and head. */
static bool to_numbers(frame *f, const char *name, const tensor *t, fmm_dense *d)
{
    *d = (fmm_dense){.data = t->data, .rows = t->size[0], .heads = 1, .feat = 1};
    if (t->dim == 2) d->heads = t->size[1];
    d->row_stride = d->rows > 1 ? t->stride[0] : d->heads;
    d->head_stride = d->heads > 1 ? t->stride[1] : 1;
    return dtype_of(f, name, t, &d->dtype);
}

bool frame_numbers(frame *f, int k, const char *name, fmm_dense *val)
{
    tensor t;
    *val = (fmm_dense){.heads = 1, .feat = 1};
    if (!take_if_there(f, k, name, &t)) return false;
    if (!t.numel) return true;
    if (t.dim != 1 && t.dim != 2)
        return frame_fail(f, "%s must have 1 or 2 dimensions, not %" PRId64, name, t.dim);
    return to_numbers(f, name, &t, val);
}

bool frame_take_vector(frame *f, int k, const char *name, fmm_dense *d, tensor *t)
{
    if (!frame_take(f, k, name, t)) return false;
    if (t->dim != 1) return frame_fail(f, "%s must have 1 dimension, not %" PRId64, name, t->dim);
    return to_numbers(f, name, t, d);
}

bool frame_values(frame *f, int k, fmm_dense *val) { return frame_numbers(f, k, "val", val); }

void frame_finish(frame *f, const char *function, StableIValue *stack, const tensor *out, int count)
{
    /* Python tells the classes of errors apart by this prefix. */
    static const char *const prefixes[] = {
        "", "invalid: ", "out of memory: ", "unsupported: ", "device: "};
    const bool good = f->status == FMM_OK;
    for (int k = 0; k < f->count; k++) {
        bool result = false;
        for (int r = 0; good && r < count; r++) result |= f->held[k] == out[r].handle;
        if (!result) fmm_torch.aoti_torch_delete_tensor_object(f->held[k]);
    }
    if (good) {
        for (int r = 0; r < count; r++) memcpy(&stack[r], &out[r].handle, sizeof stack[r]);
        return;
    }
    char text[320];
    snprintf(text, sizeof text, "%s%s", prefixes[f->status], fmm_last_error());
    fmm_torch.aoti_torch_check(false, function, __FILE__, __LINE__, text); /* throws */
}

/* frame_finish comes last and may throw, so nothing that needs to be freed lies around it. */
void frame_run(StableIValue *stack, int inputs, int results, const char *name, frame_body *body)
{
    frame f;
    tensor out[FRAME_RESULTS];
    if (frame_begin(&f, stack, inputs)) body(&f, stack + inputs, out);
    frame_finish(&f, name, stack, out, results);
}
