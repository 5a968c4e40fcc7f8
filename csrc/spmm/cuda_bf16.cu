/* SpMM `segments` over bf16: the kernels of cuda.cuh for one element type. Each type has a file of
 * its own, so that they compile side by side. */
#include "cuda.cuh"

FMM_SEGMENTS_OF(spmm, bf16, __nv_bfloat16)
