/* What the `segments` kernels of messages can take and how much workspace they need. This is host
 * code and looks at the sizes of the operands alone, so that a call never waits for the device. */
#include "../cuda/segments.cuh"
#include "cuda.h"

/* A lane takes at most so many features at once: 16 bytes of 16-bit numbers. */
enum { MOST_PACKED = 8 };

/* Entries, features and strides are 32-bit numbers, and so is the first feature of the tile behind
 * the last. Counts of 16-bit operands are of another dtype, and are those of rows. */
bool fmm_messages_segments_supports(const fmm_call *call)
{
    const fmm_edge_message *m = fmm_messages_of(call);
    const fmm_term *const terms[] = {&m->lhs, &m->rhs, &m->mask_lhs, &m->mask_rhs, &m->mask_y};
    int64_t width = 1; /* features of a message */
    for (int d = 0; d < FMM_AXES; d++)
        if (__builtin_mul_overflow(width, m->axis[d], &width)) return false;
    for (const fmm_term *t : terms)
        if (t->data && !can_gather(t->data)) return false;
    if (width > INT32_MAX - WARP * MOST_PACKED || call->a->nnz > INT32_MAX ||
        call->a->rows > INT32_MAX)
        return false;
    return m->out.at == FMM_AT_ROW ? segments_reach(call->a, 1, width) : m->op != FMM_COMBINE_ONE;
}

/* Of sums over rows: a slot for each piece, behind the plan. Messages that stay with their entries
 * are written where they belong, and need none. */
size_t fmm_messages_segments_workspace(const fmm_call *call)
{
    const fmm_edge_message *m = fmm_messages_of(call);
    if (m->out.at != FMM_AT_ROW) return 0;
    const int64_t sum_bytes =
        fmm_messages_first(m)->dtype == FMM_F64 ? sizeof(double) : sizeof(float);
    int64_t bytes;
    if (__builtin_mul_overflow(plan_slots(call->a) * sum_bytes, ceil_div(call->y->feat, 4) * 4,
                               &bytes))
        return SIZE_MAX;
    return plan_workspace(call->a) + (size_t)bytes;
}
