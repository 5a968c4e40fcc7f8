/* Attention over bf16. cuda_run.cuh has the code; each type has a file, so that they compile side
 * by side. */
#include "cuda_run.cuh"

FMM_SEGMENTS_OF(attention, bf16, __nv_bfloat16)
