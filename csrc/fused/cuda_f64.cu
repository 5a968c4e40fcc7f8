/* fused `segments` over f64: the kernels of cuda.cuh and cuda_back.cuh for one element type. Each
 * type has a file of its own, so that they compile side by side. */
#include "cuda_back_run.cuh"

FMM_SEGMENTS_OF(fused, f64, double)
