/* fused: SDDMM, a function of each edge, and SpMM in one pass; edge scores never reach memory.
 *
 *     s = score(x[i,h,:], y[j,h,:])    w = edge(s, val[eid[p],h])
 *     out[i,h,:] = reduce over row i's entries p = (i,j) of w * act(message(x, y, z)[i,j,h,:])
 *
 * Precision: as sddmm and spmm, with s and w kept in f32 (f64 for f64).
 * Gradient: with m = act(message), g that of out and c[p] = <g[i], m[p]>, which is dL/dw,
 *     dL/ds = c ws    dL/dval = c wa    dL/dm = w g
 * and x and y take ds times the score's derivative plus dm times the message's. ROWS gathers that
 * for x and val, COLS on the transpose for y and z: both compute s, w and c anew, so one owner
 * writes each output, nothing is added atomically and nothing of the size of the edges is stored
 * but the gradient of val itself; unless the caller gives kept, where ROWS leaves w and ds for COLS
 * (on a CPU two dot products cost more than two numbers). Where the pattern is symmetric and x is y
 * and z, MIRRORED takes both passes at once: the rows that one gathers are those of the other.
 * Cost: forward 4, each gradient pass 8 nnz heads feat flops (dot, scale); every entry gathers one
 * row of each operand, once for all of its uses.
 *
 * Here: the contract. cpu_algorithms.c and cuda_algorithms.c choose, cpu*.inc and cuda*.cuh
 * compute. */
#include "../core/checks.h"

#include <inttypes.h>

/* Programs may come from anywhere: registers and operations are in range, the length is bounded. */
static fmm_status check_program(const fmm_fusion *f)
{
    if (f->function) return FMM_OK;
    VALID(f->count >= 0 && f->count <= FMM_EDGE_STEPS && (f->steps || !f->count),
          "fused: an edge program of %" PRId64 " steps, at most %d fit", f->count, FMM_EDGE_STEPS);
    for (int64_t k = 0; k < f->count; k++) {
        const fmm_edge_step *s = &f->steps[k];
        const uint32_t registers = FMM_EDGE_REGISTERS;
        VALID((uint32_t)s->op < FMM_EDGE_OPS && (uint32_t)s->out < registers &&
                  (uint32_t)s->left < registers && (uint32_t)s->right < registers,
              "fused: step %" PRId64 " of the edge program is (%d, %d, %d, %d)", k, s->op, s->out,
              s->left, s->right);
    }
    return FMM_OK;
}

/* What a pass writes overlaps neither itself nor what the pass reads. */
static fmm_status check_written(const fmm_fusion *f, const char *name, const fmm_dense *out)
{
    TRY(fmm_check_output("fused", name, out));
    TRY(fmm_check_apart("fused", out, "x", f->x));
    TRY(fmm_check_apart("fused", out, "y", f->y));
    TRY(fmm_check_apart("fused", out, "z", f->z));
    TRY(fmm_check_apart("fused", out, "g", f->g));
    return fmm_check_apart("fused", out, "val", f->val);
}

static fmm_status check_out(const fmm_fusion *f, const char *name, const fmm_dense *out,
                            int64_t rows, int64_t feat)
{
    if (!out) return FMM_OK;
    TRY(fmm_check_like("fused", name, out, f->x, rows, feat));
    return check_written(f, name, out);
}

static fmm_status check(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *f)
{
    TRY(fmm_check_matrix("fused", exec, a));
    VALID(f, "fused: fusion must be given");
    VALID((unsigned)f->pass <= FMM_MIRRORED && (unsigned)f->score <= FMM_SCORE_ADDITIVE &&
              (unsigned)f->message <= FMM_MESSAGE_MIN && (unsigned)f->activation <= FMM_ACT_TANH &&
              (unsigned)f->reduce <= FMM_MIN,
          "fused: no pass %d, score %d, message %d, activation %d or reduction %d", (int)f->pass,
          (int)f->score, (int)f->message, (int)f->activation, (int)f->reduce);
    const bool cols = f->pass == FMM_COLS, scale = f->message == FMM_MESSAGE_SCALE;
    const int64_t n = cols ? a->cols : a->rows, m = cols ? a->rows : a->cols;
    TRY(fmm_check_dense("fused", "x", f->x));
    TRY(fmm_check_like("fused", "x", f->x, f->x, n, f->x->feat));
    TRY(fmm_check_like("fused", "y", f->y, f->x, m, f->x->feat));
    VALID(f->score != FMM_SCORE_ADDITIVE || f->x->feat == 1,
          "fused: additive scores need x and y of 1 feature, not %" PRId64, f->x->feat);
    VALID(scale == (f->z != NULL), "fused: z goes with the message scale alone");
    if (scale) TRY(fmm_check_like("fused", "z", f->z, f->x, m, f->z->feat));
    const int64_t feat = scale ? f->z->feat : f->x->feat;
    TRY(fmm_check_values("fused", a, f->val, f->x->heads));
    int64_t scores; /* which some algorithms keep */
    VALID(!__builtin_mul_overflow(a->nnz, f->x->heads, &scores) && scores <= INT64_MAX / 16,
          "fused: %" PRId64 " heads of %" PRId64 " entries do not fit in 64 bits", f->x->heads,
          a->nnz);
    TRY(check_program(f));
    VALID(f->out || (f->out2 && f->pass != FMM_FORWARD), "fused: out must be given");
    if (f->pass == FMM_FORWARD) {
        VALID(!f->g && !f->out2, "fused: g and out2 belong to the gradients");
        return check_out(f, "out", f->out, n, feat);
    }
    VALID(f->reduce == FMM_SUM, "fused: gradients are those of a sum");
    TRY(fmm_check_like("fused", "g", f->g, f->x, n, feat));
    VALID(!cols || scale || !f->out2, "fused: no z, so no gradient of z");
    TRY(check_out(f, "out", f->out, cols ? m : n, f->x->feat));
    return check_out(f, "out2", f->out2, cols ? m : a->nnz, cols ? feat : 1);
}

static bool same(const fmm_dense *a, const fmm_dense *b)
{
    return a->data == b->data && a->feat == b->feat && a->row_stride == b->row_stride &&
           a->head_stride == b->head_stride;
}

/* The one pass over a symmetric pattern; that it is symmetric is the caller's word, and where it is
 * not the result is wrong, but nothing else is. */
static fmm_status check_mirrored(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *f)
{
    VALID(exec->device == FMM_CPU && f->score == FMM_SCORE_DOT && f->message == FMM_MESSAGE_SCALE &&
              f->activation == FMM_ACT_NONE && a->rows == a->cols && f->x->feat <= FMM_KEPT_FEAT &&
              same(f->x, f->y) && same(f->x, f->z) && f->out && !f->out2 && !f->kept,
          "fused: the mirrored pass is for one x of at most %d features as x, y and z, dot and "
          "scale without activation, on the CPU",
          FMM_KEPT_FEAT);
    const bool valued = f->val && f->val->data && a->nnz;
    VALID(!valued || (f->val_t && f->val_t->data), "fused: val without val_t");
    if (!valued) return FMM_OK;
    TRY(fmm_check_values("fused", a, f->val_t, f->x->heads));
    return fmm_check_apart("fused", f->out, "val_t", f->val_t);
}

/* kept, and where the sum of both gradients is wanted. */
static fmm_status check_kept(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *f)
{
    const bool joined = f->out && f->out == f->out2;
    VALID(!joined || (f->kept && f->pass == FMM_COLS),
          "fused: out2 is out, which a column pass with kept alone can add up");
    if (!f->kept) return FMM_OK;
    const fmm_dtype dtype = f->x->dtype == FMM_F64 ? FMM_F64 : FMM_F32;
    TRY(fmm_check_dense("fused", "kept", f->kept));
    TRY(check_written(f, "kept", f->kept));
    TRY(fmm_check_apart("fused", f->kept, "out", f->out));
    TRY(fmm_check_apart("fused", f->kept, "out2", f->out2));
    VALID(exec->device == FMM_CPU && f->pass != FMM_FORWARD && f->score == FMM_SCORE_DOT &&
              f->message == FMM_MESSAGE_SCALE && f->activation == FMM_ACT_NONE &&
              f->x->feat <= FMM_KEPT_FEAT && f->z->feat <= FMM_KEPT_FEAT,
          "fused: kept is for gradients of dot and scale without activation on the CPU, of at "
          "most %d features",
          FMM_KEPT_FEAT);
    VALID(f->kept->rows == a->nnz && f->kept->heads == f->x->heads &&
              f->kept->feat == FMM_KEPT_EACH && f->kept->dtype == dtype,
          "fused: kept should be %s [%" PRId64 ", %" PRId64 ", %d]", fmm_dtype_name(dtype), a->nnz,
          f->x->heads, FMM_KEPT_EACH);
    return FMM_OK;
}

static fmm_status prepare(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *fusion,
                          fmm_call *call)
{
    TRY(check(exec, a, fusion));
    TRY(check_kept(exec, a, fusion));
    if (fusion->pass == FMM_MIRRORED) TRY(check_mirrored(exec, a, fusion));
    *call = (fmm_call){.index = exec->index,
                       .a = a,
                       .val = fusion->val ? fusion->val : &fmm_absent,
                       .reduce = fusion->reduce,
                       .own = fusion};
    return FMM_OK;
}

fmm_status fmm_fused_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *fusion,
                               int algorithm, size_t *bytes)
{
    fmm_call call;
    *bytes = 0;
    TRY(prepare(exec, a, fusion, &call));
    return fmm_workspace(FMM_FUSED, exec, algorithm, &call, bytes);
}

static bool holds(const fmm_dense *d) { return d && d->rows && d->heads && d->feat; }

fmm_status fmm_fused(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *fusion,
                     int algorithm)
{
    fmm_call call;
    TRY(prepare(exec, a, fusion, &call));
    const bool keeps = fusion->pass == FMM_ROWS && holds(fusion->kept);
    return fmm_run(FMM_FUSED, exec, algorithm, &call,
                   !holds(fusion->out) && !holds(fusion->out2) && !keeps);
}
