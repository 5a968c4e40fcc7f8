/* What is asked of a CUDA device once, and then kept. */
#ifndef FMM_CUDA_DEVICE_H
#define FMM_CUDA_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Multiprocessors of a device; 1 of a device that does not answer. */
int fmm_cuda_processors(int device);

#ifdef __cplusplus
}
#endif
#endif
