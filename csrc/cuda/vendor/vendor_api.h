/* Prototypes of what we call in cuSPARSE (release 12) and cuBLAS (12 and 13), our own so that a
 * build needs neither: enumerations and statuses are int, handles and descriptors void *. One line
 * per function: X(result, name, arguments). tests/vendor_check.cpp compares them with NVIDIA's
 * headers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What the products with matrices, and the steps before them, begin with; then those with vectors.
 */
#define FMM_CUSPARSE_OPERANDS                                                                      \
    void *handle, int op_a, int op_b, const void *alpha, const void *a, const void *b,             \
        const void *beta, void *c, int compute, int algorithm

#define FMM_CUSPARSE_VECTORS                                                                       \
    void *handle, int op_a, const void *alpha, const void *a, const void *x, const void *beta,     \
        void *y, int compute, int algorithm

#define FMM_CUSPARSE_API(X)                                                                        \
    X(int, cusparseCreate, (void **handle))                                                        \
    X(int, cusparseSetStream, (void *handle, void *stream))                                        \
    X(const char *, cusparseGetErrorString, (int status))                                          \
    X(int, cusparseCreateCsr,                                                                      \
      (void **matrix, int64_t rows, int64_t cols, int64_t nnz, void *ptr, void *idx, void *values, \
       int ptr_type, int idx_type, int base, int type))                                            \
    X(int, cusparseCreateCoo,                                                                      \
      (void **matrix, int64_t rows, int64_t cols, int64_t nnz, void *row, void *idx, void *values, \
       int idx_type, int base, int type))                                                          \
    X(int, cusparseDestroySpMat, (const void *matrix))                                             \
    X(int, cusparseCreateDnMat,                                                                    \
      (void **matrix, int64_t rows, int64_t cols, int64_t ld, void *values, int type, int order))  \
    X(int, cusparseDestroyDnMat, (const void *matrix))                                             \
    X(int, cusparseCreateSlicedEll,                                                                \
      (void **matrix, int64_t rows, int64_t cols, int64_t nnz, int64_t stored, int64_t slice,      \
       void *offsets, void *idx, void *values, int offset_type, int idx_type, int base, int type)) \
    X(int, cusparseCreateDnVec, (void **vector, int64_t size, void *values, int type))             \
    X(int, cusparseDestroyDnVec, (const void *vector))                                             \
    X(int, cusparseSpMV_bufferSize, (FMM_CUSPARSE_VECTORS, size_t * bytes))                        \
    X(int, cusparseSpMV_preprocess, (FMM_CUSPARSE_VECTORS, void *buffer))                          \
    X(int, cusparseSpMV, (FMM_CUSPARSE_VECTORS, void *buffer))                                     \
    X(int, cusparseSpMM_bufferSize, (FMM_CUSPARSE_OPERANDS, size_t * bytes))                       \
    X(int, cusparseSpMM_preprocess, (FMM_CUSPARSE_OPERANDS, void *buffer))                         \
    X(int, cusparseSpMM, (FMM_CUSPARSE_OPERANDS, void *buffer))                                    \
    X(int, cusparseSDDMM_bufferSize, (FMM_CUSPARSE_OPERANDS, size_t * bytes))                      \
    X(int, cusparseSDDMM_preprocess, (FMM_CUSPARSE_OPERANDS, void *buffer))                        \
    X(int, cusparseSDDMM, (FMM_CUSPARSE_OPERANDS, void *buffer))

#define FMM_CUBLAS_API(X)                                                                          \
    X(int, cublasCreate_v2, (void **handle))                                                       \
    X(int, cublasSetStream_v2, (void *handle, void *stream))                                       \
    X(int, cublasSetWorkspace_v2, (void *handle, void *memory, size_t bytes))                      \
    X(const char *, cublasGetStatusString, (int status))                                           \
    X(int, cublasSgemm_v2,                                                                         \
      (void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a,  \
       int lda, const float *b, int ldb, const float *beta, float *c, int ldc))                    \
    X(int, cublasDgemm_v2,                                                                         \
      (void *handle, int op_a, int op_b, int m, int n, int k, const double *alpha,                 \
       const double *a, int lda, const double *b, int ldb, const double *beta, double *c,          \
       int ldc))
