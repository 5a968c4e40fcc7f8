/* What both devices' files of messages ask of a call: an operand's steps, and the dtype of all. */
#pragma once

#include "../core/core.h"

/* How far apart in a row of the operand neighbours along each axis are; 0 where it is broadcast. */
typedef struct fmm_steps {
    int64_t by[FMM_AXES];
} fmm_steps;

/* The axes that the operand has lie densely, the last one by ones. */
static inline fmm_steps fmm_steps_of(const fmm_edge_message *m, const fmm_term *t)
{
    fmm_steps s;
    int64_t width = 1;
    for (int d = FMM_AXES - 1; d >= 0; d--) {
        const bool has = t->has >> d & 1;
        s.by[d] = has ? width : 0;
        width *= has ? m->axis[d] : 1;
    }
    return s;
}

/* The operand whose dtype is that of all. */
static inline const fmm_dense *fmm_messages_first(const fmm_edge_message *m)
{
    return m->op == FMM_COMBINE_ONE ? m->mask_y.data : m->lhs.data;
}
