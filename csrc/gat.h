/* What additive attention asks of each node by itself; see gat.c. Internal: attention's gradients
 * and the layer that projects one tensor to q, k and v. */
#ifndef FMM_GAT_H
#define FMM_GAT_H

#include "core.h"

typedef enum fmm_gat_form { FMM_GAT_SCORES, FMM_GAT_DELTA, FMM_GAT_SPREAD } fmm_gat_form;

enum { FMM_GAT_ROWS = 64 }; /* nodes to a part of FMM_GAT_SPREAD */

/* Sums are of f32 (f64 for f64), everything else of x's dtype. */
typedef struct fmm_gat_call {
    fmm_gat_form form;
    fmm_dense x;          /* [n, heads, feat]; DELTA: gout */
    fmm_dense att[2];     /* [1, heads, feat]: of k, of q; SCORES, SPREAD */
    fmm_dense score[2];   /* [n, heads]: k and q; SPREAD: their gradients; DELTA: [1] is gq */
    fmm_dense value;      /* [n, heads, feat]; DELTA: out; SPREAD: gv */
    fmm_dense gout;       /* [n, heads, feat], or absent; SPREAD */
    fmm_dense pos;        /* [n, heads, feat] sums, with score[1]; DELTA */
    fmm_dense lse, pos_w; /* [n, heads] sums; DELTA, pos_w with pos */
    fmm_dense glse;       /* [n, heads] sums, or absent: zeros; DELTA */
    fmm_dense delta;      /* [n, heads] sums, a result of DELTA */
    fmm_dense out, parts; /* [n, heads, feat]; [ceil(n / FMM_GAT_ROWS), 2 or 3 heads, feat] sums */
    double slope;
} fmm_gat_call;

fmm_status fmm_gat(const fmm_exec *exec, const fmm_gat_call *call);

fmm_status fmm_cpu_gat(const fmm_exec *exec, const fmm_gat_call *call);
fmm_status fmm_cuda_gat(const fmm_exec *exec, const fmm_gat_call *call);

#endif
