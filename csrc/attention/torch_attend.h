/* What the operators share that attend in one call: the matrix, what all passes take alike, and
 * views of what is kept from forward to backward or lives while a call runs. The functions that
 * return bool report as those of frame.h. */
#ifndef FMM_TORCH_ATTEND_H
#define FMM_TORCH_ATTEND_H

#include "../torch/frame.h"
#include "attention.h"
#include "node_sums.h"

/* Views that share memory begin at multiples of so many bytes. */
enum { FMM_ATTEND_APART = 256 };

/* A view among what forward keeps for backward, as the sum of what holds of it; else it is one
 * number per node and head, of the dtype given, and always kept. Each operator lists its views by
 * FMM_KEPT_NUMBER, from which Python's fakes compute how many bytes those take. */
enum {
    FMM_KEPT_SUMS = 1, /* of the dtype of sums */
    FMM_KEPT_WIDE = 2, /* feat numbers */
    /* kept only where this is wanted: what gradients take, and out where something is added to it
     */
    FMM_KEPT_WHOLE = 4,
    FMM_KEPT_ADDED = 8,
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

/* Input k: one int64, or nothing. */
bool attend_seed(attending *s, int k);
/* The matrix, inputs 0 to 3, of n rows and columns as what is called so has rows. */
bool attend_matrix(attending *s, const char *name);
/* Input k, [n, heads * feat], as [n, heads, feat]. */
bool attend_flat(attending *s, int k, const char *name, fmm_dense *d, tensor *t);
/* Input k, [heads * feat], as [n, heads, feat] with rows that share memory; absent without
 * elements. */
bool attend_bias(attending *s, int k, fmm_dense *bias);
/* Input k must be so many contiguous bytes. */
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

/* packed: what DELTA just packed, or NULL. */
bool attend_pass(attending *s, const fmm_attention *call, const void *packed);
bool attend_nodes(attending *s, const fmm_node_call *call);

#endif
