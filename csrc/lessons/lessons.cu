/* The plug-in: registers every lesson. A lesson is one file and one line here. */
#include "lesson.cuh"

#include <stdarg.h>
#include <stdio.h>

#define SPMM_LESSONS(X)                                                                            \
    X(spmm_thread_per_output)                                                                      \
    X(spmm_shared)                                                                                 \
    X(spmm_row_split)                                                                              \
    X(spmm_multi_spmv)                                                                             \
    X(spmm_crc)                                                                                    \
    X(spmm_row_vector)                                                                             \
    X(spmm_merge_path)                                                                             \
    X(spmm_gather_wall)
#define SDDMM_LESSONS(X)                                                                           \
    X(sddmm_edge_search)                                                                           \
    X(sddmm_dense_grid)                                                                            \
    X(sddmm_row_blocks)                                                                            \
    X(sddmm_row_vector)                                                                            \
    X(sddmm_dynamic)
#define FUSED_LESSONS(X)                                                                           \
    X(fused_blocks_atomic)                                                                         \
    X(fused_row_vector)

#define X(list) extern fmm_algorithm list[];
SPMM_LESSONS(X)
SDDMM_LESSONS(X)
FUSED_LESSONS(X)
#undef X

static const fmm_host *host_of_errors;

/* What common.cuh fails with: the text goes to the library that loaded this one. */
extern "C" fmm_status fmm_fail(fmm_status status, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return host_of_errors->fail(status, text);
}

static fmm_status add_all(const fmm_host *host, fmm_operator op, fmm_algorithm *list)
{
    for (; list->name; list++) TRY(host->add(op, FMM_CUDA, list));
    return FMM_OK;
}

FMM_PLUGIN
{
    host_of_errors = host;
#define X(list) TRY(add_all(host, FMM_SPMM, list));
    SPMM_LESSONS(X)
#undef X
#define X(list) TRY(add_all(host, FMM_SDDMM, list));
    SDDMM_LESSONS(X)
#undef X
#define X(list) TRY(add_all(host, FMM_FUSED, list));
    FUSED_LESSONS(X)
#undef X
    return FMM_OK;
}
