/* The algorithms of attention on the CPU: how a call is cut in chunks for the loops of cpu.inc, and
 * the table. The loops take any dtype, shape and stride; the machine alone limits them.
 *
 *     workspace    | parts of gatt, in double | copies of long chunks |
 *
 * Every output but gatt belongs to a row, an entry or a column, and so to one chunk. gatt is a sum
 * over all entries: each chunk adds up a part of it, and the caller adds the parts in their order.
 */
#include "../cpu/isa.h"
#include "cpu.h"

#include <string.h>

/* Parts of gatt come before the copies of chunks. Their bytes are whole
 * groups of 16, so that what follows them is as well aligned. */
static size_t parts_bytes(const fmm_dense *d)
{
    return d->data ? ((size_t)(d->rows * d->heads * d->feat) * sizeof(double) + 15) / 16 * 16 : 0;
}

static size_t workspace(const fmm_call *call)
{
    return parts_bytes(&fmm_attention_of(call)->gatt) + fmm_rows_workspace(call);
}

FMM_ISA_KERNELS(attention)

static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_isa level)
{
    const fmm_attention *c = fmm_attention_of(call);
    const bool reads_edges = c->bias.data || c->weight.data || c->dropout > 0;
    const bool writes_edges = c->weights.data || c->gbias.data || c->gweight.data;
    fmm_rows_task task = {.call = call,
                          .kernel = kernel_of(level, c->q.dtype),
                          .copy = fmm_isa_copy(level),
                          .guarded = fmm_attention_plain_rows,
                          .uses_edges = reads_edges || writes_edges};
    /* As many chunks as gatt has parts, by the caller's count and not by that of threads: so the
     * bits of gatt do not depend on threads. All parts start at 0, because a chunk without rows
     * writes nothing and the loops of the specification add to what is there. */
    if (c->gatt.data && c->pass == FMM_ATTENTION_ROWS) {
        fmm_attention_clear_gatt(c);
        task.chunks = c->gatt.rows;
        task.parts = exec->workspace;
        if (task.parts) memset(task.parts, 0, parts_bytes(&c->gatt));
    }
    /* Chunks get the workspace behind the parts. No workspace was given where none was needed. */
    fmm_exec rest = *exec;
    rest.workspace_bytes -= parts_bytes(&c->gatt);
    if (rest.workspace) rest.workspace = (char *)rest.workspace + parts_bytes(&c->gatt);
    /* x stands for the gathered operands (attention.c); where it is absent, they are k alone. */
    return fmm_rows_run(&rest, &task, call->x->data ? call->x : &c->k, 1 << 20);
}

FMM_ISA_REGISTRY(attention, "online softmax over blocks of a row", "fusedmm", workspace, {0})
