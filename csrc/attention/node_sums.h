/* What additive attention asks of each node by itself; see node_sums.c. Internal: attention's
 * gradients and the layer that projects one tensor to q, k and v. */
#ifndef FMM_NODE_SUMS_H
#define FMM_NODE_SUMS_H

#include "../core/core.h"

typedef enum fmm_node_form {
    FMM_NODE_SCORES,
    FMM_NODE_DELTA,
    FMM_NODE_SPREAD,
    FMM_NODE_ADD,
} fmm_node_form;

enum { FMM_NODE_ROWS = 64, FMM_NODE_COLUMNS = 32 };

/* Nodes to a part of FMM_NODE_SPREAD. On a GPU a part's sums are 8 side by side, so that there are
 * at most 1,024 parts for the last block to add up while they stay short; on a CPU they are one. */
static inline int64_t fmm_node_rows(fmm_device device, int64_t n)
{
    enum { PARTS = 1024, MOST = 4096 };
    const int64_t rows = n / PARTS / FMM_NODE_ROWS * FMM_NODE_ROWS + FMM_NODE_ROWS;
    return device == FMM_CPU ? FMM_NODE_ROWS : rows < MOST ? rows : MOST;
}
static inline int64_t fmm_node_parts(fmm_device device, int64_t n)
{
    const int64_t rows = fmm_node_rows(device, n);
    return n ? n / rows + (n % rows != 0) : 1;
}
/* What COLS of additive attention gathers of a row on a GPU, as DELTA leaves it: numbers a head. */
enum { FMM_NODE_PACKED = 4 };

/* Sums are of f32 (f64 for f64), everything else of x's dtype. */
typedef struct fmm_node_call {
    fmm_node_form form;
    fmm_dense x;          /* [n, heads, feat]; DELTA: gout */
    fmm_dense att[2];     /* [1, heads, feat]: of k, of q; SCORES, SPREAD */
    fmm_dense score[2];   /* [n, heads]: k and q; SPREAD: their gradients; DELTA: q, and of it */
    fmm_dense value;      /* [n, heads, feat]; DELTA: out; SPREAD: gv; ADD: or absent */
    fmm_dense gout;       /* [n, heads, feat]; SPREAD, with total[2] */
    fmm_dense pos;        /* [n, heads, feat] sums, with score[1]; DELTA */
    fmm_dense lse, pos_w; /* [n, heads] sums; DELTA, pos_w with pos */
    fmm_dense lse_rest;   /* the same, or absent: zeros; DELTA, with packed */
    fmm_dense glse;       /* [n, heads] sums, or absent: zeros; DELTA */
    fmm_dense delta;      /* [n, heads] sums, a result of DELTA */
    fmm_dense out;        /* [n, heads, feat]; SPREAD; ADD, may be x */
    fmm_dense total[3];   /* [1, heads, feat], the last may be absent; SPREAD */
    fmm_dense parts;      /* [fmm_node_parts, 2 or 3 heads, feat] sums, scratch of SPREAD */
    void *packed; /* a GPU's, [n, FMM_NODE_PACKED heads] sums; DELTA, score[0], lse, its rest */
    uint32_t
        *arrived; /* a GPU's, one per FMM_NODE_COLUMNS channels: DELTA clears them for SPREAD */
    double slope;
} fmm_node_call;

fmm_status fmm_node_sums(const fmm_exec *exec, const fmm_node_call *call);

fmm_status fmm_node_sums_cpu(const fmm_exec *exec, const fmm_node_call *call);
fmm_status fmm_node_sums_cuda(const fmm_exec *exec, const fmm_node_call *call);

#endif
