/* SpMM `tiles` over f16: the kernel of cuda_tiles.cuh. */
#include "cuda_tiles_run.cuh"

FMM_TILES_OF(f16, __half)
