/* Row sums through the C interface: right on the CPU, refused by name on CUDA. */
#include "fusedmm.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    const int64_t ptr[] = {0, 2, 2, 3};
    const int32_t idx[] = {0, 1, 1};
    float values[] = {1, 2, 4}, sums[3];
    const fmm_csr a = {.rows = 3, .cols = 2, .nnz = 3, .ptr = ptr, .idx = idx};
    const fmm_dense val = {values, FMM_F32, 3, 1, 1, 1, 1}, y = {sums, FMM_F32, 3, 1, 1, 1, 1};
    const fmm_exec cpu = {.device = FMM_CPU}, cuda = {.device = FMM_CUDA};
    const bool right =
        fmm_rowsum(&cpu, &a, &val, &y, 0) == FMM_OK && sums[0] == 3 && sums[1] == 0 && sums[2] == 4;
    const bool refused = fmm_rowsum(&cuda, &a, &val, &y, 0) == FMM_UNSUPPORTED &&
                         strstr(fmm_last_error(), "rowsum") != NULL;
    printf("%s\n", fmm_last_error());
    return right && refused ? 0 : 1;
}
