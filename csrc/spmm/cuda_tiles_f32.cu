/* SpMM `tiles` over f32, and what `tiles` can take in any type: cuda_tiles.cuh. */
#include "cuda_tiles_run.cuh"

#include "cuda.h"

bool fmm_spmm_tiles_supports(const fmm_call *call)
{
    const fmm_dense *const x = call->x, *const val = call->val;
    const bool shared = !val || !val->data || val->heads == 1;
    return (x->dtype == FMM_F32 || x->dtype == FMM_F64) &&
           (call->reduce == FMM_SUM || call->reduce == FMM_MEAN) && shared && can_be_flat(x) &&
           can_be_flat(call->y) && call->a->nnz < INT32_MAX - BLOCK && call->a->rows < INT32_MAX &&
           x->heads * x->feat <= 65535 * INT64_C(16) && fmm_spmm_segments_supports(call);
}

extern "C" fmm_status fmm_spmm_tiles_f32(const fmm_exec *exec, const fmm_call *call)
{
    return tiles_run<float>(exec, call, fmm_spmm_segments_f32);
}
