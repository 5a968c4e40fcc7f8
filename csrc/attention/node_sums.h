/* Sums over the channels of single nodes, and over nodes, which additive attention needs beside its
 * walks over entries. node_sums.c has the equations. This interface is internal: the torch
 * operators of attention use it. */
#pragma once

#include "../core/core.h"

FMM_C_BEGIN

typedef enum fmm_node_form {
    FMM_NODE_SCORES,
    FMM_NODE_DELTA,
    FMM_NODE_SPREAD,
    FMM_NODE_ADD,
} fmm_node_form;

/* FMM_NODE_ROWS is the fewest nodes that a part of SPREAD has. On a GPU a block of SPREAD owns at
 * least FMM_NODE_COLUMNS channels, if there are as many. */
enum { FMM_NODE_ROWS = 64, FMM_NODE_COLUMNS = 32 };

/* How many nodes a part of SPREAD has. A CPU adds up the nodes of a part one after the other, so a
 * part has FMM_NODE_ROWS. A GPU block has at least 8 sums side by side for each channel. So it can
 * take more nodes, up to MOST, and there are about PARTS parts for the last block to add up. */
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
/* COLS of additive attention gathers this many numbers of a row and head on a GPU. DELTA can leave
 * them where COLS reads them. */
enum { FMM_NODE_PACKED = 4 };

/* A call of one form; the forms that use an operand stand behind it. `sums` marks tensors of the
 * type of sums, f32 (f64 for f64). All others have x's dtype. */
typedef struct fmm_node_call {
    fmm_node_form form;
    fmm_dense x;        /* [n, heads, feat]; of DELTA it is gout */
    fmm_dense att[2];   /* [1, heads, feat] of k and of q: SCORES, SPREAD */
    fmm_dense score[2]; /* [n, heads] k and q: SCORES; their gradients: SPREAD; q and its gradient,
                         * either may be absent: DELTA */
    fmm_dense value;    /* [n, heads, feat] out: DELTA; gv: SPREAD; what to add, or absent: ADD */
    fmm_dense gout;     /* [n, heads, feat]: SPREAD, with total[2] */
    fmm_dense pos;      /* [n, heads, feat] sums: DELTA, with score[1] */
    fmm_dense lse, pos_w; /* [n, heads] sums: DELTA, pos_w with pos */
    fmm_dense lse_rest;   /* [n, heads] sums, zeros if absent: DELTA, with packed */
    fmm_dense glse;       /* [n, heads] sums, the gradient of lse, zeros if absent: DELTA */
    fmm_dense delta;      /* [n, heads] sums, a result: DELTA */
    fmm_dense out;        /* [n, heads, feat], a result: SPREAD; ADD, where it may be x */
    fmm_dense total[3];   /* [1, heads, feat], results, the last may be absent: SPREAD */
    fmm_dense parts;      /* [fmm_node_parts, 2 or 3 heads, feat] sums, scratch: SPREAD */
    void *packed;      /* [n, FMM_NODE_PACKED heads] sums, a result on a GPU, or NULL: DELTA, with
                        * score[0] and lse */
    uint32_t *arrived; /* scratch on a GPU, a counter for FMM_NODE_COLUMNS channels each. DELTA sets
                        * them to 0, SPREAD counts. */
    double slope;
} fmm_node_call;

/* Checks the operands of the call and runs it on exec's device. */
fmm_status fmm_node_sums(const fmm_exec *exec, const fmm_node_call *call);

/* The kernels of the two devices, which rely on these checks. */
fmm_status fmm_node_sums_cpu(const fmm_exec *exec, const fmm_node_call *call);
fmm_status fmm_node_sums_cuda(const fmm_exec *exec, const fmm_node_call *call);

FMM_C_END
