/* AVX-512: the kernels of f32 and f64. */
#include "isa_avx512.h"

#include "rows.h"

#ifdef FMM_ISA
#include "kernels.inc"
#else
const fmm_kernels fmm_avx512_f32, fmm_avx512_f64;
#endif
