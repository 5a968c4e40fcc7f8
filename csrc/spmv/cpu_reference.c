/* SpMV as the formula reads, in double, whatever the format.
 *
 *     for each row i                            one owner each
 *         for each entry (i, j) of value v      in the order of storage
 *             add v * x[j]
 *         y[i] = alpha * sum + beta * y_in[i]
 *
 * COO's rows are sought by bisection, since row never falls. Sums are blocked: no accumulator adds
 * more than FMM_BLOCK terms in a row. What is out of range is no entry. */
#include "../cpu/reference.h"
#include "cpu.h"

/* Entry p of CSR or COO. Both checks are made, since forged numbers must not leave the operands. */
static void add_entry(blocked_sum *sum, const fmm_call *call, int64_t p)
{
    const int64_t edge = call->val->data ? edge_of(call->a, p) : 0;
    const int64_t j = column_of(call->a, p);
    if (j >= 0 && edge >= 0) add(sum, value_of(call->val, edge, 0) * get(call->x, j, 0, 0));
}

/* An element of a padded format; DIA's zeros and columns outside are padding. */
static void add_padded(blocked_sum *sum, const fmm_call *call, int64_t at, int64_t j)
{
    const fmm_spmv_matrix *a = fmm_spmv_of(call)->matrix;
    const double v = get(a->padded_val, at, 0, 0);
    if (j < 0 || j >= a->csr.cols || (a->format == FMM_FORMAT_DIA && v == 0)) return;
    add(sum, v * get(call->x, j, 0, 0));
}

/* The first entry of COO whose row is at least i. */
static int64_t first_of_row(const fmm_spmv_matrix *a, int64_t i)
{
    int64_t low = 0, high = a->csr.nnz;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (a->row[middle] < i)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Alpha and beta are applied in double, and the result is rounded once. */
static void put_row(const fmm_call *call, int64_t i, const blocked_sum *sum)
{
    const fmm_spmv_operands *own = fmm_spmv_of(call);
    double y = own->alpha * total(sum);
    if (own->y_in) y += own->beta * get(own->y_in, i, 0, 0);
    put(call->y, i, 0, 0, y);
}

/* The rows at places [first, last), which are their numbers; of SELL `order` has these. HYB's row
 * is its row of ELL, then its run of COO, so a row has two loops, of which CSR and COO skip the
 * first one and the other formats the second one. */
static void rows(int64_t first, int64_t last, void *ctx)
{
    const fmm_call *call = ctx;
    const fmm_spmv_matrix *a = fmm_spmv_of(call)->matrix;
    const bool csr = a->format == FMM_FORMAT_CSR, sell = a->format == FMM_FORMAT_SELL;
    for (int64_t place = first; place < last; place++) {
        blocked_sum sum = {0};
        /* The padded part lies from `at` on, `step` apart; nobody else's is checked. */
        int64_t i = place, at = place, step = a->csr.rows;
        int64_t stop = a->format > FMM_FORMAT_COO ? a->stored : 0;
        if (sell) {
            const int64_t slice = place / a->width;
            const int64_t begin = a->offsets[slice], end = a->offsets[slice + 1];
            /* A slice that would leave what is stored has no entries. */
            const bool sane = begin >= 0 && begin <= end && end <= a->stored;
            i = a->order[place], step = a->width;
            at = sane ? begin + place % step : 0;
            stop = sane ? begin + (end - begin) / step * step : 0;
            if (i < 0 || i >= a->csr.rows) continue;
        }
        for (int64_t k = 0, j; at < stop; at += step, k++) {
            /* DIA says the column by the offset of diagonal k, which may be any number. */
            if (a->format != FMM_FORMAT_DIA)
                j = a->padded_idx[at];
            else if (__builtin_add_overflow(i, a->offsets[k], &j))
                continue;
            add_padded(&sum, call, at, j);
        }
        /* The part that is CSR or COO. */
        const int64_t begin = csr ? row_begin(call->a, i) : a->row ? first_of_row(a, i) : 0;
        const int64_t end = csr ? row_end(call->a, i) : a->row ? first_of_row(a, i + 1) : 0;
        for (int64_t p = begin; p < end; p++) add_entry(&sum, call, p);
        put_row(call, i, &sum);
    }
}

/* Rows without entries, which those that a forged order of SELL leaves out stay. */
static void empty_rows(int64_t first, int64_t last, void *ctx)
{
    const blocked_sum nothing = {0};
    for (int64_t i = first; i < last; i++) put_row(ctx, i, &nothing);
}

fmm_status fmm_spmv_reference(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_spmv_matrix *a = fmm_spmv_of(call)->matrix;
    fmm_call copy = *call;
    if (a->format == FMM_FORMAT_SELL) fmm_parallel(exec, a->csr.rows, empty_rows, &copy);
    fmm_parallel(exec, a->csr.rows, rows, &copy);
    return FMM_OK;
}
