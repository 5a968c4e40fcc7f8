/* Rows of bytes that are picked from an operand, as they travel to other ranks; see pick.c. */
#pragma once

#include "../core/core.h"

FMM_C_BEGIN

typedef struct fmm_pick_call {
    const unsigned char *x; /* [rows, bytes], a row every `stride` bytes */
    int64_t rows, bytes, stride;
    const void *from; /* [count], int64, or int32 where not wide */
    bool wide;
    unsigned char *y; /* [count, bytes], a row every `apart` bytes */
    int64_t count, apart;
} fmm_pick_call;

fmm_status fmm_pick(const fmm_exec *exec, const fmm_pick_call *call);
fmm_status fmm_pick_cuda(const fmm_exec *exec, const fmm_pick_call *call);

FMM_C_END
