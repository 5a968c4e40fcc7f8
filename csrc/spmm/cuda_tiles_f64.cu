/* SpMM `tiles` over f64: the kernel of cuda_tiles.cuh. */
#include "cuda_tiles_run.cuh"

FMM_TILES_OF(f64, double)
