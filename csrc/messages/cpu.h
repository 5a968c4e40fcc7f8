/* What the CPU's files of messages share: which loops a call takes, and those of the specification,
 * which also compute rows whose indices are out of range. */
#ifndef FMM_MESSAGES_CPU_H
#define FMM_MESSAGES_CPU_H

#include "../cpu/rows.h"
#include "steps.h"

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
