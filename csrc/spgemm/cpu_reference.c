/* The numeric phase as the formula reads, in double.
 *
 *     for each row i of c                      one owner each
 *         begin a sum for each of its columns
 *         for each entry (i, k) of A, for each entry (k, j) of B    in the order of storage
 *             add a * b to the sum of column j, if the row has one
 *
 * Sums are blocked: no accumulator adds more than FMM_BLOCK terms in a row. Entries out of range
 * are skipped, so any index content is safe. A worker has a sum for each column of B, whose terms
 * are -1 where the row at hand has no entry: products that fall there, as with a mask, are left
 * out. */
#include "../cpu/reference.h"
#include "cpu.h"

typedef struct reference {
    const fmm_call *call;
    const fmm_spgemm *of;
    blocked_sum *sums; /* a row of them for each worker */
} reference;

static void reference_row(const reference *t, blocked_sum *sums, int64_t i)
{
    const fmm_csr *a = t->call->a, *b = t->of->b, *c = t->of->c;
    const int64_t begin = row_begin(c, i), end = row_end(c, i);
    for (int64_t r = begin; r < end; r++) {
        const int64_t j = column_of(c, r);
        if (j >= 0) sums[j] = (blocked_sum){0};
    }
    for (int64_t p = row_begin(a, i), stop = row_end(a, i); p < stop; p++) {
        const int64_t k = column_of(a, p), edge = edge_of(a, p);
        if (k < 0 || edge < 0) continue;
        const double factor = value_of(t->call->val, edge, 0);
        for (int64_t q = row_begin(b, k), last = row_end(b, k); q < last; q++) {
            const int64_t j = column_of(b, q), b_edge = edge_of(b, q);
            if (j >= 0 && b_edge >= 0 && sums[j].terms >= 0)
                add(&sums[j], factor * value_of(&t->of->b_val, b_edge, 0));
        }
    }
    for (int64_t r = begin; r < end; r++) {
        const int64_t j = column_of(c, r), edge = edge_of(c, r);
        if (edge >= 0) put(t->call->y, edge, 0, 0, j < 0 ? 0 : total(&sums[j]));
    }
    for (int64_t r = begin; r < end; r++) {
        const int64_t j = column_of(c, r);
        if (j >= 0) sums[j].terms = -1;
    }
}

/* Chunks are those of the schedule, and taken as elsewhere: the formula alone is what differs. */
static void reference_rows(void *ctx, int worker, int64_t first, int64_t last)
{
    const reference *t = ctx;
    for (int64_t i = first; i < last; i++) reference_row(t, t->sums + worker * t->of->b->cols, i);
}

size_t fmm_spgemm_reference_workspace(const fmm_call *call)
{
    const fmm_spgemm *of = fmm_spgemm_of(call);
    return (size_t)(of->workers * of->b->cols) * sizeof(blocked_sum);
}

fmm_status fmm_spgemm_reference(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_spgemm *of = fmm_spgemm_of(call);
    reference t = {.call = call, .of = of, .sums = exec->workspace};
    for (int64_t j = 0; j < of->workers * of->b->cols; j++) t.sums[j].terms = -1;
    fmm_spgemm_crew(exec, of->workers, of->schedule, call->a->rows, reference_rows, &t);
    return FMM_OK;
}
