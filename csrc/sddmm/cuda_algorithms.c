/* The algorithms of SDDMM on CUDA, and which one number 0 stands for.
 *
 *     enough entries in rows that are even enough (cuda/heuristics.h)     tiles
 *     else where its grids and strides reach                              segments
 *     else                                                                reference
 *
 * The vendors' algorithms run by their names alone: they trust every index. */
#include "cuda.h"
#include "cuda_vendor.h"
#include "../cuda/heuristics.h"

FMM_CUDA_RUN(fmm_sddmm_segments, call->x)

static const fmm_algorithm algorithms[] = {
    {1, "reference", "one thread per output element, its row found by bisection", "the definition",
     true, NULL, NULL, fmm_sddmm_reference_cuda},
    {2, "segments", "rows by falling length, long ones in pieces; the row of a stays in registers",
     "this project", true, fmm_sddmm_segments_supports, fmm_sddmm_segments_workspace,
     fmm_sddmm_segments},
    {3, "tiles",
     .about =
         "windows of b in shared memory, which every row of a block gathers from; needs 227 KB "
         "a block, else segments",
     "this project", true, fmm_sddmm_tiles_supports, fmm_sddmm_segments_workspace,
     fmm_sddmm_tiles_f32},
    FMM_CUSPARSE_SDDMM_LIST(FMM_CUSPARSE_ALGORITHM){
        FMM_CUBLAS_NUMBER, "cublas",
        "the whole product by cuBLAS, bound at run time, then its entries", "NVIDIA", true,
        fmm_cublas_supports, fmm_cublas_workspace, fmm_sddmm_cublas},
    {0},
};

/* Time of `tiles` over that of `segments` on uniform matrices 10 to 30 % full, one H100. K 32: 0.69
 * to 1.10. K 64: 0.78 to 1.05 of 2 million places and more. K 128: 0.97 where 20 or 30 % are
 * full, 0.96 to 1.21 where 10 % are. Of a million places, 0.87 to 1.50 at both. K 256: 0.83 to
 * 1.19, in the mean 0.99, of 50 million places and more, 1.03 to 1.53 of fewer. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    const int64_t feat = call->x->feat, places = call->a->rows * call->a->cols;
    const bool full = feat <= 64 || feat > 128 || (double)call->a->nnz >= 0.15 * (double)places;
    const bool wins = feat <= 32 || places > (feat <= 128 ? 1 << 20 : 1 << 25);
    if (feat >= 16 && full && wins && fmm_may_be_tiled(call->a) && fmm_sddmm_tiles_supports(call))
        return &algorithms[2];
    return fmm_sddmm_segments_supports(call) ? &algorithms[1] : &algorithms[0];
}

const fmm_registry fmm_sddmm_cuda = {algorithms, choose};
