/* The forms of extreme.c on the CPU, in plain loops: the specification. Python asks the operator of
 * messages for these sums, whose kernels are compiled for every instruction set; here come calls of
 * operands of 16 bits with wider values, which messages do not take, and those of other callers.
 *
 * A row of the matrix at hand (A, or its transpose for COLS) is one owner's. A sum is a double on
 * the stack, which takes a term of each entry in storage order, so results do not depend on
 * threads, and an f32 result is exact to its last bit for any length of row. */
#include "extreme.h"
#include "../cpu/reference.h"

/* v * x as the forward pass stores it: a product of the sums' type, rounded to x's. */
static double rounded(fmm_dtype dtype, double v, double x)
{
    const float product = (float)v * (float)x;
    return dtype == FMM_F64    ? v * x
           : dtype == FMM_F16  ? (double)f16_value(f16_of(product))
           : dtype == FMM_BF16 ? (double)bf16_value(bf16_of(product))
                               : (double)product;
}

/* Element [r, h, c] of an operand, 1 where it is absent. */
static double factor(const fmm_dense *d, int64_t r, int64_t h, int64_t c)
{
    return d->data ? get(d, r, h, c) : 1;
}

/* Channels [c, end) of entry p = (row, col of the matrix at hand). An entry that did not make the
 * extreme adds 0. */
static double entry(const fmm_extreme_call *call, int64_t row, int64_t col, int64_t edge, int64_t h,
                    int64_t c, int64_t end)
{
    const bool cols = call->form == FMM_EXTREME_COLS, edges = call->form == FMM_EXTREME_EDGES;
    const int64_t i = cols ? col : row, j = cols ? row : col;
    const double v = value_of(call->val, edge, h), weight = value_of(call->weight, edge, h);
    double sum = 0;
    for (; c < end; c++)
        if (rounded(call->x->dtype, v, get(call->x, j, h, c)) == get(call->y, i, h, c))
            sum += edges  ? factor(call->z, j, h, c) * factor(call->g, i, h, c)
                   : cols ? weight * factor(call->g, i, h, c)
                          : weight * factor(call->z, j, h, c);
    return sum;
}

/* Rows [first, last) of the matrix at hand. Indices are checked here, for no copy of them is made.
 */
static void run(int64_t first, int64_t last, void *ctx)
{
    const fmm_extreme_call *call = ctx;
    const fmm_csr *a = call->a;
    const bool edges = call->form == FMM_EXTREME_EDGES;
    const int64_t heads = call->x->heads, feat = call->x->feat, outs = edges ? 1 : feat;
    for (int64_t row = first; row < last; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t c = 0; c < outs; c++) {
                double sum = 0;
                for (int64_t p = row_begin(a, row); p < row_end(a, row); p++) {
                    const int64_t col = column_of(a, p), edge = edge_of(a, p);
                    if (col < 0 || edge < 0) continue;
                    const double e = entry(call, row, col, edge, h, c, edges ? feat : c + 1);
                    if (edges) put(call->out, edge, h, 0, e);
                    sum += e;
                }
                if (!edges) put(call->out, row, h, c, sum);
            }
}

fmm_status fmm_extreme_cpu(const fmm_exec *exec, const fmm_extreme_call *call)
{
    fmm_extreme_call copy = *call;
    fmm_parallel(exec, call->a->rows, run, &copy);
    return FMM_OK;
}
