/* NEON: the kernels of f32 and f64. */
#include "isa_neon.h"

#include "rows.h"

#ifdef FMM_ISA
#include "kernels.inc"
#else
const fmm_kernels fmm_neon_f32, fmm_neon_f64;
#endif
