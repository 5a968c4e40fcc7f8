/* SpMM `tiles` over bf16: the kernel of cuda_tiles.cuh. */
#include "cuda_tiles_run.cuh"

FMM_TILES_OF(bf16, __nv_bfloat16)
