/* Planted: two callers with one output. */
#include "fusedmm.h"

#include <pthread.h>
#include <stddef.h>

static float in[4], out[4];

static void *compute(void *failed)
{
    const int64_t ptr[] = {0, 1};
    const int32_t idx[] = {0};
    const fmm_exec exec = {.device = FMM_CPU};
    const fmm_csr a = {.rows = 1, .cols = 1, .nnz = 1, .ptr = ptr, .idx = idx};
    const fmm_dense x = {in, FMM_F32, 1, 1, 4, 4, 4}, y = {out, FMM_F32, 1, 1, 4, 4, 4};
    for (int k = 0; k < 1000; k++)
        if (fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, 2) != FMM_OK) *(int *)failed = 1;
    return NULL;
}

int main(void)
{
    pthread_t thread;
    int here = 0, there = 0;
    if (pthread_create(&thread, NULL, compute, &there)) return 1;
    compute(&here);
    pthread_join(thread, NULL);
    return here | there;
}
