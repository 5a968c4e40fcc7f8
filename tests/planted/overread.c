/* Planted: a view that claims one row more than its memory has. */
#include "fusedmm.h"

#include <stdlib.h>

int main(void)
{
    const int64_t ptr[] = {0, 1};
    const int32_t idx[] = {3};
    float out[4], *rows = calloc(3 * 4, sizeof *rows);
    const fmm_exec exec = {.device = FMM_CPU};
    const fmm_csr a = {.rows = 1, .cols = 4, .nnz = 1, .ptr = ptr, .idx = idx};
    const fmm_dense x = {rows, FMM_F32, 4, 1, 4, 4, 4}, y = {out, FMM_F32, 1, 1, 4, 4, 4};
    const fmm_status status = fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, 2);
    free(rows);
    return status != FMM_OK;
}
