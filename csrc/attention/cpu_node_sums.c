/* The forms of node_sums.c on the CPU. One thread owns a node, or for SPREAD all nodes of a part.
 * When all parts are done, one thread owns a head of SPREAD's totals:
 *
 *     nodes     0 .. 63 | 64 .. 127 | ...        a part, or FMM_NODE_ROWS nodes, is one chunk
 *     SPREAD    part 0  | part 1    | ...        then each head adds up all parts in order
 *
 * Chunks are the same whatever the number of threads, and so are the results. */
#include "node_sums.h"
#include "../cpu/simd.h"

enum { PANEL = 128 }; /* channels whose sums a loop keeps on the stack */

/* Item i of head h. A view of no channels has no data, and NULL must not be added to. */
#define AT(d, type, i, h)                                                                          \
    ((d)->data ? (const type *)(d)->data + (i) * (d)->row_stride + (h) * (d)->head_stride : NULL)
#define LOOPS "../attention/cpu_node_sums.inc"
#include "../cpu/dtypes.inc"

typedef void kernel(const fmm_node_call *call, int64_t first, int64_t last);

/* Chunks [first, last). */
static void run(int64_t first, int64_t last, void *ctx)
{
    static kernel *const of[][FMM_DTYPES] = {
        [FMM_NODE_SCORES] = OF_DTYPES(node_scores),
        [FMM_NODE_DELTA] = OF_DTYPES(node_delta),
        [FMM_NODE_SPREAD] = OF_DTYPES(node_spread),
        [FMM_NODE_ADD] = OF_DTYPES(node_add),
    };
    const fmm_node_call *call = ctx;
    if (call->form != FMM_NODE_SPREAD) first *= FMM_NODE_ROWS, last *= FMM_NODE_ROWS;
    if (call->form != FMM_NODE_SPREAD && last > call->x.rows) last = call->x.rows;
    of[call->form][call->x.dtype](call, first, last);
}

/* Heads [first, last) of SPREAD's totals. */
static void add_up(int64_t first, int64_t last, void *ctx)
{
    static kernel *const of[] = OF_DTYPES(node_total);
    const fmm_node_call *call = ctx;
    of[call->x.dtype](call, first, last);
}

fmm_status fmm_node_sums_cpu(const fmm_exec *exec, const fmm_node_call *call)
{
    enum { WAKES = 1 << 16 }; /* fewer numbers to add up are not worth waking other threads */
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
