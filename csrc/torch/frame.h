/* What a boxed kernel holds, and how it reads its arguments.
 *
 * A boxed kernel owns its input handles, and nothing frees them when an exception passes through.
 * So every kernel keeps all handles it holds in one frame, releases the frame on every path, and
 * raises last: frame_finish. An absent tensor is one without elements: the schemas have no optional
 * arguments, because those could not be freed from C.
 *
 * The functions that return bool set f->status and the thread's message when they return false. */
#pragma once

#include "../core/core.h"
#include "shim.h"

enum { FRAME_HELD = 64 };

typedef struct frame {
    AtenTensorHandle held[FRAME_HELD]; /* inputs first, then copies, workspace and outputs */
    int count;
    int32_t device_type, device_index; /* those of the first input, which all must share */
    fmm_exec exec;
    fmm_status status;
} frame;

typedef struct tensor {
    AtenTensorHandle handle;
    int64_t dim, numel, *size, *stride;
    int32_t dtype; /* torch's number */
    void *data;
} tensor;

/* An int argument, which torch carries as 64 bits. A number beyond int becomes the largest or
 * smallest int, which names nothing and is refused; its lower 32 bits might name something. */
int frame_int(StableIValue slot);
double frame_float(StableIValue slot);

/* Runs body over [0, count) with torch's threads, or in the calling one: exec.parallel_for. */
void frame_parallel(int64_t count, fmm_range *body, void *ctx);

/* Takes over the first `inputs` slots of the stack, which are all tensors. */
bool frame_begin(frame *f, const StableIValue *stack, int inputs);
bool frame_fail(frame *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Input k as it is; present tensors must be on the device of the first. One that begins at no
 * multiple of its elements' size, as torch.frombuffer makes them, is copied first; on CUDA it is
 * refused, since torch's own copy may read it there by elements, after which no kernel runs. */
bool frame_take(frame *f, int k, const char *name, tensor *t);
/* Input k as it is, on any device. */
bool frame_describe(frame *f, int k, tensor *t);
/* Puts a contiguous copy in t's place. */
bool frame_copy(frame *f, const char *name, tensor *t);
/* Inputs 0 and 1, ptr and idx; with frame_matrix also 2 and 3, eid and plan. */
bool frame_structure(frame *f, int64_t cols, fmm_csr *a);
bool frame_matrix(frame *f, int64_t cols, fmm_csr *a);
/* The same of four inputs from `first` on, where both halves of a matrix are given. */
bool frame_half(frame *f, int first, int64_t cols, fmm_csr *a);
/* The same of another matrix, whose four inputs have these names. */
bool frame_named(frame *f, int first, const char *const *names, int64_t cols, fmm_csr *a);
/* Input k as [n, F] or [n, H, F] with last stride 1: a tensor of another layout is copied first.
 * t may be NULL. */
bool frame_dense(frame *f, int k, const char *name, fmm_dense *d, tensor *t);
/* Input k as one number per row and head, [n] or [n, H]; absent without elements. frame_values
 * takes those of edges, `val`. */
bool frame_numbers(frame *f, int k, const char *name, fmm_dense *val);
bool frame_values(frame *f, int k, fmm_dense *val);

/* Input k as a vector of numbers, of any stride: a view of one head and one feature. */
bool frame_take_vector(frame *f, int k, const char *name, fmm_dense *d, tensor *t);
/* Input k as a contiguous vector of integers of 4 or 8 bytes, or of one, which has no sign; absent
 * without elements. */
bool frame_take_list(frame *f, int k, const char *name, int bytes, tensor *t);

/* A new contiguous tensor of up to 3 dimensions, or a vector of n numbers. frame_workspace is for
 * functions that take a workspace but do not ask for it by exec.allocate, as operators do. */
bool frame_allocate(frame *f, int64_t dim, const int64_t *size, int32_t dtype, tensor *t);
bool frame_vector(frame *f, int64_t n, int32_t dtype, tensor *t);
bool frame_workspace(frame *f, size_t bytes);
/* A new tensor t and the view d of it: [rows, heads, feat], of 2 dimensions [rows, heads * feat],
 * of 1 [rows]. Where it is not wanted, t is without elements and d absent. */
bool frame_result(frame *f, int64_t dim, fmm_dtype dtype, int64_t rows, int64_t heads, int64_t feat,
                  tensor *t, fmm_dense *d);
bool frame_result_if(frame *f, bool wanted, int64_t dim, fmm_dtype dtype, int64_t rows,
                     int64_t heads, int64_t feat, tensor *t, fmm_dense *d);
fmm_dense frame_view(void *data, fmm_dtype dtype, int64_t rows, int64_t heads, int64_t feat);
static inline fmm_dtype frame_sums(fmm_dtype dtype) /* that of sums of such numbers */
{
    return dtype == FMM_F64 ? FMM_F64 : FMM_F32;
}
int32_t frame_dtype(fmm_dtype dtype); /* torch's number */
bool frame_is_float(int32_t number, fmm_dtype *dtype);
/* Stores the status of a call in the frame, and says whether it is FMM_OK. */
static inline bool frame_try(frame *f, fmm_status status)
{
    f->status = status;
    return status == FMM_OK;
}

/* Frees what the frame holds but `count` outputs, which become the results, or raises. */
void frame_finish(frame *f, const char *function, StableIValue *stack, const tensor *out,
                  int count);

/* FMM_KERNEL(name, inputs, results) { body } defines a boxed kernel, whose first `inputs` arguments
 * are tensors; numbers follow. The body fills out[0] to out[results - 1]. What it returns is
 * whether it did: if not, f->status and the thread's message say why, and are raised. */
enum { FRAME_RESULTS = 5 };
typedef bool frame_body(frame *f, const StableIValue *number, tensor *out);
void frame_run(StableIValue *stack, int inputs, int results, const char *name, frame_body *body);
#define FMM_KERNEL(name, inputs, results)                                                          \
    static frame_body name##_body;                                                                 \
    static void name(StableIValue *stack, uint64_t arguments, uint64_t returned)                   \
    {                                                                                              \
        _Static_assert((results) <= FRAME_RESULTS, "a frame has room for that many");              \
        (void)arguments, (void)returned;                                                           \
        frame_run(stack, inputs, results, #name, name##_body);                                     \
    }                                                                                              \
    static bool name##_body(frame *f, __attribute__((unused)) const StableIValue *number,          \
                            __attribute__((unused)) tensor *out)

/* An operator of the library, or a number that Python needs to know of it: a line of a table of its
 * folder, ended by a NULL name. core/operators.def lists the tables. FMM_OPERATOR takes of a schema
 * what stands behind the name. */
typedef struct fmm_torch_operator {
    const char *name, *schema; /* without a schema it is a number */
    union {
        fmm_boxed kernel;
        double value;
    };
} fmm_torch_operator;
/* clang-format off */
#define FMM_OPERATOR(id, boxed, arguments) {.name = #id, .schema = #id arguments, .kernel = boxed}
#define FMM_NUMBER(id) {.name = #id, .value = (double)(id)}
/* clang-format on */

#define FMM_HALF "Tensor ptr, Tensor idx, Tensor eid, Tensor plan, "
#define FMM_WHOLE FMM_HALF "Tensor ptr_t, Tensor idx_t, Tensor eid_t, Tensor plan_t, "
/* The last arguments of operators whose choice of an algorithm follows from fmm_csr.rows_are, of
 * either half. Who leaves them out says FMM_ROWS_UNKNOWN. Where a half is a part of a matrix,
 * whole_nnz is the entries of that matrix (fmm_whole), else 0. Operators of both halves take no
 * parts. */
#define FMM_HALF_ROWS ", int rows_are=0, int whole_nnz=0"
#define FMM_WHOLE_ROWS ", int rows_are=0, int rows_are_t=0"
