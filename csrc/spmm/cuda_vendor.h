/* The vendors' algorithms of SpMM; see cuda_vendor.c.
 *
 * The fourth column is cusparse.h's number of the algorithm. The last column says whether NVIDIA
 * documents that the bits repeat, as it does for two of them. FMM_CUSPARSE_DECLARE in
 * cuda/vendor/vendor.h explains the others. */
#pragma once

#include "../cuda/vendor/vendor.h"

#define FMM_CUSPARSE_SPMM_LIST(X)                                                                  \
    X(spmm, 10, csr_default, 0, false, false, false)                                               \
    X(spmm, 11, csr_alg1, 4, false, false, false)                                                  \
    X(spmm, 12, csr_alg2, 6, false, false, false)                                                  \
    X(spmm, 13, csr_alg3, 12, false, false, true)                                                  \
    X(spmm, 14, csr_alg1_preprocess, 4, false, true, false)                                        \
    X(spmm, 16, coo_alg1, 1, true, false, false)                                                   \
    X(spmm, 17, coo_alg2, 2, true, false, true)                                                    \
    X(spmm, 18, coo_alg3, 3, true, false, false)                                                   \
    X(spmm, 19, coo_alg4, 5, true, false, false)
FMM_CUSPARSE_SPMM_LIST(FMM_CUSPARSE_DECLARE)
bool fmm_spmm_cusparse_supports(const fmm_call *call);
fmm_status fmm_spmm_cublas(const fmm_exec *exec, const fmm_call *call);
