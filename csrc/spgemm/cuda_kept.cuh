/* What a plan keeps of the products beside their structure (cuda_kept.cu). */
#ifndef FMM_SPGEMM_CUDA_KEPT_CUH
#define FMM_SPGEMM_CUDA_KEPT_CUH

#include "cuda_products.cuh"

#include <inttypes.h>

/* Lists the products of each entry of C, in the pattern's memory, if they are few enough; says
 * whether it did. B's columns rise. */
fmm_status fmm_spgemm_keep(const fmm_exec *exec, const fmm_spgemm_pattern *out, const csr_view &a,
                           const csr_view &b, const csr_view &c, int64_t products, bool *made);

/* Computes C's values by a list, or returns false where `n` numbers are none. */
bool fmm_spgemm_add_listed(const fmm_exec *exec, const numeric_args &s, const int32_t *kept,
                           int64_t n);

#endif
