/* What the specifications share: elements of any dtype as doubles, blocked sums, and indices that
 * are never believed.
 *
 * The kernels read a copy of a chunk's indices that was checked as a whole. Here each index is
 * checked where it is used, which needs no memory and lets single entries be skipped, so these
 * loops also serve the rows whose check failed. */
#pragma once

#include "rows.h"
#include "simd.h"

/* Element [r, h, c] of a view. */
static inline double get(const fmm_dense *d, int64_t r, int64_t h, int64_t c)
{
    const int64_t at = r * d->row_stride + h * d->head_stride + c;
    switch (d->dtype) {
    case FMM_F64:
        return ((const double *)d->data)[at];
    case FMM_F16:
        return (double)f16_value(((const uint16_t *)d->data)[at]);
    case FMM_BF16:
        return (double)bf16_value(((const uint16_t *)d->data)[at]);
    default:
        return (double)((const float *)d->data)[at];
    }
}

/* The same, written: rounded once, to the view's dtype. */
static inline void put(const fmm_dense *d, int64_t r, int64_t h, int64_t c, double value)
{
    const int64_t at = r * d->row_stride + h * d->head_stride + c;
    switch (d->dtype) {
    case FMM_F64:
        ((double *)d->data)[at] = value;
        break;
    case FMM_F16:
        ((uint16_t *)d->data)[at] = f16_of((float)value);
        break;
    case FMM_BF16:
        ((uint16_t *)d->data)[at] = bf16_of((float)value);
        break;
    default:
        ((float *)d->data)[at] = (float)value;
        break;
    }
}

/* The value of an edge for head h, one where the matrix has no values. */
static inline double value_of(const fmm_dense *val, int64_t edge, int64_t h)
{
    return val->data ? get(val, edge, val->heads == 1 ? 0 : h, 0) : 1.0;
}

/* A sum whose level l + 1 takes what FMM_BLOCK terms of level l made: five levels hold 128^5 terms,
 * and none of them adds more than 128 in a row. */
enum { LEVELS = 5 };
typedef struct blocked_sum {
    int64_t terms;
    double level[LEVELS];
} blocked_sum;

static inline void add(blocked_sum *s, double term)
{
    s->level[0] += term;
    int64_t made = ++s->terms;
    for (int l = 1; l < LEVELS && made % FMM_BLOCK == 0; l++, made /= FMM_BLOCK) {
        s->level[l] += s->level[l - 1];
        s->level[l - 1] = 0;
    }
}

/* What all levels hold. The sum can take further terms after it. */
static inline double total(const blocked_sum *s)
{
    double sum = 0;
    for (int l = 0; l < LEVELS; l++) sum += s->level[l];
    return sum;
}

/* ptr, idx and eid are each read once, and what was read is checked and used: another thread may
 * write them meanwhile, so a second read could find another number. */

/* The entries of row i, inside [0, nnz) whatever ptr holds. Here and below a number below 0 is a
 * large one without a sign, so that one comparison checks both ends. */
static inline int64_t row_begin(const fmm_csr *a, int64_t i)
{
    const int64_t p = ((const volatile int64_t *)a->ptr)[i];
    return (uint64_t)p < (uint64_t)a->nnz ? p : a->nnz;
}

static inline int64_t row_end(const fmm_csr *a, int64_t i) { return row_begin(a, i + 1); }

/* The column of entry p, -1 if outside. */
static inline int64_t column_of(const fmm_csr *a, int64_t p)
{
    const int64_t j = ((const volatile int32_t *)a->idx)[p];
    return (uint64_t)j < (uint64_t)a->cols ? j : -1;
}

/* Where entry p stands in the edge order, -1 if outside of it. */
static inline int64_t edge_of(const fmm_csr *a, int64_t p)
{
    const int64_t edge = !a->eid               ? p
                         : a->nnz <= INT32_MAX ? ((const volatile int32_t *)a->eid)[p]
                                               : ((const volatile int64_t *)a->eid)[p];
    return (uint64_t)edge < (uint64_t)a->nnz ? edge : -1;
}
