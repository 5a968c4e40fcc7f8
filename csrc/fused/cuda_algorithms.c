/* The algorithms of fused on CUDA, and which one number 0 stands for. One pass is the rule;
 * back_to_back takes what is too wide for it, and reference the rest. The vendors' algorithms run
 * by their names alone: they trust every index. */
#include "cuda.h"
#include "../cuda/device.h"
#include "../cuda/heuristics.h"
#include "../cuda/vendor/vendor.h"

FMM_CUDA_RUN(fmm_fused_segments, fmm_fusion_of(call)->x)

/* Only the reference, our two calls and both kernels of one pass fix the order of every sum. */
static const fmm_algorithm algorithms[] = {
    {1, "reference", "a warp per row and head, entries one after the other, everything interpreted",
     "the definition", true, NULL, NULL, fmm_fused_reference_cuda},
    {2, "segments",
     "rows by falling length, long ones in pieces; a group of lanes scores and adds the "
     "rows it gathered",
     "this project; the five steps of FusedMM (Rahman et al. 2021)", true,
     fmm_fused_segments_supports, fmm_fused_segments_workspace, fmm_fused_segments},
    {3, "back_to_back", "sddmm, the edge function, spmm: scores in memory", "this project", true,
     fmm_fused_back_to_back_supports, fmm_fused_back_to_back_workspace, fmm_fused_back_to_back},
    {4, "tiles",
     .about =
         "windows of y in shared memory, which every row of a block gathers from; needs 227 KB "
         "a block, else segments",
     "this project", true, fmm_fused_tiles_supports, fmm_fused_segments_workspace,
     fmm_fused_tiles_f32},
    {FMM_CUSPARSE_DEFAULT, "cusparse",
     "cuSPARSE's SDDMM, the edge function, its SpMM, bound at run time", "NVIDIA", false,
     fmm_fused_cusparse_supports, fmm_fused_cusparse_workspace, fmm_fused_cusparse},
    {FMM_CUBLAS_NUMBER, "cublas",
     .about =
         "cuBLAS's whole product, the edge function of its entries, then made dense for cuBLAS",
     "NVIDIA", false, fmm_fused_cublas_supports, fmm_fused_cublas_workspace, fmm_fused_cublas},
    {0},
};

/* Time of `segments` over that of `tiles` on uniform matrices of 3,072 x 1,024 to 32,768 x 8,192,
 * 70, 80 and 90 % zeros, on an H100. K 128: 1.08 to 1.47, 1.00 to 1.41, 0.82 to 1.15, of the last
 * 1.09 to 1.15 where blocks of 64 rows fill their last wave; 0.63 to 0.72 on 1,024 x 1,024. K 64:
 * 1.09 to 1.27, 0.95 to 1.35, 0.90 to 1.30; 0.85 on 1,024 x 1,024. K 32: 0.97 to 1.39 of up to
 * 4,096 and of 8,192 rows, 1.01 to 1.10 on 1,024 x 1,024; 0.93 to 1.10 of 6,144 rows, 0.78 to 1.16
 * of more. With 95 % zeros, on an H200, 0.75 to 0.93 at K 128 and 1.13 at K 32.
 *
 * Rows that fill half a wave, as 4,096 do, with 85 and 90 % zeros: 1.02 to 1.12 at K 128 and 1.13
 * to 1.30 at K 64 with less than a million entries, 0.88 to 0.96 and 0.95 to 0.99 with more.
 *
 * 0.85 of 4,267 x 4,267 with 89 % at K 32: some blocks have 33 rows there, one too many for two
 * groups to share each, and so half of the groups have none. */
enum { BLOCK_ROWS = 64 };
static bool fills_waves(int64_t rows, int64_t wave)
{
    const int64_t waves = (rows + wave - 1) / wave;
    return (double)rows >= 0.9 * (double)(waves * wave);
}
static bool may_be_tiled(const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const int64_t feat = fmm_fusion_of(call)->x->feat;
    const int64_t wave = (int64_t)fmm_cuda_processors(call->index) * BLOCK_ROWS;
    const bool half = a->rows <= wave / 2; /* then two groups share each row */
    const bool fills = fills_waves(a->rows, half && a->nnz < 1 << 20 ? wave / 2 : wave);
    const double places = (double)a->rows * (double)a->cols, share = (double)a->nnz / places;
    const bool wide = places > 1 << 20 && share >= (fills ? 0.09 : 0.15);
    const bool few = half || (a->rows <= wave && fills);
    const bool wins = feat > 32 ? wide : few && share >= 0.04;
    return feat >= 32 && wins && fmm_may_be_tiled(a) && fmm_fused_tiles_supports(call);
}

/* Rows wider than a group: two calls where these take them, else `reference`. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    if (may_be_tiled(call)) return &algorithms[3];
    if (fmm_fused_segments_supports(call)) return &algorithms[1];
    return fmm_fused_back_to_back_supports(call) ? &algorithms[2] : &algorithms[0];
}

const fmm_registry fmm_fused_cuda = {algorithms, choose};
