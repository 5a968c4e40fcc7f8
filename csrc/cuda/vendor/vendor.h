/* cuSPARSE and cuBLAS as algorithms: how a vendor's library is found, its handles and descriptors,
 * and the kernels that turn our operands into what it takes (vendor.cu). What an operator calls of
 * them is in its room's cuda_vendor.c.
 *
 * The libraries are bound at run time, with prototypes of our own, so that the package neither
 * links nor ships them: torch has usually loaded them already, and a machine without them only
 * lacks these algorithms. Each thread keeps one handle per library and device, made at first use
 * and kept until the process ends: making one costs milliseconds, and a handle must not serve two
 * threads at once. A process that warms up before it captures a CUDA graph makes none inside.
 *
 * Unlike every kernel of ours, theirs trust the content of ptr and idx: a matrix whose arrays were
 * changed behind fusedmm.CSR's check can crash the process. So `auto` never chooses them. */
#pragma once

#include "../../core/core.h"
#include "vendor_api.h"

FMM_C_BEGIN

enum { VENDOR_DEVICES = 64, VENDOR_ALIGN = 256 };
enum { VENDOR_PLAIN = 0, VENDOR_TRANSPOSED = 1 }; /* both libraries' operand kinds */

/* A library: what users call it, the package that has it, and its functions names[k] (ended by
 * NULL), which binding finds in the first of `files` that loads, with their addresses in slots[k].
 */
typedef struct fmm_vendor_library {
    const char *label, *package, *files[4];
    const char *const *names;
    void *slots;
    bool bound;
} fmm_vendor_library;
/* What a list of functions (vendor_api.h) becomes: fields of slots, and names. */
#define FMM_VENDOR_SLOT(result, name, arguments) result(*name) arguments;
#define FMM_VENDOR_NAME(result, name, arguments) #name,
/* Binds it once, for all threads. False: fmm_last_error says what to install. */
bool fmm_vendor_bind(const char *op, fmm_vendor_library *library);

/* Bytes up to the next boundary at which a part of the workspace begins. */
static inline size_t fmm_vendor_part(int64_t count, size_t each)
{
    return ((size_t)count * each + VENDOR_ALIGN - 1) / VENDOR_ALIGN * VENDOR_ALIGN;
}

/* Whether a call has nothing to multiply; its results are zeros. */
static inline bool fmm_vendor_empty(const fmm_call *call)
{
    return !call->a->nnz || !call->x->heads || !call->x->feat;
}

/* Makes the device of the call, or the one that holds `data`, current; and back. Leaving a call
 * gives its status so far, or where that is FMM_OK what its launches came to. */
fmm_status fmm_vendor_enter(const char *op, const fmm_exec *exec, int *before);
fmm_status fmm_vendor_enter_at(const char *op, const void *data, int *device, int *before);
fmm_status fmm_vendor_leave(const char *op, const fmm_exec *exec, int before, fmm_status status);
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
/* Vectors of one type, whose elements lie one behind the other. */
void fmm_vendor_copy(const fmm_exec *exec, const fmm_dense *x, const fmm_dense *y);

/* ---- cusparse.c ---- */

/* Its functions, bound before a room's are called. */
typedef struct fmm_cusparse_functions {
    FMM_CUSPARSE_API(FMM_VENDOR_SLOT)
} fmm_cusparse_functions;
extern fmm_cusparse_functions fmm_cusparse;

/* What calls of them need: numbers of cusparse.h and library_types.h, the thread's handle with the
 * call's stream, and a status as ours, with cuSPARSE's own words. */
enum { CUSPARSE_BASE_ZERO = 0, CUSPARSE_INDEX_32 = 2 };
extern const int fmm_cusparse_type[FMM_DTYPES];
fmm_status fmm_cusparse_handle(const char *op, int device, void *stream, void **handle);
fmm_status fmm_cusparse_said(const char *op, int status);

/* An entry of a room's table: the algorithm as cusparse.h counts, and the format. */
typedef struct fmm_cusparse_variant {
    int algorithm;
    bool coo, preprocess;
} fmm_cusparse_variant;

/* What an operator calls: places in fmm_cusparse, which SpMM and SDDMM fill with functions of one
 * kind. */
typedef struct fmm_cusparse_calls {
    const char *op;
    bool edges; /* c is the sparse matrix, with y as its values; else a is, with val */
    int (*const *bytes)(FMM_CUSPARSE_OPERANDS, size_t *bytes);
    int (*const *preprocess)(FMM_CUSPARSE_OPERANDS, void *buffer);
    int (*const *multiply)(FMM_CUSPARSE_OPERANDS, void *buffer);
} fmm_cusparse_calls;
bool fmm_cusparse_supports(const fmm_cusparse_calls *calls, const fmm_call *call);
size_t fmm_cusparse_workspace(const fmm_cusparse_calls *calls, const fmm_call *call,
                              fmm_cusparse_variant v);
fmm_status fmm_cusparse_run(const fmm_cusparse_calls *calls, const fmm_exec *exec,
                            const fmm_call *call, fmm_cusparse_variant v);

/* A room lists its entries: X(operator, number, name, algorithm, COO, preprocess, whether it is
 * documented to repeat its bits). Of each follow the prototypes, the functions and the line. */
#define FMM_CUSPARSE_DECLARE(op, id, what, algorithm, coo, preprocess, bits)                       \
    size_t fmm_##op##_cusparse_##what##_workspace(const fmm_call *call);                           \
    fmm_status fmm_##op##_cusparse_##what(const fmm_exec *exec, const fmm_call *call);
#define FMM_CUSPARSE_DEFINE(op, id, what, algorithm, coo, preprocess, bits)                        \
    size_t fmm_##op##_cusparse_##what##_workspace(const fmm_call *call)                            \
    {                                                                                              \
        return fmm_cusparse_workspace(&calls, call,                                                \
                                      (fmm_cusparse_variant){algorithm, coo, preprocess});         \
    }                                                                                              \
    fmm_status fmm_##op##_cusparse_##what(const fmm_exec *exec, const fmm_call *call)              \
    {                                                                                              \
        return fmm_cusparse_run(&calls, exec, call,                                                \
                                (fmm_cusparse_variant){algorithm, coo, preprocess});               \
    }
/* clang-format off */
#define FMM_CUSPARSE_ALGORITHM(op, id, what, algorithm, coo, preprocess, bits)                     \
    {id, "cusparse:" #what, "cuSPARSE, bound at run time", "NVIDIA", bits,                         \
     fmm_##op##_cusparse_supports, fmm_##op##_cusparse_##what##_workspace,                         \
     fmm_##op##_cusparse_##what},
/* clang-format on */
enum { FMM_CUSPARSE_DEFAULT = 10 }; /* csr_default, in every room */

/* ---- cublas.c ---- */

enum { FMM_CUBLAS_NUMBER = 30 };
bool fmm_cublas_supports(const fmm_call *call);
size_t fmm_cublas_workspace(const fmm_call *call);
/* One head of an operator, whose matrix is `dense` [rows, cols], in the workspace. */
typedef fmm_status fmm_cublas_head(const fmm_exec *exec, const fmm_call *call, void *handle,
                                   int64_t head, void *dense);
fmm_status fmm_cublas_run(const char *op, const fmm_exec *exec, const fmm_call *call,
                          fmm_cublas_head *one);
/* c[m, n] = op(a) b, column-major, of the operands' dtype. */
typedef struct fmm_cublas_matrix {
    void *data;
    int ld;
} fmm_cublas_matrix;
fmm_cublas_matrix fmm_cublas_view(const fmm_dense *d, int64_t head);
fmm_status fmm_cublas_multiply(const char *op, void *handle, fmm_dtype dtype, int op_a, int64_t m,
                               int64_t n, int64_t k, fmm_cublas_matrix a, fmm_cublas_matrix b,
                               fmm_cublas_matrix c);

FMM_C_END
