/* The algorithms of messages on the CPU: how calls are cut in chunks of rows, which the loops of
 * cpu.inc take, and the table. */
#include "../cpu/isa.h"
#include "cpu.h"

FMM_ISA_KERNELS(messages)

/* Whether a call reads eid for an operand. One that the call does not use may be there all the
 * same, which costs a check of eid and changes nothing. */
static bool reads_edges(const fmm_edge_message *m)
{
    const fmm_term *all[] = {&m->lhs, &m->rhs, &m->mask_lhs, &m->mask_rhs, &m->mask_y};
    for (int k = 0; k < 5; k++)
        if (all[k]->data && all[k]->at == FMM_AT_EDGE) return true;
    return false;
}

/* Chunks of rows, by the kernel of the operands' dtype: counts, which have no operand but their
 * mask's, are written in another one. */
static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_isa level)
{
    const fmm_csr *a = call->a;
    const fmm_edge_message *m = fmm_messages_of(call);
    const bool entries = m->out.at == FMM_AT_EDGE;
    /* An output of entries is written through ptr, so ptr must span all entries. */
    atomic_bool forged = entries && (a->ptr[0] != 0 || a->ptr[a->rows] != a->nnz);
    fmm_rows_task task = {.call = call,
                          .kernel = kernel_of(level, fmm_messages_first(m)->dtype),
                          .copy = fmm_isa_copy(level),
                          .guarded = fmm_messages_plain_rows,
                          .forged = entries ? &forged : NULL,
                          .heads = 1,
                          .feat = call->y->feat,
                          .uses_edges = entries || reads_edges(m)};
    TRY(fmm_rows_run(exec, &task, call->x, 1 << 20));
    return forged ? fmm_messages_reference(exec, call) : FMM_OK; /* leaves no entry unwritten */
}

FMM_ISA_REGISTRY(messages, "a row's messages in registers", "fusedmm", fmm_rows_workspace, {0})
