/* SpMM `tiles` over f32, and what `tiles` can take in any type: the kernel of cuda_tiles.cuh. */
#include "cuda_tiles_run.cuh"

#include "cuda.h"

/* Entries are counted in 32 bits, the last of them a block early. The grid's second axis has 65,535
 * strips. What `segments` cannot take is declined too, since it stands in where the card cannot. */
bool fmm_spmm_tiles_supports(const fmm_call *call)
{
    const fmm_dense *const x = call->x, *const val = call->val;
    const bool shared = !val || !val->data || val->heads == 1;
    return (x->dtype == FMM_F32 || x->dtype == FMM_F64) &&
           (call->reduce == FMM_SUM || call->reduce == FMM_MEAN) && shared && can_be_flat(x) &&
           can_be_flat(call->y) && call->a->nnz < INT32_MAX - BLOCK && call->a->rows < INT32_MAX &&
           x->heads * x->feat <= 65535 * INT64_C(16) && fmm_spmm_segments_supports(call);
}

/* Where the card cannot hold the windows, `segments` runs. */
extern "C" fmm_status fmm_spmm_tiles_f32(const fmm_exec *exec, const fmm_call *call)
{
    return tiles_run<float>(exec, call, fmm_spmm_segments_f32);
}
