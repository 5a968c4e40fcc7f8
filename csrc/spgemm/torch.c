/* fusedmm::_spgemm_symbolic, _spgemm, _spgemm_dots and _spgemm_colours. */
#include "../torch/frame.h"

#include <inttypes.h>

#define NAMED(m)                                                                                   \
    {                                                                                              \
        "ptr_" m, "idx_" m, "eid_" m, "plan_" m                                                    \
    }
static const char *const of_b[] = NAMED("b"), *const of_c[] = NAMED("c");
static const char *const of_x[] = NAMED("x"), *const of_y[] = NAMED("y");

/* What gives the symbolic phase its columns: a tensor, once their number is known. */
typedef struct columns_of {
    frame *f;
    tensor *out;
} columns_of;

static int32_t *columns(void *owner, int64_t nnz)
{
    const columns_of *c = owner;
    const int32_t int32 = fmm_torch.aoti_torch_dtype_int32();
    return frame_allocate(c->f, 1, &nnz, int32, c->out) ? c->out->data : NULL;
}

/* (ptr, idx, eid, plan, the same of b, int cols, int want) -> ptr, idx, schedule; without elements
 * where they are not wanted */
static void symbolic(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { B = 4, TENSORS = 8 };
    enum { PTR, IDX, SCHEDULE, RESULTS };
    frame f;
    fmm_csr a, b;
    tensor out[RESULTS] = {{0}};
    const fmm_spgemm_want want = (fmm_spgemm_want)frame_int(stack[TENSORS + 1]);
    const int32_t int64 = fmm_torch.aoti_torch_dtype_int64();
    const int64_t none = 0, parts = FMM_SPGEMM_SCHEDULE;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) ||
        !frame_named(&f, B, of_b, (int64_t)stack[TENSORS], &b) || !frame_matrix(&f, b.rows, &a))
        goto done;
    const int64_t bounds = want == FMM_SPGEMM_CHUNKS ? 0 : a.rows + 1;
    if (!frame_allocate(&f, 1, &bounds, int64, &out[PTR]) ||
        !frame_allocate(&f, 1, &parts, int64, &out[SCHEDULE]))
        goto done;
    columns_of owner = {&f, &out[IDX]};
    const fmm_spgemm_pattern pattern = {.want = want,
                                        .ptr = out[PTR].data,
                                        .schedule = out[SCHEDULE].data,
                                        .columns = columns,
                                        .owner = &owner};
    f.status = fmm_spgemm_symbolic(&f.exec, &a, &b, &pattern);
    if (f.status == FMM_OK && !out[IDX].handle)
        frame_allocate(&f, 1, &none, fmm_torch.aoti_torch_dtype_int32(), &out[IDX]);
done:
    frame_finish(&f, "spgemm_symbolic", stack, out, RESULTS);
}

static bool is_float(int32_t dtype)
{
    return dtype == fmm_torch.aoti_torch_dtype_float32() ||
           dtype == fmm_torch.aoti_torch_dtype_float64() ||
           dtype == fmm_torch.aoti_torch_dtype_float16() ||
           dtype == fmm_torch.aoti_torch_dtype_bfloat16();
}

/* Values k and k + 1 of two matrices, and a vector of n numbers of their dtype: that of the first
 * which is one of numbers, since absent values and those of no entries have no elements. */
static bool take_values(frame *f, int k, const char *const names[2], fmm_dense *first,
                        fmm_dense *second, int64_t n, fmm_dense *out, tensor *made)
{
    tensor t, u;
    if (!frame_take(f, k, names[0], &t) || !frame_take(f, k + 1, names[1], &u) ||
        !frame_numbers(f, k, names[0], first) || !frame_numbers(f, k + 1, names[1], second))
        return false;
    const int32_t dtype = is_float(t.dtype) ? t.dtype : u.dtype;
    if (!is_float(dtype))
        return frame_fail(f, "%s or %s must be floating-point", names[0], names[1]);
    if (!frame_allocate(f, 1, &n, dtype, made)) return false;
    const int32_t types[FMM_DTYPES] = {[FMM_F32] = fmm_torch.aoti_torch_dtype_float32(),
                                       [FMM_F64] = fmm_torch.aoti_torch_dtype_float64(),
                                       [FMM_F16] = fmm_torch.aoti_torch_dtype_float16(),
                                       [FMM_BF16] = fmm_torch.aoti_torch_dtype_bfloat16()};
    *out = (fmm_dense){
        .data = made->data, .rows = n, .heads = 1, .feat = 1, .row_stride = 1, .head_stride = 1};
    while (types[out->dtype] != dtype) out->dtype++;
    return true;
}

static bool take_list(frame *f, int k, const char *name, int32_t dtype, int64_t n, const void **to)
{
    tensor t;
    if (!frame_take(f, k, name, &t)) return false;
    if (t.dim != 1 || t.dtype != dtype || t.numel != n || (n > 1 && t.stride[0] != 1))
        return frame_fail(f, "%s must be a contiguous vector of %" PRId64 " integers", name, n);
    *to = t.data;
    return true;
}

/* (ptr, idx, eid, plan, the same of b, the same of c, schedule, colours, val, val_b, int cols, bool
 * masked, int algorithm) -> values of c */
static void numeric(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { B = 4, C = 8, SCHEDULE = 12, COLOURS, VAL, VAL_B, TENSORS };
    frame f;
    fmm_csr a, b, c;
    fmm_dense val, y;
    tensor colours, out = {0};
    const int64_t cols = (int64_t)stack[TENSORS];
    const void *schedule, *colours_at = NULL;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) || !frame_named(&f, B, of_b, cols, &b) ||
        !frame_named(&f, C, of_c, cols, &c) || !frame_matrix(&f, b.rows, &a) ||
        !take_list(&f, SCHEDULE, "schedule", fmm_torch.aoti_torch_dtype_int64(),
                   FMM_SPGEMM_SCHEDULE, &schedule) ||
        !frame_take(&f, COLOURS, "colours", &colours) ||
        (colours.numel && !take_list(&f, COLOURS, "colours", fmm_torch.aoti_torch_dtype_int32(),
                                     a.rows, &colours_at)))
        goto done;
    fmm_spgemm of = {.b = &b,
                     .c = &c,
                     .masked = stack[TENSORS + 1] != 0,
                     .schedule = schedule,
                     .colours = colours_at};
    if (!take_values(&f, VAL, (const char *const[]){"val", "val_b"}, &val, &of.b_val, c.nnz, &y,
                     &out))
        goto done;
    f.status = fmm_spgemm_numeric(&f.exec, &a, &val, &of, &y, frame_int(stack[TENSORS + 2]));
done:
    frame_finish(&f, "spgemm", stack, &out, 1);
}

/* (ptr, idx, eid, plan, the same of x, the same of y, val of x, val of y, int cols) -> out */
static void dots(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { X = 4, Y = 8, VAL_X = 12, VAL_Y, TENSORS };
    frame f;
    fmm_csr a, x, y;
    fmm_dense x_val, y_val, made;
    tensor out = {0};
    const int64_t cols = (int64_t)stack[TENSORS];
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, TENSORS) || !frame_named(&f, X, of_x, cols, &x) ||
        !frame_named(&f, Y, of_y, cols, &y) || !frame_matrix(&f, y.rows, &a) ||
        !take_values(&f, VAL_X, (const char *const[]){"val_x", "val_y"}, &x_val, &y_val, a.nnz,
                     &made, &out))
        goto done;
    f.status = fmm_spgemm_dots(&f.exec, &a, &x, &x_val, &y, &y_val, &made);
done:
    frame_finish(&f, "spgemm_dots", stack, &out, 1);
}

/* (ptr, idx, eid, plan, int cols) -> a colour for each row, int32 */
static void colours(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    fmm_csr c;
    tensor out = {0};
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 4) || !frame_matrix(&f, (int64_t)stack[4], &c) ||
        !frame_allocate(&f, 1, &c.rows, fmm_torch.aoti_torch_dtype_int32(), &out))
        goto done;
    f.status = fmm_spgemm_colours(&f.exec, &c, out.data);
done:
    frame_finish(&f, "spgemm_colours", stack, &out, 1);
}

#define OTHER(m) "Tensor ptr_" m ", Tensor idx_" m ", Tensor eid_" m ", Tensor plan_" m ", "
const fmm_torch_operator fmm_torch_spgemm[] = {
    {"_spgemm_symbolic",
     "_spgemm_symbolic(" FMM_HALF OTHER("b") "int cols, int want) -> (Tensor, Tensor, Tensor)",
     .kernel = symbolic},
    {"_spgemm",
     "_spgemm(" FMM_HALF OTHER("b")
         OTHER("c") "Tensor schedule, Tensor colours, Tensor val, "
                    "Tensor val_b, int cols, bool masked, int algorithm) -> Tensor",
     .kernel = numeric},
    {"_spgemm_dots",
     "_spgemm_dots(" FMM_HALF OTHER("x") OTHER("y") "Tensor val_x, Tensor val_y, int cols) -> "
                                                    "Tensor",
     .kernel = dots},
    {"_spgemm_colours", "_spgemm_colours(" FMM_HALF "int cols) -> Tensor", .kernel = colours},
    /* clang-format off */
    FMM_NUMBER(FMM_SPGEMM_CHUNKS), FMM_NUMBER(FMM_SPGEMM_COUNTS), FMM_NUMBER(FMM_SPGEMM_SORTED),
    FMM_NUMBER(FMM_SPGEMM_UNSORTED), FMM_NUMBER(FMM_SPGEMM_SCHEDULE),
    /* clang-format on */
    {0},
};
