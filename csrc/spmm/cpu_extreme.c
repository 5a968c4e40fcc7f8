/* The three forms of extreme.c on the CPU.
 *
 * A row of the matrix at hand (A, or its transpose for COLS) is one owner's. Its channels pass in
 * panels whose sums are doubles on the stack: one term each per entry, in storage order, so results
 * do not depend on threads, and an f32 result is exact to its last bit for any length of row. */
#include "extreme.h"
#include "../cpu/reference.h"

enum { PANEL = 128 };

#define LOOPS "../spmm/cpu_extreme.inc"
#include "../cpu/dtypes.inc"

typedef void loops(const fmm_extreme_call *call, int64_t first, int64_t last);

static void run(int64_t first, int64_t last, void *ctx)
{
    static loops *const of_dtype[] = OF_DTYPES(extreme_rows);
    const fmm_extreme_call *call = ctx;
    of_dtype[call->x->dtype](call, first, last);
}

fmm_status fmm_extreme_cpu(const fmm_exec *exec, const fmm_extreme_call *call)
{
    fmm_extreme_call copy = *call;
    fmm_parallel(exec, call->a->rows, run, &copy);
    return FMM_OK;
}
