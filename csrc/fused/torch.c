/* fusedmm::_fused and its two gradient passes. */
#include "../torch/frame.h"

#include <string.h>

/* Tensors ptr, idx, eid, plan, val, x, y, z, [g, [kept,]] program, then numbers score, message,
 * activation and either reduce or `wanted`, then algorithm and rows_are. Wanted are out (1), out2
 * (2) and of the row pass kept (4), of the column pass the sum of both in out (4). */
enum { VAL = 4, X, Y, Z, G, KEPT };

/* The program [n, 5] float64 on the CPU, whatever the device of the others. */
static bool take_program(frame *f, int k, fmm_fusion *fusion, fmm_edge_step *steps)
{
    const AtenTensorHandle program = f->held[k];
    int64_t dim = 0, *size = NULL, *stride = NULL;
    int32_t dtype = 0, type = 0;
    void *data = NULL;
    fmm_torch.aoti_torch_get_dim(program, &dim);
    fmm_torch.aoti_torch_get_sizes(program, &size);
    fmm_torch.aoti_torch_get_strides(program, &stride);
    fmm_torch.aoti_torch_get_dtype(program, &dtype);
    fmm_torch.aoti_torch_get_device_type(program, &type);
    if (type != fmm_torch.aoti_torch_device_type_cpu() || dim != 2 || size[1] != 5 ||
        dtype != fmm_torch.aoti_torch_dtype_float64() || stride[1] != 1 ||
        size[0] > FMM_EDGE_STEPS || fmm_torch.aoti_torch_get_data_ptr(program, &data))
        return frame_fail(f, "an edge program is a CPU tensor [steps, 5] of float64, at most %d",
                          FMM_EDGE_STEPS);
    for (int64_t s = 0; s < size[0]; s++) {
        double row[5]; /* wherever it begins */
        int32_t part[4];
        memcpy(row, (const char *)data + s * stride[0] * (int64_t)sizeof *row, sizeof row);
        for (int c = 0; c < 4; c++) part[c] = row[c] >= 0 && row[c] < 256 ? (int32_t)row[c] : -1;
        steps[s] = (fmm_edge_step){part[0], part[1], part[2], part[3], row[4]};
    }
    fusion->steps = steps;
    fusion->count = size[0];
    return true;
}

typedef struct operands {
    fmm_csr a;
    fmm_dense val, x, y, z, g, kept;
    tensor x_given;
    fmm_edge_step steps[FMM_EDGE_STEPS];
    fmm_fusion fusion;
} operands;

static bool take(frame *f, const StableIValue *stack, int inputs, fmm_pass pass, operands *o)
{
    tensor given, z_given;
    const bool one = pass == FMM_MIRRORED; /* x is y and z too, given and made contiguous once */
    memset(o, 0, sizeof *o);
    o->fusion = (fmm_fusion){.pass = pass,
                             .score = (fmm_score)frame_int(stack[inputs]),
                             .message = (fmm_message)frame_int(stack[inputs + 1]),
                             .activation = (fmm_activation)frame_int(stack[inputs + 2])};
    if (!frame_begin(f, stack, inputs) || !frame_dense(f, X, "x", &o->x, &o->x_given)) return false;
    o->y = o->z = o->x;
    if ((!one && !frame_dense(f, Y, "y", &o->y, &given)) || !frame_values(f, VAL, &o->val) ||
        !frame_matrix(f, pass == FMM_COLS ? o->x.rows : o->y.rows, &o->a) ||
        !take_program(f, inputs - 1, &o->fusion, o->steps))
        return false;
    o->fusion.val = &o->val;
    o->fusion.x = &o->x;
    o->fusion.y = &o->y;
    /* A z without elements is absent unless the message needs it. */
    if (o->fusion.message == FMM_MESSAGE_SCALE) {
        if (!one && !frame_dense(f, Z, "z", &o->z, &z_given)) return false;
        o->fusion.z = &o->z;
    }
    if (pass == FMM_FORWARD) return true;
    o->fusion.g = &o->g;
    return frame_dense(f, G, "g", &o->g, &given);
}

enum { ONE_NUMBER = -1 };

/* A new [rows, (heads,) feat], with heads if x has them; feat ONE_NUMBER: [rows(, heads)]. */
static bool allocate(frame *f, const operands *o, int64_t rows, int64_t feat, tensor *t,
                     fmm_dense *d)
{
    const bool heads = o->x_given.dim == 3;
    const int64_t size[3] = {rows, heads ? o->x.heads : feat, feat};
    if (!frame_allocate(f, o->x_given.dim - (feat == ONE_NUMBER), size, o->x_given.dtype, t))
        return false;
    *d = o->x;
    d->data = t->data;
    d->rows = rows;
    d->feat = feat == ONE_NUMBER ? 1 : feat;
    d->head_stride = d->feat;
    d->row_stride = d->heads * d->feat;
    return true;
}

/* last: algorithm and rows_are. */
static void compute(frame *f, operands *o, const StableIValue *last)
{
    o->a.rows_are = (fmm_rows)frame_int(last[1]);
    f->status = fmm_fused(&f->exec, &o->a, &o->fusion, frame_int(last[0]));
}

static void forward(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { TENSORS = 9 };
    frame f;
    operands o;
    fmm_dense out_view;
    tensor out = {0};
    (void)inputs, (void)results;
    if (take(&f, stack, TENSORS, FMM_FORWARD, &o)) {
        o.fusion.reduce = (fmm_reduce)frame_int(stack[TENSORS + 3]);
        o.fusion.out = &out_view;
        const int64_t feat = o.fusion.z ? o.z.feat : o.x.feat;
        if (allocate(&f, &o, o.a.rows, feat, &out, &out_view)) compute(&f, &o, &stack[TENSORS + 4]);
    }
    frame_finish(&f, "fused", stack, &out, 1);
}

/* kept: a new tensor of the row pass, an input of the column pass that may be absent. */
static bool take_kept(frame *f, operands *o, bool rows, bool wanted, tensor *t)
{
    static const int64_t nothing = 0;
    tensor given;
    if (!rows) {
        if (!frame_take(f, KEPT, "kept", &given)) return false;
        if (given.dim < 2) return true; /* of no edges it has none, and is there */
        o->fusion.kept = &o->kept;
        return frame_dense(f, KEPT, "kept", &o->kept, &given);
    }
    const bool heads = o->x_given.dim == 3, wide = o->x.dtype == FMM_F64;
    const int64_t size[3] = {o->a.nnz, heads ? o->x.heads : 2, 2};
    const int32_t dtype =
        wide ? fmm_torch.aoti_torch_dtype_float64() : fmm_torch.aoti_torch_dtype_float32();
    if (!wanted) return frame_allocate(f, 1, &nothing, dtype, t);
    if (!frame_allocate(f, heads ? 3 : 2, size, dtype, t)) return false;
    o->kept = (fmm_dense){.data = t->data,
                          .dtype = wide ? FMM_F64 : FMM_F32,
                          .rows = o->a.nnz,
                          .heads = o->x.heads,
                          .feat = 2,
                          .row_stride = 2 * o->x.heads,
                          .head_stride = 2};
    o->fusion.kept = &o->kept;
    return true;
}

/* Both passes: out and out2 where wanted, else a tensor without elements; the row pass also kept.
 */
static void backward(StableIValue *stack, fmm_pass pass)
{
    const int tensors = pass == FMM_ROWS ? 10 : 11;
    static const int64_t nothing = 0;
    frame f;
    operands o;
    fmm_dense view[2];
    tensor out[3] = {{0}, {0}, {0}};
    const int64_t wanted = (int64_t)stack[tensors + 3];
    if (!take(&f, stack, tensors, pass, &o)) goto done;
    const bool rows = pass == FMM_ROWS;
    const int64_t feat[2] = {o.x.feat, rows ? ONE_NUMBER : o.z.feat};
    const int64_t count[2] = {o.a.rows, rows ? o.a.nnz : o.a.rows};
    for (int k = 0; k < 2; k++)
        if (wanted >> k & 1 ? !allocate(&f, &o, count[k], feat[k], &out[k], &view[k])
                            : !frame_allocate(&f, 1, &nothing, o.x_given.dtype, &out[k]))
            goto done;
    o.fusion.out = wanted & 1 ? &view[0] : NULL;
    o.fusion.out2 = wanted & 2 ? &view[1] : !rows && wanted & 4 ? &view[0] : NULL;
    if (!take_kept(&f, &o, rows, wanted & 4, &out[2])) goto done;
    compute(&f, &o, &stack[tensors + 4]);
done:
    frame_finish(&f, "fused", stack, out, pass == FMM_ROWS ? 3 : 2);
}

/* The sum of the gradients of x as x, y and z, which are without elements; val_t is in kept's
 * place. */
static void mirrored(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { TENSORS = 11 };
    frame f;
    operands o;
    fmm_dense out_view;
    tensor out = {0};
    (void)inputs, (void)results;
    if (take(&f, stack, TENSORS, FMM_MIRRORED, &o) && frame_numbers(&f, KEPT, "val_t", &o.kept)) {
        o.fusion.val_t = &o.kept;
        o.fusion.out = &out_view;
        if (allocate(&f, &o, o.a.rows, o.x.feat, &out, &out_view))
            compute(&f, &o, &stack[TENSORS + 3]);
    }
    frame_finish(&f, "fused", stack, &out, 1);
}

static void rows_pass(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    backward(stack, FMM_ROWS);
}

static void cols_pass(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    backward(stack, FMM_COLS);
}

#define OPERANDS FMM_HALF "Tensor val, Tensor x, Tensor y, Tensor z, "
#define KINDS "Tensor program, int score, int message, int activation, "
#define GRADIENT KINDS "int wanted, int algorithm" FMM_HALF_ROWS ") -> (Tensor, Tensor"
const fmm_torch_operator fmm_torch_fused[] = {
    {"_fused", "_fused(" OPERANDS KINDS "int reduce, int algorithm" FMM_HALF_ROWS ") -> Tensor",
     .kernel = forward},
    {"_fused_rows", "_fused_rows(" OPERANDS "Tensor g, " GRADIENT ", Tensor)", .kernel = rows_pass},
    {"_fused_cols", "_fused_cols(" OPERANDS "Tensor g, Tensor kept, " GRADIENT ")",
     .kernel = cols_pass},
    {"_fused_mirrored",
     "_fused_mirrored(" OPERANDS "Tensor g, Tensor val_t, " KINDS "int algorithm" FMM_HALF_ROWS
     ") -> Tensor",
     .kernel = mirrored},
#define X(id, ...) FMM_NUMBER(id),
    FMM_EDGE_LIST(X)
#undef X
    /* clang-format off */
    FMM_NUMBER(FMM_SCORE_NONE), FMM_NUMBER(FMM_SCORE_DOT), FMM_NUMBER(FMM_SCORE_SQDIST),
    FMM_NUMBER(FMM_SCORE_L1), FMM_NUMBER(FMM_SCORE_ADDITIVE), FMM_NUMBER(FMM_MESSAGE_SCALE),
    FMM_NUMBER(FMM_MESSAGE_ADD), FMM_NUMBER(FMM_MESSAGE_SUB), FMM_NUMBER(FMM_MESSAGE_MUL),
    FMM_NUMBER(FMM_MESSAGE_MAX), FMM_NUMBER(FMM_MESSAGE_MIN), FMM_NUMBER(FMM_ACT_NONE),
    FMM_NUMBER(FMM_ACT_RELU), FMM_NUMBER(FMM_ACT_LEAKY_RELU), FMM_NUMBER(FMM_ACT_SIGMOID),
    FMM_NUMBER(FMM_ACT_TANH), FMM_NUMBER(FMM_EDGE_REGISTERS), FMM_NUMBER(FMM_EDGE_STEPS),
    FMM_NUMBER(FMM_KEPT_FEAT),
    /* clang-format on */
    {0},
};
