/* What a plan keeps of the products beside their structure (cuda_kept.cu). */
#ifndef FMM_SPGEMM_CUDA_KEPT_CUH
#define FMM_SPGEMM_CUDA_KEPT_CUH

#include "cuda_products.cuh"

#include <inttypes.h>

/* Finds where each product goes, in the pattern's memory, if that is not too much; says whether it
 * did. Waits for the device. B's columns rise. */
fmm_status fmm_spgemm_keep(const fmm_exec *exec, const fmm_spgemm_pattern *out, const csr_view &a,
                           const csr_view &b, const csr_view &c, int64_t products, bool *made);

/* Computes C's values by what was kept, or returns false where `n` numbers are none of it. */
bool fmm_spgemm_add_kept(const fmm_exec *exec, const numeric_args &s, const int32_t *kept,
                         int64_t n);

/* Computes C's values in the rows that are not small, with the memory of a list of rows
 * (cuda_rows.cu); `windows` says whether B's columns rise and no row of A is a long walk. */
void fmm_spgemm_other_rows(const fmm_exec *exec, const numeric_args &s, bool windows,
                           void *workspace);

/* Computes C's values where columns rise, but for windows of small rows alone (cuda_entries.cu). */
void fmm_spgemm_add_found(const fmm_exec *exec, const numeric_args &s);

#endif
