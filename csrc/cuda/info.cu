/* What this build's CUDA part was made with, for fmm_build_info. */
#include "common.cuh"

#include <stdio.h>

/* A CUDA runtime that is linked statically, of a major release, runs on that release's first driver
 * and newer ones. */
static const char *needed_driver(void)
{
    return CUDART_VERSION >= 13000 ? "580" : CUDART_VERSION >= 12000 ? "525" : "450";
}

/* A JSON object. Each thread has its own copy of the text, so it stays as it is until the thread's
 * next call. The list of architectures is cut where it would leave no room for the rest. */
extern "C" const char *fmm_cuda_info(void)
{
    static const int architectures[] = {__CUDA_ARCH_LIST__}; /* 900 is 9.0 */
    static thread_local char info[512];
    size_t used = (size_t)snprintf(info, sizeof info, "{\"architectures\": [");
    for (size_t k = 0; k < sizeof architectures / sizeof *architectures && used < 400; k++)
        used += (size_t)snprintf(info + used, sizeof info - used, "%s\"%d.%d\"", k ? ", " : "",
                                 architectures[k] / 100, architectures[k] / 10 % 10);
    snprintf(
        info + used, sizeof info - used,
        "], \"compiler\": \"nvcc %d.%d.%d\", \"runtime\": \"%d.%d\", \"needed_driver\": \"%s\"}",
        __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__, CUDART_VERSION / 1000,
        CUDART_VERSION / 10 % 100, needed_driver());
    return info;
}
