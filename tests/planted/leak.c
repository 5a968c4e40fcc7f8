/* Planted: an output that nobody frees. */
#include "fusedmm.h"

#include <stdlib.h>

static int compute(void)
{
    const int64_t ptr[] = {0, 1};
    const int32_t idx[] = {0};
    float in[4] = {0}, *out = calloc(4, sizeof *out);
    const fmm_exec exec = {.device = FMM_CPU};
    const fmm_csr a = {.rows = 1, .cols = 1, .nnz = 1, .ptr = ptr, .idx = idx};
    const fmm_dense x = {in, FMM_F32, 1, 1, 4, 4, 4}, y = {out, FMM_F32, 1, 1, 4, 4, 4};
    return fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, 0) != FMM_OK;
}

int main(void) { return compute(); }
