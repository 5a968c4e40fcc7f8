/* The CUDA algorithms of each operator, and which one number 0 stands for. */
#include "cuda.h"
#include "vendor.h"

typedef fmm_status run(const fmm_exec *, const fmm_call *);

static fmm_status spmm_segments(const fmm_exec *exec, const fmm_call *call)
{
    static run *const of_dtype[] = {
        [FMM_F32] = fmm_spmm_segments_f32,
        [FMM_F64] = fmm_spmm_segments_f64,
        [FMM_F16] = fmm_spmm_segments_f16,
        [FMM_BF16] = fmm_spmm_segments_bf16,
    };
    return of_dtype[call->x->dtype](exec, call);
}

static fmm_status spmm_tiles(const fmm_exec *exec, const fmm_call *call)
{
    return (call->x->dtype == FMM_F64 ? fmm_spmm_tiles_f64 : fmm_spmm_tiles_f32)(exec, call);
}

static fmm_status sddmm_segments(const fmm_exec *exec, const fmm_call *call)
{
    static run *const of_dtype[] = {
        [FMM_F32] = fmm_sddmm_segments_f32,
        [FMM_F64] = fmm_sddmm_segments_f64,
        [FMM_F16] = fmm_sddmm_segments_f16,
        [FMM_BF16] = fmm_sddmm_segments_bf16,
    };
    return of_dtype[call->x->dtype](exec, call);
}

#define X(op, id, what, algorithm, coo, preprocess, bits)                                          \
    {.number = id,                                                                                 \
     .name = "cusparse:" #what,                                                                    \
     .about = "cuSPARSE, bound at run time",                                                       \
     .source = "NVIDIA",                                                                           \
     .deterministic = bits,                                                                        \
     .supports = fmm_cusparse_supports,                                                            \
     .workspace = fmm_##op##_cusparse_##what##_workspace,                                          \
     .run = fmm_##op##_cusparse_##what},

static fmm_status attention_segments(const fmm_exec *exec, const fmm_call *call)
{
    static run *const of_dtype[] = {
        [FMM_F32] = fmm_attention_segments_f32,
        [FMM_F64] = fmm_attention_segments_f64,
        [FMM_F16] = fmm_attention_segments_f16,
        [FMM_BF16] = fmm_attention_segments_bf16,
    };
    return of_dtype[call->attention->q.dtype](exec, call);
}

static fmm_status fused_segments(const fmm_exec *exec, const fmm_call *call)
{
    static run *const of_dtype[] = {
        [FMM_F32] = fmm_fused_segments_f32,
        [FMM_F64] = fmm_fused_segments_f64,
        [FMM_F16] = fmm_fused_segments_f16,
        [FMM_BF16] = fmm_fused_segments_bf16,
    };
    return of_dtype[call->fusion->x->dtype](exec, call);
}

static const fmm_algorithm spmm[] = {
    {.number = 1,
     .name = "reference",
     .about = "one thread per output element, terms in storage order",
     .source = "the definition",
     .deterministic = true,
     .run = fmm_spmm_reference_cuda},
    {.number = 2,
     .name = "segments",
     .about =
         "rows by falling length, long ones in pieces; a group of lanes gathers whole rows of x",
     .source = "this project; row order as in Sputnik (Gale et al. 2020), pieces as in RoDe "
               "(Pang et al. 2024)",
     .deterministic = true,
     .supports = fmm_spmm_segments_supports,
     .workspace = fmm_spmm_segments_workspace,
     .run = spmm_segments},
    {.number = 3,
     .name = "tiles",
     .about =
         "windows of x in shared memory, which every row of a block gathers from; needs 227 KB "
         "a block, else segments",
     .source = "this project",
     .deterministic = true,
     .supports = fmm_spmm_tiles_supports,
     .workspace = fmm_spmm_segments_workspace,
     .run = spmm_tiles},
    FMM_CUSPARSE_SPMM_LIST(X){.number = FMM_CUBLAS_NUMBER,
                              .name = "cublas",
                              .about = "the matrix made dense, then cuBLAS, bound at run time",
                              .source = "NVIDIA",
                              .deterministic = false,
                              .supports = fmm_cublas_supports,
                              .workspace = fmm_cublas_workspace,
                              .run = fmm_spmm_cublas},
    {.name = NULL},
};

static const fmm_algorithm sddmm[] = {
    {.number = 1,
     .name = "reference",
     .about = "one thread per output element, its row found by bisection",
     .source = "the definition",
     .deterministic = true,
     .run = fmm_sddmm_reference_cuda},
    {.number = 2,
     .name = "segments",
     .about = "rows by falling length, long ones in pieces; the row of a stays in registers",
     .source = "this project",
     .deterministic = true,
     .supports = fmm_sddmm_segments_supports,
     .workspace = fmm_sddmm_segments_workspace,
     .run = sddmm_segments},
    {.number = 3,
     .name = "tiles",
     .about =
         "windows of b in shared memory, which every row of a block gathers from; needs 227 KB "
         "a block, else segments",
     .source = "this project",
     .deterministic = true,
     .supports = fmm_sddmm_tiles_supports,
     .workspace = fmm_sddmm_segments_workspace,
     .run = fmm_sddmm_tiles_f32},
    FMM_CUSPARSE_SDDMM_LIST(X){
        .number = FMM_CUBLAS_NUMBER,
        .name = "cublas",
        .about = "the whole product by cuBLAS, bound at run time, then its entries",
        .source = "NVIDIA",
        .deterministic = true,
        .supports = fmm_cublas_supports,
        .workspace = fmm_cublas_workspace,
        .run = fmm_sddmm_cublas},
    {.name = NULL},
};

#undef X

static const fmm_algorithm attention[] = {
    {.number = 1,
     .name = "reference",
     .about = "one thread per output element, each with its own logits",
     .source = "the definition",
     .deterministic = true,
     .run = fmm_attention_reference_cuda},
    {.number = 2,
     .name = "segments",
     .about =
         "rows by falling length, long ones in pieces; a group of lanes gathers all heads of a "
         "row, logits stay in registers",
     .source = "this project; online softmax (Milakov and Gimelshein 2018), backward from the "
               "log-sum-exp as in FlashAttention (Dao et al. 2022)",
     .deterministic = true,
     .supports = fmm_attention_segments_supports,
     .workspace = fmm_attention_segments_workspace,
     .run = attention_segments},
    {0},
};

static const fmm_algorithm fused[] = {
    {.number = 1,
     .name = "reference",
     .about = "a warp per row and head, entries one after the other, everything interpreted",
     .source = "the definition",
     .deterministic = true,
     .run = fmm_fused_reference_cuda},
    {.number = 2,
     .name = "segments",
     .about = "rows by falling length, long ones in pieces; a group of lanes scores and adds the "
              "rows it gathered",
     .source = "this project; the five steps of FusedMM (Rahman et al. 2021)",
     .deterministic = true,
     .supports = fmm_fused_segments_supports,
     .workspace = fmm_fused_segments_workspace,
     .run = fused_segments},
    {.number = 3,
     .name = "back_to_back",
     .about = "sddmm, the edge function, spmm: scores in memory",
     .source = "this project",
     .deterministic = true,
     .supports = fmm_fused_back_to_back_supports,
     .workspace = fmm_fused_back_to_back_workspace,
     .run = fmm_fused_back_to_back},
    {.number = 4,
     .name = "tiles",
     .about =
         "windows of y in shared memory, which every row of a block gathers from; needs 227 KB "
         "a block, else segments",
     .source = "this project",
     .deterministic = true,
     .supports = fmm_fused_tiles_supports,
     .workspace = fmm_fused_segments_workspace,
     .run = fmm_fused_tiles_f32},
    {.number = FMM_CUSPARSE_DEFAULT,
     .name = "cusparse",
     .about = "cuSPARSE's SDDMM, the edge function, its SpMM, bound at run time",
     .source = "NVIDIA",
     .deterministic = false,
     .supports = fmm_fused_cusparse_supports,
     .workspace = fmm_fused_cusparse_workspace,
     .run = fmm_fused_cusparse},
    {.number = FMM_CUBLAS_NUMBER,
     .name = "cublas",
     .about =
         "cuBLAS's whole product, the edge function of its entries, then made dense for cuBLAS",
     .source = "NVIDIA",
     .deterministic = false,
     .supports = fmm_fused_cublas_supports,
     .workspace = fmm_fused_cublas_workspace,
     .run = fmm_fused_cublas},
    {.name = NULL},
};

/* Uniform matrices of 1,024 to 32,768 rows, 1,024 to 8,192 columns and 10 to 30 % entries, 32 and
 * 128 columns of x: SpMM `tiles` took 0.49 to 0.86 of the time of `segments`; at 5 % 0.61 to 0.88,
 * at 3 and 4 % of 4 million 0.70 to 0.89, at 2 % 1.03 to 1.16. Of 8,192 x 512 it took 0.75 and
 * 0.96, of 512 x 8,192 1.40 and 1.75. It shares rows out evenly, without a look at their lengths:
 * on graphs with hubs it took 1.14 to 1.89 times as long (R-MAT of 4,096 and 8,192 nodes, and drug
 * interactions of 4,267, 12 to 20 % full), and 1.7 times where columns are in no order. So from 3 %
 * on even rows go to `tiles`, uneven ones never. Between, or where nobody looked, hubs need room: a
 * square matrix, which may be a graph, goes to `tiles` from 15 % on, others from 8 %.
 *
 * Where neither side is above 1,024, `segments` mostly waits for its plan: from 4 % on `tiles` took
 * 0.57 to 0.94 of its time (1,024 x 512 and 1,024 x 1,024 with 10 %; 512 x 512 with 5 %, whose
 * longest row has three times the mean).
 *
 * `segments` declines only what its grids or 32-bit strides cannot span (over 2^34 entries, or rows
 * of x 2^29 elements apart); the reference, one thread per output element, takes everything. */
static bool may_be_tiled(const fmm_csr *a)
{
    const bool small = a->rows <= 1024 && a->cols <= 1024;
    const size_t rows_are = a->plan ? a->plan_bytes % 16 : FMM_ROWS_UNKNOWN;
    const bool even = rows_are == FMM_ROWS_EVEN;
    const double share = small ? 0.04 : even ? 0.03 : a->rows == a->cols ? 0.15 : 0.08;
    return a->rows >= (small ? 256 : 1024) &&
           a->cols >= (small  ? 256
                       : even ? 512
                              : 1024) &&
           (small || rows_are != FMM_ROWS_UNEVEN) &&
           (double)a->nnz >= share * (double)a->rows * (double)a->cols;
}

static const fmm_algorithm *choose_spmm(const fmm_call *call)
{
    if (may_be_tiled(call->a) && call->x->heads * call->x->feat >= 4 &&
        fmm_spmm_tiles_supports(call))
        return &spmm[2];
    return fmm_spmm_segments_supports(call) ? &spmm[1] : &spmm[0];
}

/* `tiles` took 0.66 to 0.97 of the time of `segments` at K 32; at K 128 and 256, of 2 million
 * places and more, 5 to 30 % full, 0.53 to 1.00, but of a million 1.03 and 1.20. */
static const fmm_algorithm *choose_sddmm(const fmm_call *call)
{
    const int64_t feat = call->x->feat;
    const bool narrow = feat <= 32, large = call->a->rows * call->a->cols > 1 << 20;
    if (feat >= 16 && (narrow || large) && may_be_tiled(call->a) && fmm_sddmm_tiles_supports(call))
        return &sddmm[2];
    return fmm_sddmm_segments_supports(call) ? &sddmm[1] : &sddmm[0];
}

/* Wider heads than a warp's registers hold are left to `reference`. */
static const fmm_algorithm *choose_attention(const fmm_call *call)
{
    return fmm_attention_segments_supports(call) ? &attention[1] : &attention[0];
}

/* Time of `segments` over that of `tiles` on uniform matrices of 3,072 x 1,024 to 32,768 x 8,192,
 * 70, 80 and 90 % zeros. K 128: 1.10 to 1.67, 1.01 to 1.54, 0.81 to 1.26, of the last 1.10 to 1.26
 * where blocks of 64 rows fill their last wave; 0.75 to 0.93 with 95 %, and 0.74 to 0.82 on 1,024 x
 * 1,024. K 64: 1.32 and 1.06. K 32: 1.05 to 1.62 of up to 4,096 and of 8,192 rows, 1.13 with 95 %,
 * 1.15 to 1.33 on 1,024 x 1,024; 0.78 of 4,267 x 4,267 with 89 %, 0.94 to 1.02 of 6,144 rows, 0.77
 * to 1.05 of more. Below 1 are 6,144 and 12,288 rows, which no number of rows a block spreads
 * evenly over 132 multiprocessors, those of an H200, and 4,267, which are a few too many for one
 * wave. */
enum { CARD = 132, BLOCK_ROWS = 64 };
static bool fills_waves(int64_t rows)
{
    const int64_t wave = CARD * BLOCK_ROWS, waves = (rows + wave - 1) / wave;
    return (double)rows >= 0.9 * (double)(waves * wave);
}
static bool fused_may_be_tiled(const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const int64_t feat = call->fusion->x->feat;
    const double places = (double)a->rows * (double)a->cols, share = (double)a->nnz / places;
    const bool wide = places > 1 << 20 && share >= (fills_waves(a->rows) ? 0.09 : 0.15);
    const bool few =
        a->rows <= CARD * BLOCK_ROWS / 2 || (a->rows <= CARD * BLOCK_ROWS && fills_waves(a->rows));
    const bool wins = feat > 32 ? wide : few && share >= 0.04;
    return feat >= 32 && wins && may_be_tiled(a) && fmm_fused_tiles_supports(call);
}

/* Rows wider than a group: two calls where these take them, else `reference`. */
static const fmm_algorithm *choose_fused(const fmm_call *call)
{
    if (fused_may_be_tiled(call)) return &fused[3];
    if (fmm_fused_segments_supports(call)) return &fused[1];
    return fmm_fused_back_to_back_supports(call) ? &fused[2] : &fused[0];
}

const fmm_registry fmm_spmm_cuda = {spmm, choose_spmm};
const fmm_registry fmm_sddmm_cuda = {sddmm, choose_sddmm};
const fmm_registry fmm_attention_cuda = {attention, choose_attention};
const fmm_registry fmm_fused_cuda = {fused, choose_fused};
