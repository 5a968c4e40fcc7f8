/* What every operator checks before it computes: views that make sense, sizes that fit. */
#pragma once

#include "core.h"

/* Fails the function with FMM_INVALID_ARGUMENT and a sentence unless cond holds. */
#define VALID(cond, ...) REQUIRE(cond, FMM_INVALID_ARGUMENT, __VA_ARGS__)

/* exec and a: the device is one there is, sizes are within int64, and pointers are given where
 * there is something to read. */
fmm_status fmm_check_matrix(const char *op, const fmm_exec *exec, const fmm_csr *a);

/* Whether an operand that may be left out was given: one of rows without data was, and is refused.
 */
static inline bool fmm_given(const fmm_dense *d) { return d->data || d->rows; }

/* Values that are not given: no memory, one head, and so ones to every algorithm. */
extern const fmm_dense fmm_absent;

/* A dense view called `name`, given or not: dtype known, sizes not negative, extent and number of
 * elements within int64, data present. */
fmm_status fmm_check_dense(const char *op, const char *name, const fmm_dense *d);

/* The same, and d is [rows, heads, feat] of the dtype. */
fmm_status fmm_check_shape(const char *op, const char *name, const fmm_dense *d, fmm_dtype dtype,
                           int64_t rows, int64_t heads, int64_t feat);

/* The same with x's dtype and heads. */
static inline fmm_status fmm_check_like(const char *op, const char *name, const fmm_dense *d,
                                        const fmm_dense *x, int64_t rows, int64_t feat)
{
    return fmm_check_shape(op, name, d, x->dtype, rows, x->heads, feat);
}

/* Values of a: absent (data NULL and rows 0), or [nnz, 1] or [nnz, heads] with feat 1. */
fmm_status fmm_check_values(const char *op, const fmm_csr *a, const fmm_dense *val, int64_t heads);

/* No two elements of an output are at one address. */
fmm_status fmm_check_output(const char *op, const char *name, const fmm_dense *out);

/* out shares no byte with in. */
fmm_status fmm_check_apart(const char *op, const fmm_dense *out, const char *name,
                           const fmm_dense *in);

/* The workspace is at least `bytes` and aligned. */
fmm_status fmm_check_workspace(const char *op, const fmm_exec *exec, size_t bytes);
