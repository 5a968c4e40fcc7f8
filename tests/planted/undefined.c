/* Planted: a pool that counts past the end of its integers. */
#include "fusedmm.h"

static void pool(int64_t count, fmm_range *body, void *ctx)
{
    int end = 2147483000;
    for (int k = 0; k < 1000; k++) end += (int)count;
    body(0, end == 0 ? count : 0, ctx);
}

int main(void)
{
    const int64_t ptr[1025] = {0};
    float in[4] = {0}, out[1024];
    const fmm_exec exec = {.device = FMM_CPU, .parallel_for = pool};
    const fmm_csr a = {.rows = 1024, .cols = 1, .nnz = 0, .ptr = ptr};
    const fmm_dense x = {in, FMM_F32, 1, 1, 1, 1, 1}, y = {out, FMM_F32, 1024, 1, 1, 1, 1};
    return fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, 1) != FMM_OK;
}
