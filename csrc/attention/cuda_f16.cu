/* Attention over f16. cuda_run.cuh has the code; each type has a file, so that they compile side by
 * side. */
#include "cuda_run.cuh"

FMM_SEGMENTS_OF(attention, f16, __half)
