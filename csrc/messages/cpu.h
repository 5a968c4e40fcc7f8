/* What the CPU's files of messages share: an operand's steps, and the loops of the specification,
 * which also compute rows whose indices are out of range. */
#ifndef FMM_MESSAGES_CPU_H
#define FMM_MESSAGES_CPU_H

#include "../cpu/rows.h"

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

/* Whether cpu_sums.inc computes a call: under a mask, and to entries where out lacks another axis
 * than the last, or lacks that for anything but products of two operands that have it. */
static inline bool fmm_messages_needs_sums(const fmm_edge_message *m)
{
    /* `has` has a bit for each axis that an operand has; the last axis has the highest. */
    const unsigned last = 1u << (FMM_AXES - 1), others = last - 1;
    if (m->mask_y.data || (m->out.has & others) != others) return true;
    return !(m->out.has & last) &&
           !(m->op == FMM_COMBINE_MUL && m->lhs.has & last && m->rhs.has & last);
}

/* Rows of any content, by loops that believe no index. */
fmm_rows_guarded fmm_messages_plain_rows;
/* The specification. */
fmm_status fmm_messages_reference(const fmm_exec *exec, const fmm_call *call);

#endif
