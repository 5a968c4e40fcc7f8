/* The algorithms of messages on CUDA, and which one number 0 stands for. Kernels are found by the
 * type of the first operand, which the others have too. A message that only counts entries has no
 * operand but its mask. */
#include "cuda.h"

FMM_CUDA_RUN(fmm_messages_segments, fmm_messages_first(fmm_messages_of(call)))

static const fmm_algorithm algorithms[] = {
    {1, "reference", "one thread per output element, terms in storage order", "the definition",
     true, NULL, NULL, fmm_messages_reference_cuda},
    {2, "segments",
     .about = "rows by falling length, long ones in pieces; a warp for 32 entries where they stay",
     "this project", true, fmm_messages_segments_supports, fmm_messages_segments_workspace,
     fmm_messages_segments},
    {0},
};

/* `segments` declines only what its 32-bit numbers of entries and strides cannot span. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    return &algorithms[fmm_messages_segments_supports(call)];
}

const fmm_registry fmm_messages_cuda = {algorithms, choose};
