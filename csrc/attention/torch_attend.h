/* What the operators share that attend in one call: the matrix, what all passes take alike, and
 * views of what is kept from forward to backward or lives while a call runs. The functions that
 * return bool report as those of frame.h. */
#ifndef FMM_TORCH_ATTEND_H
#define FMM_TORCH_ATTEND_H

#include "../torch/frame.h"
#include "attention.h"
#include "node_sums.h"

/* Bytes between views that share memory. */
enum { FMM_ATTEND_APART = 256 };

typedef struct attending {
    frame f;
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

/* Contiguous [rows, heads, feat], of the dtype given or of sums. */
fmm_dense attend_view(const attending *s, void *data, bool sums, int64_t rows, int64_t heads,
                      int64_t feat);
/* A new tensor of that kind; of two dimensions if dim is 2. */
bool attend_give(attending *s, fmm_dense *d, tensor *t, int64_t dim, bool sums, int64_t rows,
                 int64_t heads, int64_t feat);
bool attend_bytes(attending *s, int64_t bytes, tensor *t);
/* Places d behind the bytes so far, which it adds to, each view apart; without a base no data. */
void attend_carve(unsigned char *base, int64_t *bytes, fmm_dense *d);

/* packed: what DELTA just packed, or NULL. */
bool attend_pass(attending *s, const fmm_attention *call, const void *packed);
bool attend_nodes(attending *s, const fmm_node_call *call);

#endif
