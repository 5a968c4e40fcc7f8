/* fusedmm: sparse kernels for graph neural networks. This header has what all operators share. It
 * includes a header for each operator at its end, and so is the whole C interface:
 *
 *     fusedmm_spmm.h        SpMM: sums over rows, sparse times dense
 *     fusedmm_sddmm.h       SDDMM: dot products of two dense operands, one for each entry
 *     fusedmm_fused.h       fused: SDDMM, a function of each edge, and SpMM in one pass
 *     fusedmm_attention.h   attention: a softmax over each row's entries, and its gradients
 *     fusedmm_spmv.h        SpMV: sparse times one vector, in six formats
 *     fusedmm_spgemm.h      SpGEMM: sparse times sparse
 *     fusedmm_messages.h    messages: two operands combined for each entry, reduced or kept
 *     fusedmm_plugin.h      what plug-ins are to the library
 *
 * A matrix is a borrowed CSR view, a dense operand a borrowed strided view; nothing here owns
 * memory. The caller allocates outputs and workspace, so the library can be captured in a CUDA
 * graph and an out-of-memory is the caller's to handle. Every function returns a status; on failure
 * fmm_last_error() holds one sentence with the offending index and value (one text per thread). */
#ifndef FUSEDMM_H
#define FUSEDMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The functions between these two are C's, in a file of C++ or CUDA too. */
#ifdef __cplusplus
#define FMM_C_BEGIN extern "C" {
#define FMM_C_END }
#else
#define FMM_C_BEGIN
#define FMM_C_END
#endif

FMM_C_BEGIN

#define FMM_API __attribute__((visibility("default")))
#define FMM_VERSION "0.1.0"

typedef enum fmm_status {
    FMM_OK,
    FMM_INVALID_ARGUMENT, /* the call is wrong: the text names what, where and its value */
    FMM_OUT_OF_MEMORY,
    FMM_UNSUPPORTED,  /* right, but not in this build, on this machine or by this algorithm */
    FMM_DEVICE_ERROR, /* the CUDA runtime refused */
} fmm_status;

typedef enum fmm_device { FMM_CPU, FMM_CUDA } fmm_device;

/* One line per element type: X(enum, name, bytes). Sums are kept in f32, in f64 for f64. */
#define FMM_DTYPE_LIST(X)                                                                          \
    X(FMM_F32, "f32", 4)                                                                           \
    X(FMM_F64, "f64", 8)                                                                           \
    X(FMM_F16, "f16", 2)                                                                           \
    X(FMM_BF16, "bf16", 2)
typedef enum fmm_dtype {
#define X(id, name, bytes) id,
    FMM_DTYPE_LIST(X)
#undef X
        FMM_DTYPES
} fmm_dtype;

typedef enum fmm_reduce { FMM_SUM, FMM_MEAN, FMM_MAX, FMM_MIN } fmm_reduce;

/* How entries are spread over the rows of a matrix, and in which order they lie in a row. A call
 * would have to wait for the device to learn this, so the caller measures it once and says it here.
 * Algorithm 0 alone reads it, to choose another algorithm; results are right whatever it says. */
typedef enum fmm_rows {
    FMM_ROWS_UNKNOWN, /* nobody measured it */
    FMM_ROWS_EVEN,    /* no row has more than twice the mean of entries, and columns rise in rows */
    FMM_ROWS_UNEVEN,  /* a row has more than four times the mean, or columns do not rise in rows */
    FMM_ROWS_NEITHER, /* neither holds */
} fmm_rows;

/* Where several devices share a matrix, the rows and entries of the whole of which a call has a
 * part. Bits follow from these numbers: how long the pieces of long rows are. Results are right
 * whatever they say. Zeros mean that the call has the whole. */
typedef struct fmm_whole {
    int64_t rows, nnz;
} fmm_whole;

/* A [rows, cols] in CSR. Columns may repeat (entries add) and need not be sorted. */
typedef struct fmm_csr {
    int64_t rows, cols, nnz;
    const int64_t *ptr; /* [rows + 1], ptr[0] = 0, never falling, ptr[rows] = nnz */
    const int32_t *idx; /* [nnz], 0 <= idx < cols */
    const void *eid;    /* [nnz] int32 while nnz < 2^31, else int64: the position of entry p in the
                           caller's edge order, which val and e use; NULL is the identity */
    const void *plan;   /* made by fmm_plan for this structure and device, or NULL */
    size_t plan_bytes;
    fmm_rows rows_are;
    fmm_whole whole; /* the same for fmm_plan and for calls with that plan */
} fmm_csr;

/* x[r, h, c] = data[r * row_stride + h * head_stride + c]; strides in elements. Without data and
 * without rows it is absent. Edge values are views with feat = 1: val[e, h], heads 1 serves every
 * head. */
typedef struct fmm_dense {
    void *data;
    fmm_dtype dtype;
    int64_t rows, heads, feat, row_stride, head_stride;
} fmm_dense;

/* Calls body(begin, end, ctx) on disjoint ranges that cover [0, count), possibly in parallel. */
typedef void fmm_range(int64_t begin, int64_t end, void *ctx);
typedef void fmm_parallel_for(int64_t count, fmm_range *body, void *ctx);

/* Where and with what a call runs. A NULL parallel_for is serial. */
typedef struct fmm_exec {
    fmm_device device;
    int index;    /* CUDA device */
    void *stream; /* cudaStream_t */
    fmm_parallel_for *parallel_for;
    void *workspace; /* at least what the operator's _workspace function says, 16-byte aligned */
    size_t workspace_bytes;
    /* Where not NULL, the operator asks here for its workspace once it knows how large that is. */
    fmm_status (*allocate)(void *owner, size_t bytes, void **workspace);
    void *owner;
} fmm_exec;

/* What is wrong with a CSR: code 0 is nothing; where is the index into ptr or idx, value what
 * stands there. The lowest culprit is reported, ptr before idx. On CUDA `report` points to device
 * memory of 8 bytes and the call only enqueues; fmm_csr_report decodes the word once it was copied
 * back. */
typedef enum fmm_csr_code {
    FMM_CSR_OK,
    FMM_CSR_PTR_FIRST, /* ptr[0] != 0 */
    FMM_CSR_PTR_FALLS, /* ptr[where] < ptr[where - 1] */
    FMM_CSR_PTR_LAST,  /* ptr[rows] != nnz */
    FMM_CSR_IDX,       /* idx[where] outside [0, cols) */
} fmm_csr_code;
FMM_API fmm_status fmm_csr_check(const fmm_exec *exec, const fmm_csr *a, uint64_t *report);
FMM_API fmm_csr_code fmm_csr_report(uint64_t report, int64_t *where);

/* The plan of a matrix, which CUDA kernels follow: rows in order of falling length, and the pieces
 * of long rows. fmm_plan_bytes bounds its size, from the matrix's numbers alone, by a multiple
 * of 16. fmm_plan fills it and only enqueues; its workspace has the bytes that fmm_plan_workspace
 * says. The int64 at byte FMM_PLAN_USED of a plan is the number of its bytes that count, a multiple
 * of 16 too. A caller who reads it may give that number as plan_bytes; calls then need less
 * workspace. CPU kernels need no plan, so its size is 0 there. */
enum { FMM_PLAN_USED = 56 };
FMM_API size_t fmm_plan_bytes(const fmm_exec *exec, const fmm_csr *a);
FMM_API fmm_status fmm_plan_workspace(const fmm_exec *exec, const fmm_csr *a, size_t *bytes);
FMM_API fmm_status fmm_plan(const fmm_exec *exec, const fmm_csr *a, void *plan);

/* The operators. Each has a function that runs it, and one that says how many bytes of workspace
 * the same call needs. Their last argument is the number of an algorithm: 0 chooses one. */
typedef enum fmm_operator {
    FMM_SPMM,
    FMM_SDDMM,
    FMM_ATTENTION,
    FMM_FUSED,
    FMM_SPMV,
    FMM_SPGEMM,
    FMM_MESSAGES,
    FMM_OPERATORS
} fmm_operator;
typedef struct fmm_call { /* the operands of any operator; those it lacks are NULL */
    int index;            /* CUDA device */
    const fmm_csr *a;
    const fmm_dense *val, *x, *b, *y; /* SpMM: y = A x. SDDMM: x is a, b is b, y is e */
    fmm_reduce reduce;
    const void *own; /* what this operator takes and others do not: fmm_spmv_of and its like */
} fmm_call;

/* The registry of algorithms. fmm_algorithms gives entry k of an operator on a device, and NULL
 * past the end. The number of an algorithm never changes its meaning, because exported programs
 * hold it. */
typedef struct fmm_algorithm {
    int number;
    const char *name;                      /* parameters after a colon: "rows:avx2" */
    const char *about;                     /* one line */
    const char *source;                    /* paper or origin */
    bool deterministic;                    /* gives the same bits at every run */
    bool (*supports)(const fmm_call *);    /* NULL: everything */
    size_t (*workspace)(const fmm_call *); /* NULL: none */
    fmm_status (*run)(const fmm_exec *, const fmm_call *);
} fmm_algorithm;
FMM_API const fmm_algorithm *fmm_algorithms(fmm_operator op, fmm_device device, int k);
FMM_API const char *fmm_operator_name(int op); /* "spmm"; NULL past the end */
/* Adds a caller's own algorithm (number is assigned and returned through it, from 1000 up). The
 * struct must outlive the library's use. */
FMM_API fmm_status fmm_register(fmm_operator op, fmm_device device, fmm_algorithm *algorithm);

FMM_API const char *fmm_last_error(void);
/* One line of JSON: version, compilers, ISA levels, CUDA architectures and runtime, needed driver.
 */
FMM_API const char *fmm_build_info(void);

/* The name and value of number k of the C code that Python needs, such as FMM_MEAN; NULL past the
 * end. */
FMM_API const char *fmm_number(int k, double *value);

/* Registers the torch operators with the torch that this process has loaded; NULL, or what is
 * wrong. */
FMM_API const char *fmm_torch_register(void);

FMM_C_END

#include "fusedmm_attention.h"
#include "fusedmm_fused.h"
#include "fusedmm_messages.h"
#include "fusedmm_plugin.h"
#include "fusedmm_sddmm.h"
#include "fusedmm_spgemm.h"
#include "fusedmm_spmm.h"
#include "fusedmm_spmv.h"
#endif
