/* The algorithms of SpMM on CUDA, and which one number 0 stands for.
 *
 *     enough entries in rows that are even enough (cuda/heuristics.h)     tiles
 *     else where its grids and strides reach                              segments
 *     else                                                                reference
 *
 * The vendors' algorithms run by their names alone: they trust every index. */
#include "cuda.h"
#include "cuda_vendor.h"
#include "../cuda/heuristics.h"

FMM_CUDA_RUN(fmm_spmm_segments, call->x)
FMM_CUDA_RUN(fmm_spmm_tiles, call->x)

static const fmm_algorithm algorithms[] = {
    {1, "reference", "one thread per output element, terms in storage order", "the definition",
     true, NULL, NULL, fmm_spmm_reference_cuda},
    {2, "segments",
     .about =
         "rows by falling length, long ones in pieces; a group of lanes gathers whole rows of x",
     "this project; row order as in Sputnik (Gale et al. 2020), pieces as in RoDe "
     "(Pang et al. 2024)",
     true, fmm_spmm_segments_supports, fmm_spmm_segments_workspace, fmm_spmm_segments},
    {3, "tiles",
     .about =
         "windows of x in shared memory, which every row of a block gathers from; needs 227 KB "
         "a block, else segments",
     "this project", true, fmm_spmm_tiles_supports, fmm_spmm_segments_workspace, fmm_spmm_tiles},
    FMM_CUSPARSE_SPMM_LIST(FMM_CUSPARSE_ALGORITHM){
        FMM_CUBLAS_NUMBER, "cublas", "the matrix made dense, then cuBLAS, bound at run time",
        "NVIDIA", false, fmm_cublas_supports, fmm_cublas_workspace, fmm_spmm_cublas},
    {0},
};

/* Where rows of x are shorter than what `tiles` reads of them at once, in 16 bits and fewer than 64
 * columns, it pays on matrices of few entries alone: bf16 at 32 columns took 1.3 times as long as
 * `segments` on 20 million entries.
 *
 * `segments` declines only what its grids or 32-bit strides cannot span (over 2^34 entries, or rows
 * of x 2^29 elements apart); the reference, one thread per output element, takes everything. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    const fmm_dense *const x = call->x;
    const bool narrow = fmm_dtype_bytes(x->dtype) == 2 && x->heads * x->feat < 64;
    if (fmm_may_be_tiled(call->a) && x->heads * x->feat >= 4 &&
        !(narrow && call->a->nnz >= 1 << 20) && fmm_spmm_tiles_supports(call))
        return &algorithms[2];
    return fmm_spmm_segments_supports(call) ? &algorithms[1] : &algorithms[0];
}

const fmm_registry fmm_spmm_cuda = {algorithms, choose};
