/* NEON: the kernels of f16 and bf16. */
#define FMM_HALF
#include "isa_neon.h"

#include "rows.h"

#ifdef FMM_ISA
#include "kernels.inc"
#else
const fmm_kernels fmm_neon_f16, fmm_neon_bf16;
#endif
