/* The vendors' algorithms of SDDMM; see cuda_vendor.c. cuSPARSE has one, with or without the call
 * that prepares it. FMM_CUSPARSE_DECLARE (cuda/vendor/vendor.h) explains the columns. */
#pragma once

#include "../cuda/vendor/vendor.h"

#define FMM_CUSPARSE_SDDMM_LIST(X)                                                                 \
    X(sddmm, 10, csr_default, 0, false, false, false)                                              \
    X(sddmm, 11, csr_default_preprocess, 0, false, true, false)
FMM_CUSPARSE_SDDMM_LIST(FMM_CUSPARSE_DECLARE)
bool fmm_sddmm_cusparse_supports(const fmm_call *call);
fmm_status fmm_sddmm_cublas(const fmm_exec *exec, const fmm_call *call);
