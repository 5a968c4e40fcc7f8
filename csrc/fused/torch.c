/* fusedmm::_fused and its two gradient passes. */
#include "../torch/frame.h"

#include <string.h>

/* Tensors ptr, idx, eid, plan, val, x, y, z, [g, [kept,]] program, then numbers score, message,
 * activation and either reduce or `wanted`, then algorithm, rows_are and whole_nnz. */
enum { VAL = 4, X, Y, Z, G, KEPT };
enum {
    FMM_WANT_OUT = 1,
    FMM_WANT_OUT2 = 2,
    FMM_WANT_KEPT = 4, /* of the row pass */
    FMM_WANT_SUM = 4,  /* of the column pass: out and out2 in one, which is out */
};

/* The program [n, 5] float64 on the CPU, whatever the device of the others. */
static bool take_program(frame *f, int k, fmm_fusion *fusion, fmm_edge_step *steps)
{
    tensor t;
    int32_t device = 0;
    fmm_torch.aoti_torch_get_device_type(f->held[k], &device);
    if (device != fmm_torch.aoti_torch_device_type_cpu() || !frame_describe(f, k, &t) ||
        t.dim != 2 || t.size[1] != 5 || t.dtype != fmm_torch.aoti_torch_dtype_float64() ||
        t.stride[1] != 1 || t.size[0] > FMM_EDGE_STEPS)
        return frame_fail(f, "an edge program is a CPU tensor [steps, 5] of float64, at most %d",
                          FMM_EDGE_STEPS);
    for (int64_t s = 0; s < t.size[0]; s++) {
        double row[5]; /* wherever it begins */
        int32_t part[4];
        memcpy(row, (const char *)t.data + s * t.stride[0] * (int64_t)sizeof *row, sizeof row);
        for (int c = 0; c < 4; c++) part[c] = row[c] >= 0 && row[c] < 256 ? (int32_t)row[c] : -1;
        steps[s] = (fmm_edge_step){part[0], part[1], part[2], part[3], row[4]};
    }
    fusion->steps = steps;
    fusion->count = t.size[0];
    return true;
}

typedef struct operands {
    fmm_csr a;
    fmm_dense val, x, y, z, g, kept;
    tensor x_given;
    fmm_edge_step steps[FMM_EDGE_STEPS];
    fmm_fusion fusion;
} operands;

static bool take(frame *f, const StableIValue *number, int inputs, fmm_pass pass, operands *o)
{
    const bool one = pass == FMM_MIRRORED; /* x is y and z too, given and made contiguous once */
    memset(o, 0, sizeof *o);
    o->fusion = (fmm_fusion){.pass = pass,
                             .score = (fmm_score)frame_int(number[0]),
                             .message = (fmm_message)frame_int(number[1]),
                             .activation = (fmm_activation)frame_int(number[2])};
    if (!frame_dense(f, X, "x", &o->x, &o->x_given)) return false;
    o->y = o->z = o->x;
    if ((!one && !frame_dense(f, Y, "y", &o->y, NULL)) || !frame_values(f, VAL, &o->val) ||
        !frame_matrix(f, pass == FMM_COLS ? o->x.rows : o->y.rows, &o->a) ||
        !take_program(f, inputs - 1, &o->fusion, o->steps))
        return false;
    o->fusion.val = &o->val;
    o->fusion.x = &o->x;
    o->fusion.y = &o->y;
    /* A z without elements is absent unless the message needs it. */
    if (o->fusion.message == FMM_MESSAGE_SCALE) {
        if (!one && !frame_dense(f, Z, "z", &o->z, NULL)) return false;
        o->fusion.z = &o->z;
    }
    if (pass == FMM_FORWARD) return true;
    o->fusion.g = &o->g;
    return frame_dense(f, G, "g", &o->g, NULL);
}

enum { ONE_NUMBER = -1 };

/* A new [rows, (heads,) feat], with heads if x has them; feat ONE_NUMBER: [rows(, heads)]. */
static bool allocate(frame *f, const operands *o, bool wanted, int64_t rows, int64_t feat,
                     tensor *t, fmm_dense *d)
{
    const bool one = feat == ONE_NUMBER;
    return frame_result_if(f, wanted, o->x_given.dim - one, o->x.dtype, rows, o->x.heads,
                           one ? 1 : feat, t, d);
}

/* last: algorithm, rows_are and whole_nnz. */
static bool compute(frame *f, operands *o, const StableIValue *last)
{
    o->a.rows_are = (fmm_rows)frame_int(last[1]);
    o->a.whole.nnz = (int64_t)last[2];
    return frame_try(f, fmm_fused(&f->exec, &o->a, &o->fusion, frame_int(last[0])));
}

FMM_KERNEL(forward, 9, 1)
{
    operands o;
    fmm_dense out_view;
    if (!take(f, number, 9, FMM_FORWARD, &o)) return false;
    o.fusion.reduce = (fmm_reduce)frame_int(number[3]);
    o.fusion.out = &out_view;
    const int64_t feat = o.fusion.z ? o.z.feat : o.x.feat;
    return allocate(f, &o, true, o.a.rows, feat, out, &out_view) && compute(f, &o, &number[4]);
}

/* kept: a new tensor of the row pass, an input of the column pass that may be absent. */
static bool take_kept(frame *f, operands *o, bool rows, bool wanted, tensor *t)
{
    tensor given;
    if (!rows) {
        if (!frame_take(f, KEPT, "kept", &given)) return false;
        /* Absent, since that of a matrix without edges has 2 dimensions or 3. */
        if (given.dim < 2) return true;
        o->fusion.kept = &o->kept;
        return frame_dense(f, KEPT, "kept", &o->kept, NULL);
    }
    if (wanted) o->fusion.kept = &o->kept;
    return frame_result_if(f, wanted, o->x_given.dim, frame_sums(o->x.dtype), o->a.nnz, o->x.heads,
                           FMM_KEPT_EACH, t, &o->kept);
}

/* Both passes: out and out2 where wanted, else a tensor without elements; the row pass also kept.
 */
static bool backward(frame *f, const StableIValue *number, tensor *out, fmm_pass pass)
{
    const bool rows = pass == FMM_ROWS;
    operands o;
    fmm_dense view[2];
    const int64_t wanted = (int64_t)number[3];
    if (!take(f, number, rows ? 10 : 11, pass, &o)) return false;
    const int64_t feat[2] = {o.x.feat, rows ? ONE_NUMBER : o.z.feat};
    const int64_t count[2] = {o.a.rows, rows ? o.a.nnz : o.a.rows};
    for (int k = 0; k < 2; k++)
        if (!allocate(f, &o, wanted >> k & 1, count[k], feat[k], &out[k], &view[k])) return false;
    o.fusion.out = wanted & FMM_WANT_OUT ? &view[0] : NULL;
    o.fusion.out2 = wanted & FMM_WANT_OUT2           ? &view[1]
                    : !rows && wanted & FMM_WANT_SUM ? &view[0]
                                                     : NULL;
    return take_kept(f, &o, rows, wanted & FMM_WANT_KEPT, &out[2]) && compute(f, &o, &number[4]);
}

FMM_KERNEL(rows_pass, 10, 3) { return backward(f, number, out, FMM_ROWS); }
FMM_KERNEL(cols_pass, 11, 2) { return backward(f, number, out, FMM_COLS); }

/* The sum of the gradients of x as x, y and z, which are without elements; val_t is in kept's
 * place. */
FMM_KERNEL(mirrored, 11, 1)
{
    operands o;
    fmm_dense out_view;
    if (!take(f, number, 11, FMM_MIRRORED, &o) || !frame_numbers(f, KEPT, "val_t", &o.kept))
        return false;
    o.fusion.val_t = &o.kept;
    o.fusion.out = &out_view;
    return allocate(f, &o, true, o.a.rows, o.x.feat, out, &out_view) && compute(f, &o, &number[3]);
}

#define OPERANDS FMM_HALF "Tensor val, Tensor x, Tensor y, Tensor z, "
#define KINDS "Tensor program, int score, int message, int activation, "
#define GRADIENT KINDS "int wanted, int algorithm=0" FMM_HALF_ROWS ") -> (Tensor, Tensor"
const fmm_torch_operator fmm_torch_fused[] = {
    FMM_OPERATOR(_fused, forward,
                 "(" OPERANDS KINDS "int reduce=0, int algorithm=0" FMM_HALF_ROWS ") -> Tensor"),
    FMM_OPERATOR(_fused_rows, rows_pass, "(" OPERANDS "Tensor g, " GRADIENT ", Tensor)"),
    FMM_OPERATOR(_fused_cols, cols_pass, "(" OPERANDS "Tensor g, Tensor kept, " GRADIENT ")"),
    FMM_OPERATOR(_fused_mirrored, mirrored,
                 "(" OPERANDS "Tensor g, Tensor val_t, " KINDS "int algorithm=0" FMM_HALF_ROWS
                 ") -> Tensor"),
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
    FMM_NUMBER(FMM_KEPT_FEAT), FMM_NUMBER(FMM_KEPT_EACH), FMM_NUMBER(FMM_WANT_OUT),
    FMM_NUMBER(FMM_WANT_OUT2), FMM_NUMBER(FMM_WANT_KEPT), FMM_NUMBER(FMM_WANT_SUM),
    /* clang-format on */
    {0},
};
