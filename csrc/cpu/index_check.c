/* The copy of a chunk's ptr, idx and eid, and the check of it, once per instruction set: where rows
 * are narrow it takes a good part of the time.
 *
 *     idx in memory --- read once ---> seen |= sign of (j) | sign of (last - j)
 *                              \-----> copy, which the kernel reads
 *
 * No index leads to a branch. The signs of all are gathered by or and tested once, so every
 * compiler makes vectors of the loops, and a chunk costs about what its copy costs. */
#include "this_isa.h"

#include "rows.h"

#ifdef FMM_PANEL

/* Copies index[0, n), n > 0, and whether all of it is in [0, count): a negative number or count - 1
 * - index < 0 sets the sign bit. Plain or and subtract, which every compiler vectorises. */
#define COPY(bits)                                                                                 \
    static bool copy##bits(const int##bits##_t *restrict index, int64_t n, int64_t count,          \
                           int##bits##_t *restrict to)                                             \
    {                                                                                              \
        const uint##bits##_t last = (uint##bits##_t)(count - 1);                                   \
        uint##bits##_t seen = 0;                                                                   \
        for (int64_t p = 0; p < n; p++) {                                                          \
            const uint##bits##_t here = (uint##bits##_t)index[p];                                  \
            to[p] = (int##bits##_t)here;                                                           \
            seen |= here | (last - here);                                                          \
        }                                                                                          \
        return seen >> (bits - 1) == 0 && count > 0;                                               \
    }
COPY(32)
COPY(64)

/* Of a chunk whose ptr is copied already, its ends inside [0, nnz]. Differences of what is not
 * negative do not overflow. */
static bool rows_copy(const fmm_csr *a, const fmm_chunk *to)
{
    const int64_t begin = to->ptr[0], n = to->ptr[to->rows] - begin;
    uint64_t seen = 0;
    for (int64_t i = 0; i < to->rows; i++)
        seen |= (uint64_t)to->ptr[i] | ((uint64_t)to->ptr[i + 1] - (uint64_t)to->ptr[i]);
    if (seen >> 63) return false;
    if (!n) return true; /* idx and eid may be NULL */
    if (!copy32(a->idx + begin, n, a->cols, to->idx)) return false;
    if (!to->eid) return true;
    return a->nnz <= INT32_MAX ? copy32((const int32_t *)a->eid + begin, n, a->nnz, to->eid)
                               : copy64((const int64_t *)a->eid + begin, n, a->nnz, to->eid);
}

fmm_rows_copy *const FMM_JOIN(fmm_indices_copy, FMM_ISA) = rows_copy;
#else
fmm_rows_copy *const FMM_JOIN(fmm_indices_copy, FMM_ISA) = NULL;
#endif
