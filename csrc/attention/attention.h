/* Attention as the library's own files call it: with what the public interface does not show. */
#pragma once

#include "../core/core.h"

FMM_C_BEGIN

/* Parts in which attention's operators leave the gradient of att. */
enum { FMM_GATT_PARTS_CPU = 64, FMM_GATT_PARTS_CUDA = 1024 };

/* What fmm_call's `own` is for attention's own kernels: others see what is shown. */
typedef struct fmm_packed_attention {
    fmm_attention shown; /* the call of the public interface */
    const void *packed;  /* what DELTA packed, for COLS of additive scores on a GPU; or NULL */
    bool before;         /* by the kernel before, in one operator with this call */
} fmm_packed_attention;
static inline const fmm_packed_attention *fmm_packed_attention_of(const fmm_call *call)
{
    return (const fmm_packed_attention *)call->own;
}
/* fmm_attend with what was packed. */
fmm_status fmm_attend_packed(const fmm_exec *exec, const fmm_csr *a, const fmm_attention *call,
                             const void *packed, bool before, int algorithm);

FMM_C_END
