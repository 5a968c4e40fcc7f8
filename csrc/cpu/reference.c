/* The specification of both operators on the CPU: one sum per output, written as the formula reads.
 *
 * Every element is loaded to double, whatever its dtype, and sums are blocked: no accumulator adds
 * more than FMM_BLOCK terms in a row. Entries out of range are skipped, so any index content is
 * safe. */
#include "reference.h"

static double value_of(const fmm_call *call, int64_t edge, int64_t h)
{
    return call->val->data ? get(call->val, edge, call->val->heads == 1 ? 0 : h, 0) : 1.0;
}

static double spmm_output(const fmm_call *call, int64_t i, int64_t h, int64_t c)
{
    const fmm_csr *a = call->a;
    blocked_sum sum = {0};
    double extreme = 0;
    /* Gradients recognise an extreme by its product of two floats: exact in double, but for val. */
    const bool narrow = call->reduce >= FMM_MAX && call->x->dtype != FMM_F64;
    for (int64_t p = row_begin(a, i); p < row_end(a, i); p++) {
        const int64_t edge = call->val->data ? edge_of(a, p) : 0; /* ones need no edge */
        const int64_t j = column_of(a, p);
        if (j < 0 || edge < 0) continue;
        double val = value_of(call, edge, h);
        if (narrow) val = (double)(float)val;
        const double term = val * get(call->x, j, h, c);
        const bool beyond = call->reduce == FMM_MAX ? term > extreme : term < extreme;
        if (sum.terms == 0 || beyond || isnan(term)) extreme = term; /* NaN is never left again */
        add(&sum, term);
    }
    if (sum.terms == 0) return 0;
    if (call->reduce == FMM_SUM) return total(&sum);
    return call->reduce == FMM_MEAN ? total(&sum) / (double)sum.terms : extreme;
}

void fmm_reference_spmm(const fmm_call *call, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        for (int64_t h = 0; h < call->y->heads; h++)
            for (int64_t c = 0; c < call->y->feat; c++)
                put(call->y, i, h, c, spmm_output(call, i, h, c));
}

static double dot(const fmm_call *call, int64_t i, int64_t j, int64_t h)
{
    blocked_sum sum = {0};
    for (int64_t c = 0; c < call->x->feat; c++)
        add(&sum, get(call->x, i, h, c) * get(call->b, j, h, c));
    return total(&sum);
}

void fmm_reference_sddmm(const fmm_call *call, int64_t first, int64_t last)
{
    const fmm_csr *s = call->a;
    for (int64_t i = first; i < last; i++)
        for (int64_t p = row_begin(s, i); p < row_end(s, i); p++) {
            const int64_t j = column_of(s, p), edge = edge_of(s, p);
            for (int64_t h = 0; edge >= 0 && h < call->y->heads; h++)
                put(call->y, edge, h, 0,
                    j >= 0 ? value_of(call, edge, h) * dot(call, i, j, h) : 0.0);
        }
}

static void sddmm_range(int64_t first, int64_t last, void *call)
{
    fmm_reference_sddmm(call, first, last);
}

/* Zeros first: entries that a forged ptr or eid leaves out must not show what memory held before.
 */
fmm_status fmm_sddmm_reference(const fmm_exec *exec, const fmm_call *call)
{
    fmm_call copy = *call;
    for (int64_t p = 0; p < call->a->nnz; p++)
        for (int64_t h = 0; h < call->y->heads; h++) put(call->y, p, h, 0, 0.0);
    fmm_parallel(exec, call->a->rows, sddmm_range, &copy);
    return FMM_OK;
}
