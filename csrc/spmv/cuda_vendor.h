/* The vendor's algorithms of SpMV; see cuda_vendor.c. `auto` never chooses them: several do not
 * repeat their bits, and none keeps this library's bound. */
#pragma once

#include "../cuda/vendor/vendor.h"

/* X(number, name, format, algorithm as cusparse.h counts, preprocess, whether it is documented to
 * repeat its bits). */
#define FMM_CUSPARSE_SPMV_LIST(X)                                                                  \
    X(20, csr_alg1, FMM_FORMAT_CSR, 2, false, false)                                               \
    X(21, csr_alg2, FMM_FORMAT_CSR, 3, false, true)                                                \
    X(22, csr_alg1_preprocess, FMM_FORMAT_CSR, 2, true, false)                                     \
    X(23, csr_alg2_preprocess, FMM_FORMAT_CSR, 3, true, true)                                      \
    X(24, coo_alg1, FMM_FORMAT_COO, 1, false, false)                                               \
    X(25, coo_alg2, FMM_FORMAT_COO, 4, false, true)                                                \
    X(26, sell, FMM_FORMAT_SELL, 5, false, false)

#define DECLARE(id, what, format, algorithm, preprocess, bits)                                     \
    bool fmm_spmv_cusparse_##what##_supports(const fmm_call *call);                                \
    size_t fmm_spmv_cusparse_##what##_workspace(const fmm_call *call);                             \
    fmm_status fmm_spmv_cusparse_##what(const fmm_exec *exec, const fmm_call *call);
FMM_CUSPARSE_SPMV_LIST(DECLARE)
