/* Messages have no kernel on CUDA yet: a call there is refused by name. */
#include "../core/core.h"

const fmm_registry fmm_messages_cuda = {0};
