/* Plain C: the kernels of f32 and f64. */
#include "isa_scalar.h"

#include "kernels.inc"
