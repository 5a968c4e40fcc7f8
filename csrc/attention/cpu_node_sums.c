/* The forms of node_sums.c on the CPU: a node, or for SPREAD a part's nodes, is one owner's; then
 * each head of SPREAD's totals. */
#include "node_sums.h"
#include "../cpu/simd.h"

enum { PANEL = 128 };

/* NULL where there is no data: of no channels a view has none, and no address is counted. */
#define AT(d, type, i, h)                                                                          \
    ((d)->data ? (const type *)(d)->data + (i) * (d)->row_stride + (h) * (d)->head_stride : NULL)
#define LOOPS "../attention/cpu_node_sums.inc"
#include "../cpu/dtypes.inc"

typedef void kernel(const fmm_node_call *call, int64_t first, int64_t last);

static void run(int64_t first, int64_t last, void *ctx)
{
    static kernel *const of[][FMM_DTYPES] = {
        [FMM_NODE_SCORES] = {node_scores_f32, node_scores_f64, node_scores_f16, node_scores_bf16},
        [FMM_NODE_DELTA] = {node_delta_f32, node_delta_f64, node_delta_f16, node_delta_bf16},
        [FMM_NODE_SPREAD] = {node_spread_f32, node_spread_f64, node_spread_f16, node_spread_bf16},
        [FMM_NODE_ADD] = {node_add_f32, node_add_f64, node_add_f16, node_add_bf16},
    };
    const fmm_node_call *call = ctx;
    if (call->form != FMM_NODE_SPREAD) first *= FMM_NODE_ROWS, last *= FMM_NODE_ROWS;
    if (call->form != FMM_NODE_SPREAD && last > call->x.rows) last = call->x.rows;
    of[call->form][call->x.dtype](call, first, last);
}

static void add_up(int64_t first, int64_t last, void *ctx)
{
    static kernel *const of[] = {node_total_f32, node_total_f64, node_total_f16, node_total_bf16};
    const fmm_node_call *call = ctx;
    of[call->x.dtype](call, first, last);
}

fmm_status fmm_node_sums_cpu(const fmm_exec *exec, const fmm_node_call *call)
{
    enum { WAKES = 1 << 16 }; /* numbers from which other threads are woken for the totals */
    fmm_node_call copy = *call;
    fmm_parallel(exec, fmm_node_parts(FMM_CPU, call->x.rows), run, &copy);
    if (call->form != FMM_NODE_SPREAD) return FMM_OK;
    const int64_t heads = call->parts.heads;
    if (heads * call->x.feat >= WAKES / call->parts.rows)
        fmm_parallel(exec, heads, add_up, &copy);
    else
        add_up(0, heads, &copy);
    return FMM_OK;
}
