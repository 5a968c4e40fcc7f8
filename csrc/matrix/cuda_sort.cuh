/* Coordinates, and what puts few of them in order in one launch (cuda_sort.cu); cuda_compress.cu
 * has the sorts of many.
 *
 * What is sorted are total entries: first the caller's coordinates, or those of them that are not
 * loops, then one loop for each node, if loops are wanted:
 *
 *     entry k      0 .. others - 1                others .. total - 1
 *     stands for   coordinate k, or selected[k]   the loop of node k - others
 */
#pragma once

#include "../cuda/search.cuh"
#include "compress.h"

struct coordinates {
    fmm_coo a;
    const int64_t *selected; /* numbers of the coordinates that are no loops; NULL: all */
    int64_t others, total;
};

static __device__ __forceinline__ int64_t row_of(const fmm_coo &a, int64_t p)
{
    return __ldg(a.row + p * a.row_stride);
}
static __device__ __forceinline__ int64_t col_of(const fmm_coo &a, int64_t p)
{
    return __ldg(a.col + p * a.col_stride);
}

/* A key: a number outside [0, n) becomes n, behind all others. */
static __device__ __forceinline__ uint32_t bounded(int64_t v, int64_t n)
{
    return (uint32_t)(uint64_t(v) < uint64_t(n) ? v : n);
}

/* The coordinate of entry k, and the keys of entry k. A loop's column is beyond all others, which
 * makes it the last of its row. */
static __device__ __forceinline__ int64_t source(const coordinates &c, int64_t k)
{
    return c.selected ? __ldg(c.selected + k) : k; /* inside, since select_others left zeros */
}
static __device__ __forceinline__ uint32_t row_key(const coordinates &c, int64_t k)
{
    return k < c.others ? bounded(row_of(c.a, source(c, k)), c.a.rows) : (uint32_t)(k - c.others);
}
static __device__ __forceinline__ uint32_t col_key(const coordinates &c, int64_t k)
{
    return k < c.others ? bounded(col_of(c.a, source(c, k)), c.a.cols) : (uint32_t)c.a.cols;
}

/* Bits that tell the keys 0 .. most apart. */
static inline int bits_for(int64_t most)
{
    int bits = 1;
    while (most >> bits) bits++;
    return bits;
}

/* Bytes of n words in the workspace, so that what follows lies well for any load. */
static inline size_t padded(int64_t n) { return ((size_t)n * 4 + 255) / 256 * 256; }

/* The workspace with which one launch sorts n entries of a matrix of that shape; 0: it cannot. */
size_t few_bytes(const fmm_exec *exec, int64_t n, int64_t rows, int64_t cols);

/* ptr, idx, eid and plan of coordinates by row and column, and of a CSR by column; both stable. The
 * first answers too, where the coordinates want it, whether one of them, as it was read, is
 * outside. */
void arrange_rows(const fmm_exec *exec, const coordinates &c, int64_t *ptr, int32_t *idx,
                  int32_t *eid, void *plan);
void arrange_columns(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr, int32_t *idx,
                     int32_t *eid, void *plan);
