/* What SpMV has for AVX-512 alone: half vectors for short rows. */
#pragma once

#include "../cpu/simd.h"

/* Whether the set that is built for is AVX-512, which the compiler may know in builds of others. */
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(FMM_PANEL) && FMM_PANEL == 16
#define FMM_HALF_VECTORS
/* out[g] = the sum of numbers [at[g], at[g + 1]), counted from `first`. Where most rows have 8
 * numbers or fewer, half a vector saves adding its other half, which took a third of the time of a
 * road network. */
FMM_INLINE void f32_short_rows(const float *p, const int64_t *at, int64_t first, float *out)
{
    __m256 sum[4];
    UNROLLED(g, 4) {
        const float *row = p + (at[g] - first);
        int64_t n = at[g + 1] - at[g];
        sum[g] = _mm256_setzero_ps();
        for (; n > 8; n -= 8, row += 8) sum[g] += _mm256_loadu_ps(row);
        fmm_reads(row, 4 * n);
        sum[g] += _mm256_maskz_loadu_ps(mask8(n), row);
    }
    fmm_sum4_ps(sum[0], sum[1], sum[2], sum[3], out);
}
#endif
