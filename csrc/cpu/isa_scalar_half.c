/* Plain C: the kernels of f16 and bf16. */
#define FMM_HALF
#include "isa_scalar.h"

#include "kernels.inc"
