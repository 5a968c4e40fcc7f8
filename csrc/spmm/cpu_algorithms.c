/* The algorithms of SpMM on the CPU: how a call is cut in chunks for the loops of cpu.inc, and the
 * table. The loops take any dtype, shape and stride; the machine alone limits them. */
#include "../cpu/isa.h"
#include "cpu.h"

FMM_ISA_KERNELS(spmm)

static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_isa level)
{
    const fmm_dense *x = call->x, *y = call->y;
    fmm_rows_task task = {.call = call,
                          .kernel = kernel_of(level, x->dtype),
                          .copy = fmm_isa_copy(level),
                          .guarded = fmm_spmm_plain_rows,
                          .heads = x->heads,
                          .feat = x->feat,
                          .uses_edges = call->val->data != NULL}; /* eid finds values alone */
    /* Heads that lie side by side and share their value are one row of heads * feat. */
    if (call->val->heads == 1 && x->head_stride == x->feat && y->head_stride == y->feat) {
        task.feat *= task.heads;
        task.heads = 1;
    }
    /* Fetching ahead pays where x is beyond the second cache. Of short rows the kernel loads
     * several at once, and so the processor overlaps their waits by itself; of long ones it pays
     * before. In vectors of 512 bits a long row is few loads, and the processor overlaps those of
     * many rows, until most of them come from the third cache. */
    const int64_t bytes = task.feat * (int64_t)fmm_dtype_bytes(x->dtype);
    const int64_t halves = bytes <= 256 ? 2 : level == FMM_AVX512 ? 8 : 1;
    return fmm_rows_run(exec, &task, x, fmm_second_cache() / 2 * halves);
}

FMM_ISA_REGISTRY(spmm, "rows in registers", "fusedmm", fmm_rows_workspace, {0})
