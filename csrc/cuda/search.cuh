/* Searches in arrays that rise: where a group of equal keys begins, and the row of an entry.
 *
 * Both are bisections without branches: each step loads one element and moves either bound by a
 * select, so that the lanes of a warp, which search for different things, stay together.
 *
 *     keys     0 0 1 1 1 3 3 4      the first that is at least 1: place 2
 *     ptr    0 4 4 9                entry 4 lies in row 2, since row 1 is empty
 */
#pragma once

#include "common.cuh"

/* The first of n rising keys that is at least k; n if there is none. */
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

/* The row of entry p: the first that ends behind p, or the last one. */
static __device__ __forceinline__ int64_t row_of(const csr_view &a, int64_t p)
{
    return first_at_least(a.ptr + 1, 1, a.rows - 1, p + 1);
}
