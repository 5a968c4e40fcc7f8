#include "../core/core.h"
const fmm_registry fmm_spmv_cuda = {0};
