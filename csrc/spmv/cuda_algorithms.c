/* The algorithms of SpMV on CUDA, and which one number 0 stands for. An algorithm is for one
 * format; nothing is converted.
 *
 *     DIA, ELL, SELL, HYB, COO      the kernel of the format
 *     CSR   many short rows                     csr_scalar
 *           rows that are alike, and few        csr_vector
 *           all others                          csr_segmented
 */
#include "cuda.h"
#include "cuda_vendor.h"

/* Kernels multiply a column by the distance of x's elements in 32 bits. */
static bool near(const fmm_call *call)
{
    return call->x->rows < 2 ||
           call->x->row_stride <= (int64_t)(UINT32_MAX / fmm_dtype_bytes(call->x->dtype));
}

/* Those that cut a matrix in pieces keep numbers of rows in 32 bits. */
static bool countable(const fmm_call *call) { return near(call) && call->a->rows < INT32_MAX; }

/* An algorithm is asked whether it takes a call before its workspace is counted and it runs. */
#define TAKES(name, its_format, condition)                                                         \
    static bool takes_##name(const fmm_call *call)                                                 \
    {                                                                                              \
        return fmm_spmv_of(call)->matrix->format == its_format && condition(call);                 \
    }
TAKES(csr_scalar, FMM_FORMAT_CSR, near)
TAKES(csr_vector, FMM_FORMAT_CSR, near)
TAKES(csr_segmented, FMM_FORMAT_CSR, countable)
TAKES(merge, FMM_FORMAT_CSR, countable)
TAKES(coo, FMM_FORMAT_COO, countable)
TAKES(dia, FMM_FORMAT_DIA, near)
TAKES(ell, FMM_FORMAT_ELL, near)
TAKES(sell, FMM_FORMAT_SELL, near)
TAKES(hyb, FMM_FORMAT_HYB, countable)

/* Numbers are part of exported programs, so a line keeps its number for ever. */
#define ENTRY(id, title, text, origin, bits, takes, room, function)                                \
    {                                                                                              \
        .number = id, .name = title, .about = text, .source = origin, .deterministic = bits,       \
        .supports = takes, .workspace = room, .run = function                                      \
    }
#define OURS(id, what, text, origin, room, function)                                               \
    ENTRY(id, #what, text, origin, true, takes_##what, room, fmm_spmv_##function)
#define CUSPARSE(id, what, format, algorithm, preprocess, bits)                                    \
    ENTRY(id, "cusparse:" #what, "cuSPARSE, bound at run time", "NVIDIA", bits,                    \
          fmm_spmv_cusparse_##what##_supports, fmm_spmv_cusparse_##what##_workspace,               \
          fmm_spmv_cusparse_##what),

static const fmm_algorithm algorithms[] = {
    ENTRY(1, "reference", "one thread per row of any format, terms in storage order",
          "the definition", true, NULL, NULL, fmm_spmv_reference_cuda),
    OURS(2, csr_scalar, "one thread per row, products first", "Bell and Garland, SC 2009", NULL,
         csr_scalar),
    OURS(3, csr_vector, "2 to 128 lanes per row, products first; a block for each long row",
         "Bell and Garland, SC 2009", NULL, csr_vector),
    OURS(4, csr_segmented, "equally many entries for every warp, a segmented scan",
         "Blelloch et al., CMU-CS-93-173, 1993; Sengupta et al., Graphics Hardware 2007",
         fmm_spmv_segmented_workspace, segmented),
    OURS(5, merge, "equally many entries and ends of rows for every warp, a segmented scan",
         "Merrill and Garland, SC 2016", fmm_spmv_merge_workspace, merge),
    OURS(6, coo, "equally many entries for every warp, a segmented scan over rows' numbers",
         "Bell and Garland, SC 2009", fmm_spmv_segmented_workspace, segmented),
    OURS(7, dia, "one thread per 1 to 4 neighbouring rows, diagonal by diagonal",
         "Bell and Garland, NVR-2008-004", NULL, dia),
    OURS(8, ell, "one thread per 1 or 2 neighbouring rows, column by column",
         "Bell and Garland, NVR-2008-004", NULL, ell),
    OURS(9, sell, "one lane per row of a slice", "Kreutzer et al., SIAM J. Sci. Comput. 36, 2014",
         NULL, sell),
    OURS(10, hyb, "the COO part first, then ELL, which adds its sums before it rounds",
         "Bell and Garland, SC 2009", fmm_spmv_hyb_workspace, hyb),
    FMM_CUSPARSE_SPMV_LIST(CUSPARSE){.name = NULL},
};

/* Each format has one kernel but CSR. Where rows are known to be alike, warps take whole rows:
 * single threads sum rows of a few entries, if there are enough of them to fill the card, else
 * groups of lanes. So they do where nothing is known but that rows are short: in small matrices,
 * where one load less in a chain decides, and where rows have very few entries. They do as well
 * where rows are long and columns are few, so that no row is much longer than the mean. Other
 * matrices go to `csr_segmented`, whose warps have equal shares whatever the rows are
 * (docs/spmv.md). So do rows of more than MOST entries in the mean: with up to four times as many a
 * row would be a block's alone, which all others then wait for. */
enum { FEW = 16, FEW_EVEN = 32, VERY_FEW = 4, MOST = 2048, MANY_ROWS = 1 << 17, SMALL = 1 << 18 };
static int choose_csr(const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const bool even = a->rows_are == FMM_ROWS_EVEN, unknown = a->rows_are == FMM_ROWS_UNKNOWN;
    const int few = even ? FEW_EVEN : a->rows_are == FMM_ROWS_UNEVEN ? 0 : VERY_FEW;
    if (a->rows >= MANY_ROWS && a->nnz <= few * a->rows) return 2;
    /* The launch of csr_segmented's join would take longer than the sums of a small matrix; rows of
     * more entries are the likelier to differ, so that less is small. */
    const bool short_rows = a->nnz <= FEW * a->rows;
    const bool small = unknown && a->rows + a->nnz < (short_rows ? SMALL : SMALL / 8);
    const bool alike = even || (a->rows_are == FMM_ROWS_NEITHER && !short_rows);
    const bool narrow = a->nnz >= FMM_SPMV_LONG * a->rows && a->cols <= 4 * MOST;
    const bool by_rows = (alike || narrow || small) && a->nnz <= MOST * a->rows;
    return by_rows || !takes_csr_segmented(call) ? 3 : 4;
}

static const fmm_algorithm *choose(const fmm_call *call)
{
    static const int of_format[FMM_FORMATS] = {
        [FMM_FORMAT_COO] = 6,  [FMM_FORMAT_DIA] = 7,  [FMM_FORMAT_ELL] = 8,
        [FMM_FORMAT_HYB] = 10, [FMM_FORMAT_SELL] = 9,
    };
    const fmm_format format = fmm_spmv_of(call)->matrix->format;
    const int number = format == FMM_FORMAT_CSR ? choose_csr(call) : of_format[format];
    /* Numbers 1 to 10 stand in the table in their order. What no kernel takes, such as a stride of
     * x beyond 32 bits, the reference computes. */
    const fmm_algorithm *found = &algorithms[number - 1];
    return found->supports(call) ? found : &algorithms[0];
}

const fmm_registry fmm_spmv_cuda = {algorithms, choose};
