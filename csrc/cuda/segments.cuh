/* What the `segments` kernels of all operators share: groups of lanes, items, layouts. */
#ifndef FMM_CUDA_SEGMENTS_CUH
#define FMM_CUDA_SEGMENTS_CUH

#include "plan.cuh"

/* item / heads, by heads' reciprocal: exact while item * heads < 2^64. */
static inline uint64_t reciprocal(int64_t heads) { return UINT64_MAX / (uint64_t)heads + 1; }
static __device__ __forceinline__ int64_t item_of(int64_t item, int32_t heads, uint64_t per_head)
{
    return heads == 1 ? item : (int64_t)__umul64hi((uint64_t)item, per_head);
}

/* The largest of the lengths in a warp: its groups then run one loop, so that shuffles need no
 * masks; entries past a group's own end are column -1, which loads nothing. */
template <int LANES> static __device__ __forceinline__ int longest_in_warp(int length)
{
#pragma unroll
    for (int d = LANES; d < WARP; d *= 2) length = max(length, __shfl_xor_sync(ALL, length, d));
    return length;
}

/* Whether a view can be accessed `vec` elements at a time. */
static inline bool lies_in_packs(const fmm_dense *d, size_t bytes, int64_t vec)
{
    return (uintptr_t)d->data % (bytes * (size_t)vec) == 0 && d->feat % vec == 0 &&
           (d->rows < 2 || d->row_stride % vec == 0) && (d->heads < 2 || d->head_stride % vec == 0);
}

/* Heads that share their values, or have none, are just more columns where they lie side by side. */
static inline fmm_dense flat_heads(const fmm_dense *d)
{
    fmm_dense f = *d;
    f.feat *= f.heads;
    f.heads = 1;
    return f;
}
static inline bool can_be_flat(const fmm_dense *d)
{
    return d->heads == 1 || d->head_stride == d->feat;
}

/* Whether the kernels' grids reach over a matrix: one group of at most a warp for each piece, row and
 * head, and tiles of at least 8 columns along the grid's other axis. */
static inline bool segments_reach(const fmm_csr *a, int64_t heads, int64_t feat)
{
    if (!plan_possible(a->rows, a->nnz) || heads > INT32_MAX || feat > 65535 * INT64_C(8)) return false;
    const int64_t items = plan_segments_max(a->rows, a->nnz) + a->rows;
    return items <= int64_t(INT32_MAX) * (BLOCK / WARP) / (heads ? heads : 1);
}

#endif
