/* The algorithms of fused on the CPU: how a call is cut in chunks for the loops of cpu.inc, and the
 * table. The loops take any dtype, shape and stride; the machine alone limits them. */
#include "../cpu/isa.h"
#include "cpu.h"

FMM_ISA_KERNELS(fused)

/* Gathered are y and z, in a column pass x and g: the widest of those that are read. Its width
 * decides how many rows make a chunk. */
static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_isa level)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    const bool cols = f->pass == FMM_COLS;
    const fmm_dense *narrow = cols ? f->x : f->y, *wide = cols ? f->g : f->z;
    if (!wide || (narrow && narrow->feat > wide->feat)) wide = narrow;
    fmm_rows_task task = {.call = call,
                          .kernel = kernel_of(level, f->out ? f->out->dtype : f->out2->dtype),
                          .copy = fmm_isa_copy(level),
                          .guarded = fmm_fused_plain_rows,
                          .heads = wide->heads,
                          .feat = wide->feat,
                          /* Values, what ROWS keeps for COLS and the gradient of values are
                           * numbers of edges. */
                          .uses_edges =
                              call->val->data || f->kept || (f->pass == FMM_ROWS && f->out2)};
    /* Of tables below these sizes fetching ahead costs more than it saves. */
    return fmm_rows_run(exec, &task, wide, f->pass == FMM_FORWARD ? 1 << 19 : 1 << 21);
}

/* back_to_back was SDDMM, then SpMM: 1.2 to 3.7 times as slow on every graph. */
FMM_ISA_REGISTRY(fused, "tiles of entries",
                 "this project; the five steps of FusedMM (Rahman et al. 2021)", fmm_rows_workspace,
                 FMM_RESERVED(6, "back_to_back"), {0})
