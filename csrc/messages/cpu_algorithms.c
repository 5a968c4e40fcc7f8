/* The algorithms of messages on the CPU: which calls the loops of cpu.inc take, how they are cut in
 * chunks, and the table.
 *
 *     is_plain(message)   yes: chunks of rows, by the loops of cpu.inc
 *                         no:  the specification, which takes every message, row by row */
#include "../cpu/isa.h"
#include "cpu.h"

FMM_ISA_KERNELS(messages)

/* The kernels take no mask, and add up along the last axis at most, there products alone. */
static bool is_plain(const fmm_edge_message *m)
{
    /* `has` has a bit for each axis that an operand has; the last axis has the highest. */
    const unsigned last = 1u << (FMM_AXES - 1), others = last - 1;
    if (m->mask_y.data) return false;
    if (m->out.has & last) return (m->out.has & others) == others;
    return (m->out.has & others) == others && m->op == FMM_COMBINE_MUL && m->lhs.has & last &&
           m->rhs.has & last;
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_isa level)
{
    const fmm_csr *a = call->a;
    const fmm_edge_message *m = fmm_messages_of(call);
    const bool entries = m->out.at == FMM_AT_EDGE;
    if (!is_plain(m)) return fmm_messages_reference(exec, call);
    /* An output of entries is written through ptr, so ptr must span all entries. */
    atomic_bool forged = entries && (a->ptr[0] != 0 || a->ptr[a->rows] != a->nnz);
    fmm_rows_task task = {.call = call,
                          .kernel = kernel_of(level, call->y->dtype),
                          .copy = fmm_isa_copy(level),
                          .guarded = fmm_messages_plain_rows,
                          .forged = entries ? &forged : NULL,
                          .heads = 1,
                          .feat = call->y->feat,
                          .uses_edges = entries || m->lhs.at == FMM_AT_EDGE ||
                                        (m->rhs.data && m->rhs.at == FMM_AT_EDGE)};
    TRY(fmm_rows_run(exec, &task, call->x, 1 << 20));
    return forged ? fmm_messages_reference(exec, call) : FMM_OK; /* leaves no entry unwritten */
}

FMM_ISA_RUNS

static const fmm_algorithm algorithms[] = {
    FMM_ISA_ALGORITHMS(messages, "a row's messages in registers", "fusedmm", fmm_rows_workspace),
    {0},
};

FMM_ISA_REGISTRY(messages)
