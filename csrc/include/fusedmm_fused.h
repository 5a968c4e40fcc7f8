/* fused: SDDMM, a function of each edge, and SpMM in one pass. Part of fusedmm.h. */
#ifndef FMM_FUSED_H
#define FMM_FUSED_H

#include "fusedmm.h"

FMM_C_BEGIN

/* The parts of fmm_fused. With i the row and j = idx[p] the column of entry p, per head:
 *
 *     s = score(x[i], y[j])      w = edge(s, a[p])      out[i] = reduce_p w * act(message)
 *
 * a is val, ones where absent; s is 1 without a score. ADDITIVE: x and y have one feature, s is
 * their sum. SCALE sends z[j], the others combine x[i] and y[j] channel by channel. */
typedef enum fmm_score {
    FMM_SCORE_NONE,
    FMM_SCORE_DOT,
    FMM_SCORE_SQDIST,
    FMM_SCORE_L1,
    FMM_SCORE_ADDITIVE,
} fmm_score;
typedef enum fmm_message {
    FMM_MESSAGE_SCALE,
    FMM_MESSAGE_ADD,
    FMM_MESSAGE_SUB, /* x[i] - y[j] */
    FMM_MESSAGE_MUL,
    FMM_MESSAGE_MAX,
    FMM_MESSAGE_MIN,
} fmm_message;
typedef enum fmm_activation {
    FMM_ACT_NONE,
    FMM_ACT_RELU,
    FMM_ACT_LEAKY_RELU, /* slope 0.01 */
    FMM_ACT_SIGMOID,
    FMM_ACT_TANH,
} fmm_activation;

/* The edge function: a program over registers, register 0 holding s and register 1 holding a at its
 * start; at its end register 0 holds w and, if it serves a gradient, 1 and 2 the derivatives of w
 * by s and by a. Or a function of n <= FMM_EDGE_TILE entries; ws and wa are NULL in the forward. */
enum { FMM_EDGE_REGISTERS = 16, FMM_EDGE_STEPS = 96, FMM_EDGE_TILE = 128 };
/* X(enum, result) with l and r the operands, k the constant */
#define FMM_EDGE_LIST(X)                                                                           \
    X(FMM_EDGE_CONST, k)                                                                           \
    X(FMM_EDGE_COPY, l)                                                                            \
    X(FMM_EDGE_ADD, l + r)                                                                         \
    X(FMM_EDGE_SUB, l - r)                                                                         \
    X(FMM_EDGE_MUL, l *r)                                                                          \
    X(FMM_EDGE_DIV, l / r)                                                                         \
    X(FMM_EDGE_NEG, -l)                                                                            \
    X(FMM_EDGE_POW, pow(l, k))                                                                     \
    X(FMM_EDGE_EXP, exp(l))                                                                        \
    X(FMM_EDGE_LOG, log(l))                                                                        \
    X(FMM_EDGE_SQRT, sqrt(l))                                                                      \
    X(FMM_EDGE_SIGMOID, 1 / (1 + exp(-l)))                                                         \
    X(FMM_EDGE_TANH, tanh(l))                                                                      \
    X(FMM_EDGE_SOFTPLUS, log(1 + exp(l)))                                                          \
    X(FMM_EDGE_ABS, | l |)                                                                         \
    X(FMM_EDGE_SIGN, -1 or 0 or 1)                                                                 \
    X(FMM_EDGE_MAX, NaN or max(l, r))                                                              \
    X(FMM_EDGE_MIN, NaN or min(l, r))                                                              \
    X(FMM_EDGE_LEAKY, l > 0 ? l : k * l, and 0 for k = 0)                                          \
    X(FMM_EDGE_STEP, l > 0 ? 1 : k)
typedef enum fmm_edge_op {
#define X(id, ...) id,
    FMM_EDGE_LIST(X)
#undef X
        FMM_EDGE_OPS
} fmm_edge_op;
typedef struct fmm_edge_step {
    int32_t op, out, left, right;
    double constant;
} fmm_edge_step;
typedef void fmm_edge_function(int64_t n, const double *s, const double *a, double *w, double *ws,
                               double *wa, void *ctx);

/* FORWARD computes out. The gradients recompute scores and weights; g is that of out (of a mean:
 * already divided by the row's entries), and reduce is sum:
 * ROWS, on A: out is the gradient of x, out2 [nnz, heads, 1] that of val.
 * COLS, on the transpose of A (a is the transpose, x still belongs to A's rows): out is the
 * gradient of y, out2 that of z (SCALE).
 * On the CPU a DOT of at most FMM_KEPT_FEAT features with SCALE and no activation may trade memory
 * for time: with kept, [nnz, heads, FMM_KEPT_EACH] in f32 (f64 for f64), ROWS leaves w and dL/ds of
 * each edge there, and COLS takes them instead of computing them; out2 == out then gets the sum of
 * both gradients. MIRRORED, on A, for such a fusion on the CPU of one x that is y and z too, where
 * A and its transpose have the same ptr and idx: out is the sum of the three gradients, val_t the
 * values in the order of the transpose. */
enum { FMM_KEPT_FEAT = 1024, FMM_KEPT_EACH = 2 };
typedef enum fmm_pass { FMM_FORWARD, FMM_ROWS, FMM_COLS, FMM_MIRRORED } fmm_pass;
typedef struct fmm_fusion {
    fmm_pass pass;
    fmm_score score;
    fmm_message message;
    fmm_activation activation;
    fmm_reduce reduce;
    const fmm_edge_step *steps; /* host memory */
    int64_t count;
    fmm_edge_function *function; /* instead of steps where not NULL; CPU only */
    void *ctx;
    const fmm_dense *val, *x, *y; /* val NULL: ones */
    const fmm_dense *z;           /* SCALE: [cols, heads, feat]; else NULL */
    const fmm_dense *g;           /* as the forward's out; NULL in the forward */
    const fmm_dense *out, *out2;  /* NULL: not wanted */
    const fmm_dense *kept;        /* NULL: everything is computed anew */
    const fmm_dense *val_t;       /* MIRRORED with val: [nnz, heads or 1, 1], in rows' order */
} fmm_fusion;

/* All operands of a call of FMM_FUSED but its matrix and its val, which is never NULL. */
static inline const fmm_fusion *fmm_fusion_of(const fmm_call *call)
{
    return (const fmm_fusion *)call->own;
}

FMM_API fmm_status fmm_fused(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *fusion,
                             int algorithm);
FMM_API fmm_status fmm_fused_workspace(const fmm_exec *exec, const fmm_csr *a,
                                       const fmm_fusion *fusion, int algorithm, size_t *bytes);

FMM_C_END
#endif
