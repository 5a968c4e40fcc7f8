/* SpMM as the formula reads: one sum per output, in double.
 *
 *     for each row i, head h, channel c        one owner each
 *         for each entry p of row i            in the order of storage
 *             add val[p] * x[idx[p], h, c]
 *
 * Every element is loaded to double, whatever its dtype, and sums are blocked: no accumulator adds
 * more than FMM_BLOCK terms in a row. Entries out of range are skipped, so any index content is
 * safe. */
#include "../cpu/reference.h"
#include "cpu.h"

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
        double val = value_of(call->val, edge, h);
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

void fmm_spmm_plain_rows(const fmm_call *call, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        for (int64_t h = 0; h < call->y->heads; h++)
            for (int64_t c = 0; c < call->y->feat; c++)
                put(call->y, i, h, c, spmm_output(call, i, h, c));
}

fmm_status fmm_spmm_reference(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_reference(exec, call, fmm_spmm_plain_rows);
}
