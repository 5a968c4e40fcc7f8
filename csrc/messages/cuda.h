/* What cuda_algorithms.c needs of the CUDA files of messages. */
#pragma once

#include "../cuda/kernels.h"

FMM_SEGMENTS_DECLARE(messages)

/* The operand whose dtype is that of all. */
static inline const fmm_dense *fmm_messages_first(const fmm_edge_message *m)
{
    return m->op == FMM_COMBINE_ONE ? m->mask_y.data : m->lhs.data;
}
