/* The three forms of extreme.c on the CPU.
 *
 * All of them are sums of messages under a mask, which messages computes by vectors:
 *
 *     form      sum to      lhs    rhs       of the entries where
 *     ROWS      row i       z[j]   weight    x[j] val == y[i]
 *     COUNTS    row i       1                x[j] val == y[i]
 *     COLS      row j       g[i]   weight    x[j] val == y[i], on the transpose
 *     EDGES     entry p     z[j]   g[i]      x[j] val == y[i], over the channels
 *
 * Messages have one dtype. Where values have another than x, plain loops run, which add up in
 * double. Either way a row of the matrix at hand (A, or its transpose for COLS) is one owner's, and
 * results do not depend on threads. */
#include "extreme.h"
#include "../cpu/reference.h"
#include "../include/fusedmm_messages.h"

/* The product that spmm compares, rounded as it rounds what it stores. */
static double product_of(fmm_dtype dtype, double a, double b)
{
    const float f = (float)a * (float)b;
    return dtype == FMM_F64   ? a * b
           : dtype == FMM_F32 ? (double)f
           : dtype == FMM_F16 ? (double)f16_value(f16_of(f))
                              : (double)bf16_value(bf16_of(f));
}

/* Channel c of entry p of `row`: its term, which is 0 where it did not make the extreme. */
static double term_of(const fmm_extreme_call *call, int64_t row, int64_t p, int64_t h, int64_t c)
{
    const fmm_dense *x = call->x, *z = call->z, *g = call->g;
    const bool cols = call->form == FMM_EXTREME_COLS, edges = call->form == FMM_EXTREME_EDGES;
    const int64_t col = column_of(call->a, p), edge = edge_of(call->a, p);
    if (col < 0 || edge < 0) return 0;
    const int64_t i = cols ? col : row, j = cols ? row : col;
    const double made = product_of(x->dtype, value_of(call->val, edge, h), get(x, j, h, c));
    if (!(made == get(call->y, i, h, c))) return 0;
    return (edges ? 1 : value_of(call->weight, edge, h)) *
           (z->data && !cols ? get(z, j, h, c) : 1) *
           (g->data && (cols || edges) ? get(g, i, h, c) : 1);
}

/* Rows [first, last) of the matrix at hand. Indices are checked where they are used, for no copy of
 * them is made. */
static void run(int64_t first, int64_t last, void *ctx)
{
    const fmm_extreme_call *call = ctx;
    const bool edges = call->form == FMM_EXTREME_EDGES;
    for (int64_t row = first; row < last; row++)
        for (int64_t h = 0; h < call->x->heads; h++) {
            const int64_t begin = row_begin(call->a, row), end = row_end(call->a, row);
            /* An entry's own result is a sum over its channels ... */
            for (int64_t p = begin; edges && p < end; p++) {
                const int64_t edge = edge_of(call->a, p);
                double sum = 0;
                for (int64_t c = 0; c < call->x->feat; c++) sum += term_of(call, row, p, h, c);
                if (edge >= 0 && column_of(call->a, p) >= 0) put(call->out, edge, h, 0, sum);
            }
            /* ... a row's result has a sum over its entries for each channel. */
            for (int64_t c = 0; !edges && c < call->x->feat; c++) {
                double sum = 0;
                for (int64_t p = begin; p < end; p++) sum += term_of(call, row, p, h, c);
                put(call->out, row, h, c, sum);
            }
        }
}

/* Head h of an operand; or all heads that lie side by side, as channels of one. What is absent
 * stays absent, and an operand with one head serves all of them. */
static fmm_dense head_of(const fmm_dense *d, int64_t h, bool all)
{
    fmm_dense one = *d;
    if (!d->data) return one;
    if (all)
        one.feat *= one.heads;
    else if (d->heads > 1)
        one.data = (char *)d->data + h * d->head_stride * (int64_t)fmm_dtype_bytes(d->dtype);
    one.heads = 1;
    return one;
}

/* Whether all heads may pass as one: no number belongs to a head alone. */
static bool are_channels(const fmm_extreme_call *call)
{
    const fmm_dense *const all[] = {call->x, call->y, call->z, call->g, call->out};
    bool flat =
        call->form != FMM_EXTREME_EDGES && call->val->heads <= 1 && call->weight->heads <= 1;
    for (int k = 0; k < 5; k++)
        if (all[k]->data)
            flat = flat && (all[k]->heads == 1 || all[k]->head_stride == all[k]->feat);
    return flat;
}

/* Head h of the call, or all of it, as messages. */
static fmm_status run_messages(const fmm_exec *exec, const fmm_extreme_call *call, int64_t h,
                               bool all)
{
    enum { CHANNELS = (1 << FMM_AXES) - 1 }; /* all axes; values have none */
    const bool cols = call->form == FMM_EXTREME_COLS, edges = call->form == FMM_EXTREME_EDGES;
    const fmm_at of_i = cols ? FMM_AT_COL : FMM_AT_ROW, of_j = cols ? FMM_AT_ROW : FMM_AT_COL;
    const fmm_dense val = head_of(call->val, h, all), weight = head_of(call->weight, h, all);
    const fmm_dense x = head_of(call->x, h, all), y = head_of(call->y, h, all);
    const fmm_dense z = head_of(call->z, h, all), g = head_of(call->g, h, all);
    const fmm_dense out = head_of(call->out, h, all);
    fmm_term lhs = cols ? (fmm_term){&g, of_i, CHANNELS} : (fmm_term){&z, of_j, CHANNELS};
    fmm_term rhs = edges ? (fmm_term){&g, of_i, CHANNELS} : (fmm_term){&weight, FMM_AT_EDGE, 0};
    if (!lhs.data->data) lhs = rhs, rhs = (fmm_term){0};
    fmm_edge_message m = {.axis = {1, 1, 1, x.feat},
                          .op = FMM_COMBINE_MUL,
                          .lhs = lhs,
                          .rhs = rhs,
                          .mask_op = val.data ? FMM_COMBINE_MUL : FMM_COMBINE_COPY,
                          .mask_lhs = {&x, of_j, CHANNELS},
                          .mask_y = {&y, of_i, CHANNELS},
                          .out = {&out, edges ? FMM_AT_EDGE : FMM_AT_ROW, edges ? 0 : CHANNELS}};
    if (val.data) m.mask_rhs = (fmm_term){&val, FMM_AT_EDGE, 0};
    if (!m.rhs.data || !m.rhs.data->data) m.op = FMM_COMBINE_COPY, m.rhs = (fmm_term){0};
    if (call->form == FMM_EXTREME_COUNTS) m.op = FMM_COMBINE_ONE, m.lhs = m.rhs = (fmm_term){0};
    return fmm_messages(exec, call->a, &m, 0);
}

/* Whether messages can take the call: of one dtype, with an entry, and with a number to add up. */
static bool are_messages(const fmm_extreme_call *call)
{
    const fmm_dense *const factor = call->form == FMM_EXTREME_COLS ? call->g : call->z;
    const bool edges = call->form == FMM_EXTREME_EDGES;
    const bool sums = call->form == FMM_EXTREME_COUNTS || factor->data ||
                      (edges ? call->g->data != NULL : call->weight->data != NULL);
    return sums && call->x->feat && call->a->nnz &&
           (!call->val->data || call->val->dtype == call->x->dtype) &&
           (!call->weight->data || call->weight->dtype == call->x->dtype);
}

fmm_status fmm_extreme_cpu(const fmm_exec *exec, const fmm_extreme_call *call)
{
    if (are_messages(call)) {
        const bool all = are_channels(call);
        for (int64_t h = 0; h < (all ? 1 : call->x->heads); h++)
            TRY(run_messages(exec, call, h, all));
        return FMM_OK;
    }
    fmm_extreme_call copy = *call;
    fmm_parallel(exec, call->a->rows, run, &copy);
    return FMM_OK;
}
