/* Row sums have no kernel on CUDA: a call there is refused by name. */
#include "../core/core.h"

const fmm_registry fmm_rowsum_cuda = {0};
