/* fusedmm::_spgemm_symbolic, _spgemm, _spgemm_dots and _spgemm_colours.
 *
 *     _spgemm_symbolic   a, b, values or none        -> structure of the product, schedule
 *     _spgemm            a, b, c, schedule, values   -> values of c
 *     _spgemm_dots       a, x, y, values             -> values of a: a gradient
 *     _spgemm_colours    c                           -> a colour for each row
 *
 * _spgemm_symbolic also gives what it finds on its way: the product's values, or where a plan's
 * products go. Each takes two or three matrices; frame_named tells their tensors apart in errors.
 * Results whose size is known only on the way are made by callbacks, of torch's memory as all
 * others, so that running out of it is torch's error. */
#include "../torch/frame.h"

#include <inttypes.h>

#define NAMED(m)                                                                                   \
    {                                                                                              \
        "ptr_" m, "idx_" m, "eid_" m, "plan_" m                                                    \
    }
static const char *const of_b[] = NAMED("b"), *const of_c[] = NAMED("c");
static const char *const of_x[] = NAMED("x"), *const of_y[] = NAMED("y");

/* Inputs k and k + 1 are values of two matrices; their dtype is that of the first which is one of
 * numbers, since absent values are of none. */
static bool take_factors(frame *f, int k, const char *const names[2], fmm_dense *first,
                         fmm_dense *second, fmm_dtype *dtype)
{
    tensor t, u;
    if (!frame_describe(f, k, &t) || !frame_describe(f, k + 1, &u) ||
        !frame_numbers(f, k, names[0], first) || !frame_numbers(f, k + 1, names[1], second))
        return false;
    return frame_is_float(t.dtype, dtype) || frame_is_float(u.dtype, dtype) ||
           frame_fail(f, "spgemm: %s or %s must be floating-point", names[0], names[1]);
}

/* The same, and a vector of n numbers of their dtype for the result. */
static bool take_values(frame *f, int k, const char *const names[2], fmm_dense *first,
                        fmm_dense *second, int64_t n, fmm_dense *result, tensor *made)
{
    fmm_dtype dtype;
    return take_factors(f, k, names, first, second, &dtype) &&
           frame_result(f, 1, dtype, n, 1, 1, made, result);
}

static const char *const of_factors[] = {"val", "val_b"};

/* What gives the symbolic phase its columns, values and what a plan keeps: tensors, once their
 * number is known. */
typedef struct columns_of {
    frame *f;
    tensor *made, *val, *kept;
    fmm_dtype dtype;
} columns_of;

static int32_t *columns(void *owner, int64_t nnz)
{
    const columns_of *c = owner;
    return frame_vector(c->f, nnz, fmm_torch.aoti_torch_dtype_int32(), c->made) ? c->made->data
                                                                                : NULL;
}

static int32_t *kept(void *owner, int64_t n)
{
    const columns_of *c = owner;
    return frame_vector(c->f, n, fmm_torch.aoti_torch_dtype_int32(), c->kept) ? c->kept->data
                                                                              : NULL;
}

static void *values(void *owner, int64_t nnz)
{
    const columns_of *c = owner;
    fmm_dense made;
    return frame_result(c->f, 1, c->dtype, nnz, 1, 1, c->val, &made) ? c->val->data : NULL;
}

/* (ptr, idx, eid, plan, the same of b, val, val_b, int cols, int want, bool keep) -> ptr, idx,
 * schedule, what a plan keeps of the products, if it should and pays, and where values are given
 * and were computed in the same pass those of the product; what is not wanted has no elements */
FMM_KERNEL(spgemm_symbolic, 10, 5)
{
    enum { B = 4, VAL = 8 };
    enum { PTR, IDX, SCHEDULE, KEPT, VALUES };
    fmm_csr a, b;
    fmm_dense none;
    tensor val, val_b;
    const int32_t int32 = fmm_torch.aoti_torch_dtype_int32();
    const int32_t int64 = fmm_torch.aoti_torch_dtype_int64();
    const fmm_spgemm_want want = (fmm_spgemm_want)frame_int(number[1]);
    fmm_spgemm_values with = {.values = values};
    columns_of owner = {.f = f, .made = &out[IDX], .val = &out[VALUES], .kept = &out[KEPT]};
    out[IDX] = out[KEPT] = out[VALUES] = (tensor){0};
    if (!frame_describe(f, VAL, &val) || !frame_describe(f, VAL + 1, &val_b)) return false;
    const bool whole = val.numel || val_b.numel || frame_is_float(val.dtype, &owner.dtype) ||
                       frame_is_float(val_b.dtype, &owner.dtype);
    if ((whole && !take_factors(f, VAL, of_factors, &with.a_val, &with.b_val, &owner.dtype)) ||
        !frame_named(f, B, of_b, (int64_t)number[0], &b) || !frame_matrix(f, b.rows, &a) ||
        !frame_vector(f, want == FMM_SPGEMM_CHUNKS ? 0 : a.rows + 1, int64, &out[PTR]) ||
        !frame_vector(f, FMM_SPGEMM_SCHEDULE, int64, &out[SCHEDULE]))
        return false;
    with.dtype = owner.dtype;
    const fmm_spgemm_pattern pattern = {.want = want,
                                        .ptr = out[PTR].data,
                                        .schedule = out[SCHEDULE].data,
                                        .columns = columns,
                                        .owner = &owner,
                                        .with = whole ? &with : NULL,
                                        .kept = number[2] ? kept : NULL};
    return frame_try(f, fmm_spgemm_symbolic(&f->exec, &a, &b, &pattern)) &&
           (out[IDX].handle || frame_vector(f, 0, int32, &out[IDX])) &&
           (out[KEPT].handle || frame_vector(f, 0, int32, &out[KEPT])) &&
           (out[VALUES].handle ||
            (whole ? frame_result(f, 1, owner.dtype, 0, 1, 1, &out[VALUES], &none)
                   : frame_vector(f, 0, int32, &out[VALUES])));
}

/* A list of the caller's: its length is checked here, what stands in it by kernels. */
static bool take_list(frame *f, int k, const char *name, bool wide, int64_t length, const void **to)
{
    tensor t;
    if (!frame_take_list(f, k, name, wide ? 8 : 4, &t)) return false;
    *to = t.data;
    return t.numel == length ||
           frame_fail(f, "spgemm: %s has %" PRId64 " elements, %" PRId64 " are needed", name,
                      t.numel, length);
}

/* (ptr, idx, eid, plan, the same of b, the same of c, schedule, colours, products, val, val_b, int
 * cols, bool masked, int algorithm) -> values of c; colours and products may be absent */
FMM_KERNEL(spgemm, 17, 1)
{
    enum { B = 4, C = 8, SCHEDULE = 12, COLOURS, PRODUCTS, VAL };
    fmm_csr a, b, c;
    fmm_dense val, c_val;
    tensor colours, products;
    const int64_t cols = (int64_t)number[0];
    const void *schedule, *colours_at = NULL;
    if (!frame_named(f, B, of_b, cols, &b) || !frame_named(f, C, of_c, cols, &c) ||
        !frame_matrix(f, b.rows, &a) ||
        !take_list(f, SCHEDULE, "schedule", true, FMM_SPGEMM_SCHEDULE, &schedule) ||
        !frame_describe(f, COLOURS, &colours) ||
        (colours.numel && !take_list(f, COLOURS, "colours", false, a.rows, &colours_at)) ||
        !frame_take_list(f, PRODUCTS, "products", 4, &products))
        return false;
    fmm_spgemm of = {.b = &b,
                     .c = &c,
                     .masked = number[1] != 0,
                     .schedule = schedule,
                     .colours = colours_at,
                     .products = products.data,
                     .kept = products.numel};
    return take_values(f, VAL, of_factors, &val, &of.b_val, c.nnz, &c_val, out) &&
           frame_try(f, fmm_spgemm_numeric(&f->exec, &a, &val, &of, &c_val, frame_int(number[2])));
}

/* (ptr, idx, eid, plan, the same of x, the same of y, val of x, val of y, int cols) -> a number for
 * each entry of the first matrix */
FMM_KERNEL(spgemm_dots, 14, 1)
{
    enum { X = 4, Y = 8, VAL_X = 12 };
    fmm_csr a, x, y;
    fmm_dense x_val, y_val, dots;
    const int64_t cols = (int64_t)number[0];
    return frame_named(f, X, of_x, cols, &x) && frame_named(f, Y, of_y, cols, &y) &&
           frame_matrix(f, y.rows, &a) &&
           take_values(f, VAL_X, (const char *const[]){"val_x", "val_y"}, &x_val, &y_val, a.nnz,
                       &dots, out) &&
           frame_try(f, fmm_spgemm_dots(&f->exec, &a, &x, &x_val, &y, &y_val, &dots));
}

/* (ptr, idx, eid, plan, int cols) -> a colour for each row, int32 */
FMM_KERNEL(spgemm_colours, 4, 1)
{
    fmm_csr c;
    return frame_matrix(f, (int64_t)number[0], &c) &&
           frame_vector(f, c.rows, fmm_torch.aoti_torch_dtype_int32(), out) &&
           frame_try(f, fmm_spgemm_colours(&f->exec, &c, out->data));
}

#define OTHER(m) "Tensor ptr_" m ", Tensor idx_" m ", Tensor eid_" m ", Tensor plan_" m ", "
const fmm_torch_operator fmm_torch_spgemm[] = {
    FMM_OPERATOR(_spgemm, spgemm,
                 "(" FMM_HALF OTHER("b")
                     OTHER("c") "Tensor schedule, Tensor colours, Tensor products, Tensor val, "
                                "Tensor val_b, int cols, bool masked, int algorithm) -> Tensor"),
    FMM_OPERATOR(_spgemm_colours, spgemm_colours, "(" FMM_HALF "int cols) -> Tensor"),
    {0},
};

const fmm_torch_operator fmm_torch_spgemm_symbolic[] = {
    FMM_OPERATOR(_spgemm_symbolic, spgemm_symbolic,
                 "(" FMM_HALF OTHER("b") "Tensor val, Tensor val_b, int cols, int want, "
                                         "bool keep=False) -> "
                                         "(Tensor, Tensor, Tensor, Tensor, Tensor)"),
    /* clang-format off */
    FMM_NUMBER(FMM_SPGEMM_CHUNKS), FMM_NUMBER(FMM_SPGEMM_COUNTS), FMM_NUMBER(FMM_SPGEMM_SORTED),
    FMM_NUMBER(FMM_SPGEMM_UNSORTED), FMM_NUMBER(FMM_SPGEMM_SCHEDULE),
    /* clang-format on */
    {0},
};

const fmm_torch_operator fmm_torch_spgemm_dots[] = {
    FMM_OPERATOR(_spgemm_dots, spgemm_dots,
                 "(" FMM_HALF OTHER("x") OTHER("y") "Tensor val_x, Tensor val_y, int cols) -> "
                                                    "Tensor"),
    {0},
};
