/* Grouping: the stable order of n entries by their key, and where each group begins.
 *
 *   ptr [groups + 1]; out [n], the entries p by key[p], those of one key as `order` has them
 * (absent: 0, 1, ...) A counting sort: keys are counted, the counts' running sum is where each
 * group ends, and a walk from the last entry to the first puts each before what its group has
 * already. Grouped by column and then by row, coordinates are in the order of a CSR; grouped by
 * column, a CSR is its transpose. Cost: three passes over the entries in one thread, which up to a
 * million of them is quicker than a sort. */
#include "core.h"

#include <inttypes.h>
#include <string.h>

static int64_t key_of(const void *key, bool wide, int64_t p)
{
    return wide ? ((const int64_t *)key)[p] : ((const int32_t *)key)[p];
}

fmm_status fmm_group(const fmm_exec *exec, int64_t n, const void *key, bool wide,
                     const int32_t *order, int64_t groups, int64_t *ptr, int32_t *out)
{
    REQUIRE(exec->device == FMM_CPU, FMM_UNSUPPORTED, "group: runs on the CPU only");
    REQUIRE(n <= INT32_MAX, FMM_INVALID_ARGUMENT, "group: %" PRId64 " entries, beyond int32", n);
    memset(ptr, 0, ((size_t)groups + 1) * sizeof *ptr);
    for (int64_t p = 0; p < n; p++) {
        const int64_t k = key_of(key, wide, p);
        REQUIRE(k >= 0 && k < groups, FMM_INVALID_ARGUMENT,
                "group: key[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")", p, k, groups);
        ptr[k + 1]++;
    }
    for (int64_t g = 0; g < groups; g++) ptr[g + 1] += ptr[g];
    for (int64_t p = n - 1; p >= 0; p--) {
        const int64_t q = order ? order[p] : p;
        REQUIRE(q >= 0 && q < n, FMM_INVALID_ARGUMENT,
                "group: order[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")", p, q, n);
        int64_t *end = &ptr[key_of(key, wide, q) + 1];
        REQUIRE(*end > 0, FMM_INVALID_ARGUMENT, "group: order has %" PRId64 " more than once", q);
        out[--*end] = (int32_t)q;
    }
    memmove(ptr, ptr + 1, (size_t)groups * sizeof *ptr); /* the ends have become the beginnings */
    ptr[groups] = n;
    return FMM_OK;
}
