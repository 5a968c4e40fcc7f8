/* What the operators share that attend in one call: the matrix, what all passes take alike, and
 * views of what is kept from forward to backward or lives while a call runs. The functions that
 * return bool report as those of frame.h. */
#pragma once

#include "../torch/frame.h"
#include "attention.h"
#include "node_sums.h"

/* Views that share memory begin at multiples of so many bytes. */
enum { FMM_ATTEND_APART = 256 };

/* What holds of a view that forward keeps for backward. Without any of these bits it has one number
 * for each node and head, is of the operands' dtype, and is always kept. Each operator lists its
 * views and their bits by FMM_KEPT_NUMBER, from which Python's fakes compute how many bytes the
 * views take. */
enum {
    FMM_KEPT_SUMS = 1, /* of the dtype of sums */
    FMM_KEPT_WIDE = 2, /* feat numbers */
    /* Kept only where the same bit is wanted: */
    FMM_KEPT_WHOLE = 4, /* what gradients need beside it */
    FMM_KEPT_ADDED = 8, /* out, where something is added to it afterwards */
};
/* clang-format off */
#define FMM_KEPT_NUMBER(operator, view, holds) {.name = "FMM_KEPT_" #operator "_" #view, .value = holds}
/* clang-format on */

typedef struct attending {
    frame *f;
    fmm_csr a;
    fmm_attention call; /* score, scale, slope, dropout and seed, which begin every pass */
    int32_t given;      /* torch's number of dtype */
    fmm_dtype dtype;
    int64_t n, heads, feat;
} attending;

/* Input k of any of attention's operators: one int64, or that and a key for each of nnz edges; or
 * nothing, which leaves the call's seed NULL. */
bool attend_seed(frame *f, int k, int64_t nnz, fmm_attention *call);
/* Input k, [1, heads, C]. */
bool attend_att(frame *f, int k, const char *name, fmm_dense *d);
/* Takes the matrix, inputs 0 to 3. It must have n rows and columns, as many as the operand of that
 * name has rows. */
bool attend_matrix(attending *s, const char *name);
/* Input k, [n, heads * feat], as [n, heads, feat]. */
bool attend_flat(attending *s, int k, const char *name, fmm_dense *d, tensor *t);
/* Input k, [heads * feat], as [n, heads, feat] with rows that share memory; absent without
 * elements. */
bool attend_bias(attending *s, int k, fmm_dense *bias);
/* The inputs of a backward from `first` on: out, what was kept, and gout. out is absent where it is
 * among what was kept. delta gets out and gout. */
bool attend_backward(attending *s, int first, fmm_node_call *delta, tensor *kept);
/* What was kept must be so many contiguous bytes. */
bool attend_kept(attending *s, int64_t bytes, const tensor *t);

bool attend_bytes(attending *s, int64_t bytes, tensor *t);
/* Views that share memory from `base` on, and how much of it they take so far. Without a base they
 * have no data, and only the bytes are counted. */
typedef struct carving {
    const attending *s;
    unsigned char *base;
    int64_t bytes;
} carving;
fmm_dense attend_carve(carving *c, bool sums, int64_t rows, int64_t heads, int64_t feat);
/* The next view of what is kept; one without data if it is not among what is wanted. */
fmm_dense attend_carve_kept(carving *c, int holds, int wanted);
/* Of an operator's LIST of X(view, its bits), where a view is a field of fmm_attention: defines a
 * function that lays the views of a call out from `base` on and returns how many bytes they take.
 */
#define FMM_KEPT_CARVE(view, holds) call->view = attend_carve_kept(&c, holds, wanted);
#define FMM_KEPT_LAYOUT(LIST)                                                                      \
    static int64_t lay_out(const attending *s, int wanted, unsigned char *base,                    \
                           fmm_attention *call)                                                    \
    {                                                                                              \
        carving c = {s, base, 0};                                                                  \
        LIST(FMM_KEPT_CARVE)                                                                       \
        return c.bytes;                                                                            \
    }

/* packed: what DELTA just packed, or NULL. */
bool attend_pass(attending *s, const fmm_attention *call, const void *packed);
bool attend_nodes(attending *s, const fmm_node_call *call);
