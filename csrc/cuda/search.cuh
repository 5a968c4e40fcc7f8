/* Searches in what rises: where a group begins, and the row of an entry. */
#ifndef FMM_CUDA_SEARCH_CUH
#define FMM_CUDA_SEARCH_CUH

#include "common.cuh"

/* The first of n rising keys that is at least k. */
template <class K>
static __device__ __forceinline__ int64_t first_at_least(const K *keys, int64_t stride, int64_t n,
                                                         int64_t k)
{
    int64_t low = 0;
    for (int64_t count = n; count > 0;) {
        const int64_t half = count / 2, at = low + half;
        const bool below = int64_t(__ldg(keys + at * stride)) < k;
        low = below ? at + 1 : low;
        count = below ? count - half - 1 : half;
    }
    return low;
}

/* The row of entry p: the last that begins at or before it. */
static __device__ __forceinline__ int64_t row_of_entry(const int64_t *ptr, int64_t rows, int64_t p)
{
    return clamp(first_at_least(ptr + 1, 1, rows, p + 1), 0, rows - 1);
}

#endif
