/* Picking the rows that other ranks need, to send them:
 *
 *     y[k, :] = x[from[k], :]        zeros where from[k] is no row
 *
 * Rows are bytes, whatever their numbers are, so that every bit of them arrives. torch's own
 * index_select gives a block of threads to each row, most of which idle where rows are short, and
 * moves narrow columns of a wide operand by single elements. Each byte of y has one owner. */
#include "pick.h"

#include <string.h>

static void pick_rows(int64_t first, int64_t last, void *ctx)
{
    const fmm_pick_call *call = ctx;
    const size_t bytes = (size_t)call->bytes;
    for (int64_t k = first; k < last; k++) {
        /* Read once: whoever writes to it meanwhile changes which row is copied, and no more. */
        const int64_t i = call->wide ? ((const volatile int64_t *)call->from)[k]
                                     : ((const volatile int32_t *)call->from)[k];
        unsigned char *y = call->y + k * call->apart;
        if ((uint64_t)i < (uint64_t)call->rows)
            memcpy(y, call->x + i * call->stride, bytes);
        else
            memset(y, 0, bytes);
    }
}

fmm_status fmm_pick(const fmm_exec *exec, const fmm_pick_call *call)
{
    fmm_pick_call copy = *call;
    if (!call->count || !call->bytes) return FMM_OK;
    if (exec->device == FMM_CUDA) return fmm_pick_cuda(exec, call);
    fmm_parallel(exec, call->count, pick_rows, &copy);
    return FMM_OK;
}
