/* SDDMM as the formula reads: one sum per output, in double.
 *
 * Every element is loaded to double, whatever its dtype, and sums are blocked: no accumulator adds
 * more than FMM_BLOCK terms in a row. Entries out of range are skipped, so any index content is
 * safe. */
#include "../cpu/reference.h"
#include "cpu.h"

static double dot(const fmm_call *call, int64_t i, int64_t j, int64_t h)
{
    blocked_sum sum = {0};
    for (int64_t c = 0; c < call->x->feat; c++)
        add(&sum, get(call->x, i, h, c) * get(call->b, j, h, c));
    return total(&sum);
}

void fmm_sddmm_plain_rows(const fmm_call *call, int64_t first, int64_t last)
{
    const fmm_csr *s = call->a;
    for (int64_t i = first; i < last; i++)
        for (int64_t p = row_begin(s, i); p < row_end(s, i); p++) {
            const int64_t j = column_of(s, p), edge = edge_of(s, p);
            for (int64_t h = 0; edge >= 0 && h < call->y->heads; h++)
                put(call->y, edge, h, 0,
                    j >= 0 ? value_of(call->val, edge, h) * dot(call, i, j, h) : 0.0);
        }
}

/* Zeros first: entries that a forged ptr or eid leaves out must not show what memory held before.
 */
fmm_status fmm_sddmm_reference(const fmm_exec *exec, const fmm_call *call)
{
    for (int64_t p = 0; p < call->a->nnz; p++)
        for (int64_t h = 0; h < call->y->heads; h++) put(call->y, p, h, 0, 0.0);
    return fmm_rows_reference(exec, call, fmm_sddmm_plain_rows);
}
