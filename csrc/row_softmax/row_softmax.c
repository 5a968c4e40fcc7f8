/* Softmax over the entries p of each row i, for each of h numbers an entry, and its gradient:
 *
 *     w[p,h] = exp(x[p,h] - max of row i) / sum over row i of exp(x[.,h] - max of row i)
 *     gx[p,h] = w[p,h] (g[p,h] - sum over row i of w[.,h] g[.,h])
 *
 * Attention needs the same weights on its way and never stores them. Where they are the result, on
 * the CPU, these two passes over the entries take the place of attention's passes with scores of
 * nothing but a bias, and of an SpMM and an SDDMM in the gradient.
 *
 * A row of nothing but -infinity has weights 0. A NaN or +infinity makes its row's weights NaN.
 * Each row has one owner, which adds its terms in one order, so every run gives the same bits with
 * any number of threads. Sums are in f32 (f64 for f64), and none takes more than 512 terms in a
 * row. Cost: two (three) numbers read and one written for each entry and h. */
#include "row_softmax.h"
#include "../core/checks.h"
#include "../cpu/isa.h"
#include "../cpu/reference.h"

#include <math.h>

#define OP "row_softmax"

FMM_ISA_KERNELS(row_softmax)

/* What becomes of number h of entries [begin, end), by plain loops in double that believe no index.
 * It writes where the edge order says. */
static void plain_row(const fmm_call *call, int64_t begin, int64_t end, int64_t h)
{
    const fmm_dense *x = call->x, *w = call->val;
    double top = -INFINITY;
    for (int64_t p = begin; p < end && !w->data; p++) {
        const int64_t at = edge_of(call->a, p);
        const double here = at < 0 ? -INFINITY : get(x, at, 0, h);
        if (here > top || here != here) top = here;
    }
    if (top == -INFINITY) top = 0;
    blocked_sum sum = {0};
    for (int64_t p = begin; p < end; p++) {
        const int64_t at = edge_of(call->a, p);
        if (at < 0) continue;
        add(&sum, w->data ? get(w, at, 0, h) * get(x, at, 0, h) : exp(get(x, at, 0, h) - top));
    }
    for (int64_t p = begin; p < end; p++) {
        const int64_t at = edge_of(call->a, p);
        if (at < 0) continue;
        const double one = get(x, at, 0, h), all = total(&sum);
        put(call->y, at, 0, h,
            w->data    ? get(w, at, 0, h) * (one - all)
            : all == 0 ? 0
                       : exp(one - top) / all);
    }
}

/* The specification. It writes every entry, those that no row has too. */
static void reference(const fmm_call *call)
{
    const fmm_dense *y = call->y;
    for (int64_t p = 0; p < y->rows; p++)
        for (int64_t h = 0; h < y->feat; h++) put(y, p, 0, h, 0);
    for (int64_t i = 0; i < call->a->rows; i++)
        for (int64_t h = 0; h < y->feat; h++)
            plain_row(call, row_begin(call->a, i), row_end(call->a, i), h);
}

/* For a chunk with an index outside its range. It does nothing, since the reference then computes
 * the whole call. */
static void leave(const fmm_call *call, int64_t first, int64_t last)
{
    (void)call, (void)first, (void)last;
}

fmm_status fmm_row_softmax(const fmm_exec *exec, const fmm_row_softmax_call *call)
{
    const fmm_dense *x = &call->x;
    const fmm_csr *a = &call->a;
    fmm_isa level;
    REQUIRE(exec->device == FMM_CPU, FMM_UNSUPPORTED, OP ": runs on the CPU alone");
    TRY(fmm_check_matrix(OP, exec, a));
    TRY(fmm_check_shape(OP, call->back ? "g" : "x", x, x->dtype, a->nnz, 1, x->feat));
    TRY(fmm_check_shape(OP, "out", &call->out, x->dtype, a->nnz, 1, x->feat));
    if (call->back) TRY(fmm_check_shape(OP, "w", &call->w, x->dtype, a->nnz, 1, x->feat));
    if (!a->nnz || !x->feat) return FMM_OK;
    const fmm_call here = {.a = a, .val = &call->w, .x = x, .y = &call->out};
    atomic_bool forged = a->ptr[0] != 0 || a->ptr[a->rows] != a->nnz;
    TRY(fmm_isa_level(&level));
    fmm_rows_task task = {.call = &here,
                          .kernel = kernel_of(level, x->dtype),
                          .copy = fmm_isa_copy(level),
                          .guarded = leave,
                          .forged = &forged,
                          .heads = 1,
                          .feat = x->feat,
                          .uses_edges = true};
    fmm_exec with_room = *exec;
    with_room.workspace_bytes = fmm_rows_workspace(&here);
    if (with_room.workspace_bytes)
        TRY(exec->allocate(exec->owner, with_room.workspace_bytes, &with_room.workspace));
    TRY(fmm_rows_run(&with_room, &task, x, INT64_MAX));
    if (forged) reference(&here);
    return FMM_OK;
}
