/* AVX2: the kernels of f16 and bf16. */
#define FMM_HALF
#include "isa_avx2.h"

#include "rows.h"

#ifdef FMM_ISA
#include "kernels.inc"
#else
const fmm_kernels fmm_avx2_f16, fmm_avx2_bf16;
#endif
