/* AVX2: the kernels of f32 and f64. */
#include "isa_avx2.h"

#include "rows.h"

#ifdef FMM_ISA
#include "kernels.inc"
#else
const fmm_kernels fmm_avx2_f32, fmm_avx2_f64;
#endif
