/* The algorithms of SDDMM on the CPU: how a call is cut in chunks for the loops of cpu.inc, and the
 * table. The loops take any dtype, shape and stride; the machine alone limits them. */
#include "../cpu/isa.h"
#include "cpu.h"

FMM_ISA_KERNELS(sddmm)

static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_isa level)
{
    const fmm_csr *a = call->a;
    const fmm_dense *b = call->b;
    /* Entries that no row has would keep what the caller's memory held, so ptr must span them. */
    atomic_bool forged = a->ptr[0] != 0 || a->ptr[a->rows] != a->nnz;
    fmm_rows_task task = {.call = call,
                          .kernel = kernel_of(level, b->dtype),
                          .copy = fmm_isa_copy(level),
                          .guarded = fmm_sddmm_plain_rows,
                          .forged = &forged,
                          .heads = b->heads,
                          .feat = b->feat,
                          .uses_edges = true};
    /* The kernel loads four rows of b at once, and so the processor overlaps their waits by itself:
     * fetching ahead pays only where b is large. */
    TRY(fmm_rows_run(exec, &task, b, 1 << 23));
    return forged ? fmm_sddmm_reference(exec, call) : FMM_OK; /* which leaves no entry unwritten */
}

FMM_ISA_REGISTRY(sddmm, "four entries of a row at a time", "fusedmm", fmm_rows_workspace, {0})
