/* fusedmm: sparse-dense kernels for graph neural networks. The whole C interface.
 *
 *     SpMM    y[i,h,:]     = reduce_p val[eid[p],h] * x[idx[p],h,:]
 *     SDDMM   e[eid[p],h]  = val[eid[p],h] * < a[i,h,:], b[idx[p],h,:] >
 *     fused   out[i,h,:]   = reduce_p edge(score(x[i], y[j]), val[eid[p],h]) * message(i, j)
 *
 * over the entries p = (i, j) of row i.
 *
 * A matrix is a borrowed CSR view, a dense operand a borrowed strided view; nothing here owns
 * memory. The caller allocates outputs and workspace, so the library can be captured in a CUDA
 * graph and an out-of-memory is the caller's to handle. Every function returns a status; on failure
 * fmm_last_error() holds one sentence with the offending index and value (one text per thread). */
#ifndef FUSEDMM_H
#define FUSEDMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FMM_API __attribute__((visibility("default")))
#define FMM_VERSION "0.1.0"

typedef enum fmm_status {
    FMM_OK,
    FMM_INVALID_ARGUMENT, /* the call is wrong: the text names what, where and its value */
    FMM_OUT_OF_MEMORY,
    FMM_UNSUPPORTED,  /* right, but not in this build, on this machine or by this algorithm */
    FMM_DEVICE_ERROR, /* the CUDA runtime refused */
} fmm_status;

typedef enum fmm_device { FMM_CPU, FMM_CUDA } fmm_device;

/* One line per element type: X(enum, name, bytes). Sums are kept in f32, in f64 for f64. */
#define FMM_DTYPE_LIST(X)                                                                          \
    X(FMM_F32, "f32", 4)                                                                           \
    X(FMM_F64, "f64", 8)                                                                           \
    X(FMM_F16, "f16", 2)                                                                           \
    X(FMM_BF16, "bf16", 2)
typedef enum fmm_dtype {
#define X(id, name, bytes) id,
    FMM_DTYPE_LIST(X)
#undef X
        FMM_DTYPES
} fmm_dtype;

typedef enum fmm_reduce { FMM_SUM, FMM_MEAN, FMM_MAX, FMM_MIN } fmm_reduce;

/* A [rows, cols] in CSR. Columns may repeat (entries add) and need not be sorted. */
typedef struct fmm_csr {
    int64_t rows, cols, nnz;
    const int64_t *ptr; /* [rows + 1], ptr[0] = 0, never falling, ptr[rows] = nnz */
    const int32_t *idx; /* [nnz], 0 <= idx < cols */
    const void *eid;    /* [nnz] int32 while nnz < 2^31, else int64: the position of entry p in the
                           caller's edge order, which val and e use; NULL is the identity */
    const void *plan;   /* made by fmm_plan for this structure and device, or NULL */
    size_t plan_bytes;
} fmm_csr;

/* x[r, h, c] = data[r * row_stride + h * head_stride + c]; strides in elements. data == NULL:
 * absent. Edge values are views with feat = 1: val[e, h], heads 1 serves every head. */
typedef struct fmm_dense {
    void *data;
    fmm_dtype dtype;
    int64_t rows, heads, feat, row_stride, head_stride;
} fmm_dense;

/* Calls body(begin, end, ctx) on disjoint ranges that cover [0, count), possibly in parallel. */
typedef void fmm_range(int64_t begin, int64_t end, void *ctx);
typedef void fmm_parallel_for(int64_t count, fmm_range *body, void *ctx);

/* Where and with what a call runs. A NULL parallel_for is serial. */
typedef struct fmm_exec {
    fmm_device device;
    int index;    /* CUDA device */
    void *stream; /* cudaStream_t */
    fmm_parallel_for *parallel_for;
    void *workspace; /* at least what the operator's _workspace function says, 16-byte aligned */
    size_t workspace_bytes;
} fmm_exec;

/* The operators. Numbers of algorithms: 0 chooses (fmm_algorithms lists the others). */
FMM_API fmm_status fmm_spmm(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                            const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce,
                            int algorithm);
FMM_API fmm_status fmm_spmm_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                                      const fmm_dense *x, const fmm_dense *y, fmm_reduce reduce,
                                      int algorithm, size_t *bytes);
FMM_API fmm_status fmm_sddmm(const fmm_exec *exec, const fmm_csr *s, const fmm_dense *val,
                             const fmm_dense *a, const fmm_dense *b, const fmm_dense *e,
                             int algorithm);
FMM_API fmm_status fmm_sddmm_workspace(const fmm_exec *exec, const fmm_csr *s, const fmm_dense *val,
                                       const fmm_dense *a, const fmm_dense *b, const fmm_dense *e,
                                       int algorithm, size_t *bytes);

/* Graph attention, a softmax over each row's entries:
 *     logit[p,h] = scale * < q[i,h,:], k[j,h,:] > + bias[e,h]             DOT
 *                = leaky(q[i,h] + k[j,h] + bias[e,h])                     ADDITIVE (feat 1: GAT)
 *                = < att[h,:], leaky(q[i,h,:] + k[j,h,:]) > + bias[e,h]   GATV2
 *     w[p,h]     = exp(logit[p,h] - lse[i,h]),  lse[i,h] = log sum_p exp(logit[p,h])
 *     u[p,h]     = keep(seed, e, h) / (1 - dropout) * weight[e,h] * w[p,h]
 *     out[i,h,:] = sum_p u[p,h] v[j,h,:]                          j = idx[p], e = eid[p]
 * leaky(t) is t or slope * t below 0. Rows without an entry above -infinity give out 0. The
 * backward passes recompute w from lse: nothing of the size edges x heads is kept. With
 * delta[i,h] = < out, gout > (less a gradient of lse), u' = u / w and t = u' < gout[i,h], v[j,h] >,
 * the gradient of a logit is w (t - delta). ROWS walks A and writes gq, gatt, gbias, gweight and
 * weights, those that are present; COLS walks the transpose and writes gk and gv.
 * pos[i,h,:] and pos_w[i,h] are the parts of out and of sum_p w that come from entries with leaky's
 * argument above 0, in the dtype of sums. ADDITIVE's gq follows from them without another walk:
 * (1 - slope) (< gout, pos > - delta pos_w) + slope * (the gradient of lse), 0 where lse is
 * -infinity. */
typedef enum fmm_attention_score { FMM_DOT, FMM_ADDITIVE, FMM_GATV2 } fmm_attention_score;
typedef enum fmm_attention_pass {
    FMM_ATTENTION_FORWARD, /* out and lse; pos and pos_w where both are present */
    FMM_ATTENTION_WEIGHTS, /* weights = u, from lse */
    FMM_ATTENTION_ROWS,
    FMM_ATTENTION_COLS,
} fmm_attention_pass;
typedef struct fmm_attention {
    fmm_attention_pass pass;
    fmm_attention_score score;
    double scale, slope, dropout;
    const int64_t *seed;    /* one number on the device, read where dropout > 0 */
    fmm_dense q, k, v;      /* [rows, heads, feat], [cols, heads, feat], [cols, heads, feat_v] */
    fmm_dense att;          /* [1, heads, feat], GATV2 */
    fmm_dense bias, weight; /* [nnz, heads, 1], weight also [nnz, 1, 1]; may be absent */
    fmm_dense out, lse;     /* [rows, heads, feat_v], [rows, heads, 1] in f32 (f64 for f64) */
    fmm_dense gout, delta;  /* as out, as lse: of the backward passes */
    fmm_dense gq, gk, gv;   /* as q, k, v */
    fmm_dense gatt;         /* [parts, heads, feat] as lse: the caller adds up the parts */
    fmm_dense gbias, gweight, weights; /* [nnz, heads, 1] */
    fmm_dense pos, pos_w; /* as out and lse, both as lse's dtype: ADDITIVE, may be absent */
} fmm_attention;

/* Philox4x32-10 decides what dropout keeps: word h % 4 of the block with key (seed low, high) and
 * counter (e low, e high, h / 4, 0) is at least dropout * 2^32. */
FMM_API fmm_status fmm_attend(const fmm_exec *exec, const fmm_csr *a, const fmm_attention *call,
                              int algorithm);
FMM_API fmm_status fmm_attend_workspace(const fmm_exec *exec, const fmm_csr *a,
                                        const fmm_attention *call, int algorithm, size_t *bytes);

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
 * for time: with kept, [nnz, heads, 2] in f32 (f64 for f64), ROWS leaves w and dL/ds of each edge
 * there, and COLS takes them instead of computing them; out2 == out then gets the sum of both
 * gradients. */
enum { FMM_KEPT_FEAT = 1024 };
typedef enum fmm_pass { FMM_FORWARD, FMM_ROWS, FMM_COLS } fmm_pass;
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
} fmm_fusion;
FMM_API fmm_status fmm_fused(const fmm_exec *exec, const fmm_csr *a, const fmm_fusion *fusion,
                             int algorithm);
FMM_API fmm_status fmm_fused_workspace(const fmm_exec *exec, const fmm_csr *a,
                                       const fmm_fusion *fusion, int algorithm, size_t *bytes);

/* What is wrong with a CSR: code 0 is nothing; where is the index into ptr or idx, value what
 * stands there. The lowest culprit is reported, ptr before idx. On CUDA `report` points to device
 * memory of 8 bytes and the call only enqueues; fmm_csr_report decodes the word once it was copied
 * back. */
typedef enum fmm_csr_code {
    FMM_CSR_OK,
    FMM_CSR_PTR_FIRST, /* ptr[0] != 0 */
    FMM_CSR_PTR_FALLS, /* ptr[where] < ptr[where - 1] */
    FMM_CSR_PTR_LAST,  /* ptr[rows] != nnz */
    FMM_CSR_IDX,       /* idx[where] outside [0, cols) */
} fmm_csr_code;
FMM_API fmm_status fmm_csr_check(const fmm_exec *exec, const fmm_csr *a, uint64_t *report);
FMM_API fmm_csr_code fmm_csr_report(uint64_t report, int64_t *where);

/* The CUDA plan: rows in order of falling length, long rows cut in segments of
 * fmm_plan_segment(nnz) entries. fmm_plan_bytes bounds its size from (rows, nnz) alone; fmm_plan
 * fills it without a synchronisation, workspace from fmm_plan_workspace. CPU kernels need no plan:
 * 0 bytes. */
FMM_API size_t fmm_plan_bytes(const fmm_exec *exec, const fmm_csr *a);
FMM_API fmm_status fmm_plan_workspace(const fmm_exec *exec, const fmm_csr *a, size_t *bytes);
FMM_API fmm_status fmm_plan(const fmm_exec *exec, const fmm_csr *a, void *plan);

/* The registry: entry k of an operator on a device, NULL past the end. Numbers never change
 * meaning. */
typedef enum fmm_operator {
    FMM_SPMM,
    FMM_SDDMM,
    FMM_ATTENTION,
    FMM_FUSED,
    FMM_OPERATORS
} fmm_operator;
typedef struct fmm_call { /* the operands of any operator; those it lacks are NULL */
    const fmm_csr *a;
    const fmm_dense *val, *x, *b, *y; /* SpMM: y = A x. SDDMM: x is a, b is b, y is e */
    fmm_reduce reduce;
    const fmm_attention *attention; /* ATTENTION: all but a */
    const fmm_fusion *fusion;       /* FUSED: all but a and val, which is never NULL */
} fmm_call;
typedef struct fmm_algorithm {
    int number;
    const char *name;   /* parameters after a colon: "rows:avx2" */
    const char *about;  /* one line */
    const char *source; /* paper or origin */
    bool deterministic;
    bool (*supports)(const fmm_call *);    /* NULL: everything */
    size_t (*workspace)(const fmm_call *); /* NULL: none */
    fmm_status (*run)(const fmm_exec *, const fmm_call *);
} fmm_algorithm;
FMM_API const fmm_algorithm *fmm_algorithms(fmm_operator op, fmm_device device, int k);
/* Adds a caller's own algorithm (number is assigned and returned through it, from 1000 up). The
 * struct must outlive the library's use. */
FMM_API fmm_status fmm_register(fmm_operator op, fmm_device device, fmm_algorithm *algorithm);

/* A plug-in is a shared library with one FMM_PLUGIN { host->add(...); return FMM_OK; }, which
 * exports two symbols; fusedmm.load_algorithms loads it (docs/plugins.md). The host's functions
 * come as pointers, so that a plug-in links nothing. FMM_ABI counts changes of the types above: a
 * plug-in built for another count is refused before it is called. */
#define FMM_ABI 1
typedef struct fmm_host {
    fmm_status (*add)(fmm_operator op, fmm_device device, fmm_algorithm *algorithm);
    fmm_status (*fail)(fmm_status status, const char *text); /* sets the message; returns status */
} fmm_host;
#ifdef __cplusplus
#define FMM_EXTERN extern "C" FMM_API
#else
#define FMM_EXTERN extern FMM_API
#endif
#define FMM_PLUGIN                                                                                 \
    FMM_EXTERN const int fmm_plugin_abi;                                                           \
    const int fmm_plugin_abi = FMM_ABI;                                                            \
    FMM_EXTERN fmm_status fmm_plugin(const fmm_host *host);                                        \
    fmm_status fmm_plugin(const fmm_host *host)
FMM_API const fmm_host *fmm_plugin_host(void);

FMM_API const char *fmm_last_error(void);
/* One line of JSON: version, compilers, ISA levels, CUDA architectures and runtime, needed driver.
 */
FMM_API const char *fmm_build_info(void);

/* Registers the torch operators with the torch that this process has loaded; NULL, or what is
 * wrong. */
FMM_API const char *fmm_torch_register(void);

#ifdef __cplusplus
}
#endif
#endif
