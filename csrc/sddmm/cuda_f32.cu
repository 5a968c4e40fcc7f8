/* SDDMM `segments` over f32: the kernels of cuda.cuh for one element type. Each type has a file of
 * its own, so that they compile side by side. */
#include "cuda.cuh"

FMM_SEGMENTS_OF(sddmm, f32, float)
