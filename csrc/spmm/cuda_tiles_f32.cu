/* SpMM `tiles` over f32, and what `tiles` can take in any type: the kernel of cuda_tiles.cuh. The
 * other types have files of their own, so that they compile side by side. */
#include "cuda_tiles_run.cuh"

/* Entries are counted in 32 bits, the last of them a block early. The grid's second axis has 65,535
 * strips. Types of 16 bits must lie in packs: a copy into shared memory has 4 bytes or more. What
 * `segments` cannot take is declined too, since it stands in where the card cannot. */
bool fmm_spmm_tiles_supports(const fmm_call *call)
{
    const fmm_dense *const x = call->x, *const val = call->val;
    const bool shared = !val || !val->data || val->heads == 1;
    const fmm_dense flat = flat_heads(x);
    return (fmm_dtype_bytes(x->dtype) > 2 || lies_in_packs(&flat, 2, 8)) &&
           (call->reduce == FMM_SUM || call->reduce == FMM_MEAN) && shared && can_be_flat(x) &&
           can_be_flat(call->y) && call->a->nnz < INT32_MAX - BLOCK && call->a->rows < INT32_MAX &&
           x->heads * x->feat <= 65535 * INT64_C(16) && fmm_spmm_segments_supports(call);
}

FMM_TILES_OF(f32, float)
