/* Messages `segments` over f16: the kernels of cuda_rows.cuh and cuda_entries.cuh for one element
 * type. Each type has a file of its own, so that they compile side by side. */
#include "cuda_run.cuh"

FMM_SEGMENTS_OF(messages, f16, __half)
