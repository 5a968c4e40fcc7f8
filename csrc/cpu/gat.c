/* The forms of gat.c on the CPU: a node, or for SPREAD a part's nodes, is one owner's. */
#include "../gat.h"
#include "simd.h"

enum { PANEL = 128 };

/* NULL where there is no data: of no channels a view has none, and no address is counted. */
#define AT(d, type, i, h)                                                                          \
    ((d)->data ? (const type *)(d)->data + (i) * (d)->row_stride + (h) * (d)->head_stride : NULL)
#define LOOPS "gat.inc"
#include "dtypes.inc"

typedef void kernel(const fmm_gat_call *call, int64_t first, int64_t last);

static void run(int64_t first, int64_t last, void *ctx)
{
    static kernel *const of[][FMM_DTYPES] = {
        [FMM_GAT_SCORES] = {gat_scores_f32, gat_scores_f64, gat_scores_f16, gat_scores_bf16},
        [FMM_GAT_DELTA] = {gat_delta_f32, gat_delta_f64, gat_delta_f16, gat_delta_bf16},
        [FMM_GAT_SPREAD] = {gat_spread_f32, gat_spread_f64, gat_spread_f16, gat_spread_bf16},
    };
    const fmm_gat_call *call = ctx;
    if (call->form != FMM_GAT_SPREAD) first *= FMM_GAT_ROWS, last *= FMM_GAT_ROWS;
    if (call->form != FMM_GAT_SPREAD && last > call->x.rows) last = call->x.rows;
    of[call->form][call->x.dtype](call, first, last);
}

fmm_status fmm_cpu_gat(const fmm_exec *exec, const fmm_gat_call *call)
{
    fmm_gat_call copy = *call;
    const int64_t n = call->x.rows;
    fmm_parallel(exec, n / FMM_GAT_ROWS + (n % FMM_GAT_ROWS != 0), run, &copy);
    return FMM_OK;
}
