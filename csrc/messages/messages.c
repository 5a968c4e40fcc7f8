/* Messages of entries, reduced over rows or kept: out = reduce_p (lhs op rhs), as
 * fusedmm_messages.h says.
 *
 *   A [rows, cols] CSR; operands of rows, columns or entries, whose features broadcast along four
 *   axes. reduce: sum, mean (sum / entries), max, min; an empty row gives 0.
 * Precision: op, products and sums in f32 (f64 for f64), at most 512 terms in a row before partial
 * sums meet; rounded once to out's dtype.
 * Gradient: messages again. That of a product reaches one operand by the product of out's gradient
 * and the other operand, reduced to what the first belongs to; that of columns on the transpose.
 * Cost: one operation per entry and feature; each entry reads a row of each operand of columns and
 * of entries, which is what decides the time. Nothing but out is written.
 *
 * Here: the contract. cpu_algorithms.c and cuda_algorithms.c choose, cpu*.inc compute. */
#include "../core/checks.h"

#include <inttypes.h>

static int64_t rows_at(const fmm_csr *a, fmm_at at)
{
    return at == FMM_AT_ROW ? a->rows : at == FMM_AT_COL ? a->cols : a->nnz;
}

static fmm_status check_term(const fmm_csr *a, const fmm_edge_message *m, const char *name,
                             const fmm_term *t, fmm_dtype dtype)
{
    VALID(t->data && t->data->data, "messages: %s must be given", name);
    VALID((unsigned)t->at <= FMM_AT_EDGE && t->has < 1u << FMM_AXES,
          "messages: %s is at target number %d and has axes %u", name, (int)t->at, t->has);
    int64_t width = 1;
    for (int d = 0; d < FMM_AXES; d++)
        if (t->has >> d & 1) width *= m->axis[d];
    return fmm_check_shape("messages", name, t->data, dtype, rows_at(a, t->at), 1, width);
}

static fmm_status check_pair(const fmm_csr *a, const fmm_edge_message *m, fmm_combine op,
                             const char *const names[2], const fmm_term *lhs, const fmm_term *rhs,
                             fmm_dtype dtype)
{
    VALID((unsigned)op <= FMM_COMBINE_ONE, "messages: no op number %d", (int)op);
    if (op != FMM_COMBINE_ONE) TRY(check_term(a, m, names[0], lhs, dtype));
    return op == FMM_COMBINE_ONE || op == FMM_COMBINE_COPY ? FMM_OK
                                                           : check_term(a, m, names[1], rhs, dtype);
}

static fmm_status check(const fmm_exec *exec, const fmm_csr *a, const fmm_edge_message *m)
{
    static const char *const of[] = {"lhs", "rhs"}, *const of_mask[] = {"mask_lhs", "mask_rhs"};
    TRY(fmm_check_matrix("messages", exec, a));
    VALID(m && m->out.data, "messages: m and its out must be given");
    int64_t width = 1;
    for (int d = 0; d < FMM_AXES; d++)
        VALID(m->axis[d] > 0 && !__builtin_mul_overflow(width, m->axis[d], &width),
              "messages: axis %d has %" PRId64 " elements", d, m->axis[d]);
    const bool masked = m->mask_y.data != NULL, one = m->op == FMM_COMBINE_ONE;
    VALID(masked || !one, "messages: only a mask is counted");
    const fmm_dense *first = one ? m->mask_y.data : m->lhs.data;
    TRY(fmm_check_dense("messages", one ? "mask_y" : "lhs", first));
    const fmm_dtype dtype = first->dtype;
    TRY(check_pair(a, m, m->op, of, &m->lhs, &m->rhs, dtype));
    if (masked) {
        VALID(m->mask_op != FMM_COMBINE_ONE,
              "messages: a mask compares mask_y with operands, so mask_op cannot be one");
        TRY(check_pair(a, m, m->mask_op, of_mask, &m->mask_lhs, &m->mask_rhs, dtype));
        TRY(check_term(a, m, "mask_y", &m->mask_y, dtype));
    }
    VALID((unsigned)m->reduce <= FMM_MIN, "messages: no reduction number %d", (int)m->reduce);
    const bool rows = m->out.at == FMM_AT_ROW;
    VALID(rows ? m->out.has == (1u << FMM_AXES) - 1 : m->out.at == FMM_AT_EDGE,
          "messages: out is of rows, with all axes, or of entries");
    VALID(m->reduce == FMM_SUM || (rows && !masked),
          "messages: means and extremes are those of rows without a mask");
    const fmm_dense *out = m->out.data;
    if (out->rows) /* an empty one has no memory */
        TRY(check_term(a, m, "out", &m->out, one && dtype != FMM_F64 ? FMM_F32 : dtype));
    TRY(fmm_check_output("messages", "out", out));
    const fmm_term *in[] = {&m->lhs, &m->rhs, &m->mask_lhs, &m->mask_rhs, &m->mask_y};
    for (int k = 0; k < 5; k++) TRY(fmm_check_apart("messages", out, "an operand", in[k]->data));
    return FMM_OK;
}

static const fmm_dense absent = {.heads = 1, .feat = 1};

static fmm_call call_of(const fmm_exec *exec, const fmm_csr *a, const fmm_edge_message *m)
{
    const fmm_dense *x = m->op == FMM_COMBINE_ONE ? m->out.data : m->lhs.data;
    return (fmm_call){.index = exec->index,
                      .a = a,
                      .val = &absent,
                      .x = x,
                      .y = m->out.data,
                      .reduce = m->reduce,
                      .own = m};
}

fmm_status fmm_messages_workspace(const fmm_exec *exec, const fmm_csr *a, const fmm_edge_message *m,
                                  int algorithm, size_t *bytes)
{
    *bytes = 0;
    TRY(check(exec, a, m));
    const fmm_call call = call_of(exec, a, m);
    return fmm_workspace(FMM_MESSAGES, exec, algorithm, &call, bytes);
}

fmm_status fmm_messages(const fmm_exec *exec, const fmm_csr *a, const fmm_edge_message *m,
                        int algorithm)
{
    TRY(check(exec, a, m));
    const fmm_call call = call_of(exec, a, m);
    return fmm_run(FMM_MESSAGES, exec, algorithm, &call, !m->out.data->rows);
}
