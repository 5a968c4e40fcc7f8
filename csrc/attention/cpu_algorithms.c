/* The algorithms of attention on the CPU: how a call is cut in chunks for the loops of cpu.inc, and
 * the table. The loops take any dtype, shape and stride; the machine alone limits them. */
#include "../cpu/isa.h"
#include "cpu.h"

#include <string.h>

/* Parts of gatt come before the chunks. */
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
    if (c->gatt.data && c->pass == FMM_ATTENTION_ROWS) {
        fmm_attention_clear_gatt(c);
        task.chunks = c->gatt.rows;
        task.parts = exec->workspace;
        if (task.parts) memset(task.parts, 0, parts_bytes(&c->gatt));
    }
    fmm_exec rest = *exec;
    rest.workspace_bytes -= parts_bytes(&c->gatt);
    if (rest.workspace) rest.workspace = (char *)rest.workspace + parts_bytes(&c->gatt);
    return fmm_rows_run(&rest, &task, call->x->data ? call->x : &c->k, 1 << 20);
}

FMM_ISA_RUNS

static const fmm_algorithm algorithms[] = {
    FMM_ISA_ALGORITHMS(attention, "online softmax over blocks of a row", "fusedmm", workspace),
    {0},
};

FMM_ISA_REGISTRY(attention)
