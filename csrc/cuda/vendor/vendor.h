/* What cusparse.c and cublas.c share: how a vendor's library is found, its handles, and the kernels
 * that turn our operands into what it takes (vendor.cu).
 *
 * The libraries are bound at run time, with prototypes of our own, so that the package neither
 * links nor ships them: torch has usually loaded them already, and a machine without them only
 * lacks these algorithms. Each thread keeps one handle per library and device, made at first use
 * and kept until the process ends: making one costs milliseconds, and a handle must not serve two
 * threads at once. A process that warms up before it captures a CUDA graph makes none inside.
 *
 * Unlike every kernel of ours, theirs trust the content of ptr and idx: a matrix whose arrays were
 * changed behind fusedmm.CSR's check can crash the process. So `auto` never chooses them. */
#ifndef FMM_CUDA_VENDOR_H
#define FMM_CUDA_VENDOR_H

#include "../../core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { VENDOR_DEVICES = 64, VENDOR_ALIGN = 256 };

/* Finds `names[k]` (ended by NULL) in the first of `files` that loads, and writes the addresses to
 * slots[k]. False: fmm_last_error says what to install. */
bool fmm_vendor_bind(const char *op, const char *label, const char *package,
                     const char *const *files, const char *const *names, void *slots);

/* Bytes up to the next boundary at which a part of the workspace begins. */
static inline size_t fmm_vendor_part(int64_t count, size_t each)
{
    return ((size_t)count * each + VENDOR_ALIGN - 1) / VENDOR_ALIGN * VENDOR_ALIGN;
}

/* Makes the device of the call, or the one that holds `data`, current; and back. */
fmm_status fmm_vendor_enter(const char *op, const fmm_exec *exec, int *before);
fmm_status fmm_vendor_enter_at(const char *op, const void *data, int *device, int *before);
fmm_status fmm_vendor_leave(const char *op, const fmm_exec *exec, int before);
void fmm_vendor_return(int before);

/* All on the call's stream. ptr as int32; the row of every entry; val[eid[p], head] as `dtype`. */
void fmm_vendor_ptr(const fmm_exec *exec, const fmm_csr *a, int32_t *ptr);
void fmm_vendor_rows(const fmm_exec *exec, const fmm_csr *a, int32_t *row);
void fmm_vendor_values(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val, int64_t head,
                       fmm_dtype dtype, void *to);
/* e[eid[p], head] = val[eid[p], head] * dot[p]; the same with dot from a dense [rows, cols]. */
void fmm_vendor_edges(const fmm_exec *exec, const fmm_call *call, int64_t head, const void *dot);
void fmm_vendor_sample(const fmm_exec *exec, const fmm_call *call, int64_t head, const void *dense);
/* A as a dense [rows, cols] of f32 or f64; zeros in a dense operand. */
void fmm_vendor_densify(const fmm_exec *exec, const fmm_call *call, int64_t head, void *dense);
void fmm_vendor_zero(const fmm_exec *exec, const fmm_dense *y);

/* cusparse.c. X(operator, number, name, algorithm as cusparse.h counts, COO, preprocess, whether it
 * is documented to repeat its bits) */
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
#define FMM_CUSPARSE_SDDMM_LIST(X)                                                                 \
    X(sddmm, 10, csr_default, 0, false, false, false)                                              \
    X(sddmm, 11, csr_default_preprocess, 0, false, true, false)
#define X(op, number, name, algorithm, coo, preprocess, deterministic)                             \
    size_t fmm_##op##_cusparse_##name##_workspace(const fmm_call *call);                           \
    fmm_status fmm_##op##_cusparse_##name(const fmm_exec *exec, const fmm_call *call);
FMM_CUSPARSE_SPMM_LIST(X)
FMM_CUSPARSE_SDDMM_LIST(X)
#undef X
/* Its line in an operator's table. */
#define FMM_CUSPARSE_ALGORITHM(op, id, what, algorithm, coo, preprocess, bits)                     \
    {.number = id,                                                                                 \
     .name = "cusparse:" #what,                                                                    \
     .about = "cuSPARSE, bound at run time",                                                       \
     .source = "NVIDIA",                                                                           \
     .deterministic = bits,                                                                        \
     .supports = fmm_cusparse_supports,                                                            \
     .workspace = fmm_##op##_cusparse_##what##_workspace,                                          \
     .run = fmm_##op##_cusparse_##what},
enum { FMM_CUSPARSE_DEFAULT = 10 }; /* csr_default, of both */
bool fmm_cusparse_supports(const fmm_call *call);

/* cublas.c */
enum { FMM_CUBLAS_NUMBER = 30 };
bool fmm_cublas_supports(const fmm_call *call);
size_t fmm_cublas_workspace(const fmm_call *call);
fmm_status fmm_spmm_cublas(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_sddmm_cublas(const fmm_exec *exec, const fmm_call *call);

#ifdef __cplusplus
}
#endif
#endif
