/* What SpMV has for AVX-512 alone: an instruction that gathers elements of x, and half vectors.
 *
 *     gathered   columns  j0 j1 ... jn -   ->   sum + v0 x[j0]  v1 x[j1] ... vn x[jn]  0
 *
 * Lanes behind n, and those whose column is outside, are masked: they read nothing and add nothing,
 * so that neither an infinite value nor a forged column gets anywhere. Each column is read once. */
#pragma once

#include "../cpu/simd.h"

/* Whether the set that is built for is AVX-512, which the compiler may know in builds of others. */
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(FMM_PANEL) && FMM_PANEL == 16
#define FMM_GATHERS
/* sum, or where `fresh` 0, plus the products of n <= 16 entries. */
FMM_INLINE vf32 vf32_gathered(const int32_t *idx, const float *w, int64_t n, const float *x,
                              uint32_t cols, bool fresh, vf32 sum)
{
    fmm_reads(idx, 4 * n);
    fmm_reads(w, 4 * n);
    const __m512i j = _mm512_maskz_loadu_epi32(mask16(n), idx);
    const __mmask16 in = _mm512_mask_cmplt_epu32_mask(mask16(n), j, _mm512_set1_epi32((int)cols));
    const vf32 there = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), in, j, x, 4);
    const vf32 here = _mm512_maskz_loadu_ps(in, w);
    sum = _mm512_maskz_mov_ps((__mmask16)((int)fresh - 1), sum);
    return _mm512_mask3_fmadd_ps(there, here, sum, in);
}

/* The same for n <= 8 doubles. */
FMM_INLINE vf64 vf64_gathered(const int32_t *idx, const double *w, int64_t n, const double *x,
                              uint32_t cols, bool fresh, vf64 sum)
{
    fmm_reads(idx, 4 * n);
    fmm_reads(w, 8 * n);
    const __m256i j = _mm256_maskz_loadu_epi32(mask8(n), idx);
    const __mmask8 in = _mm256_mask_cmplt_epu32_mask(mask8(n), j, _mm256_set1_epi32((int)cols));
    const vf64 there = _mm512_mask_i32gather_pd(_mm512_setzero_pd(), in, j, x, 8);
    const vf64 here = _mm512_maskz_loadu_pd(in, w);
    sum = _mm512_maskz_mov_pd((__mmask8)((int)fresh - 1), sum);
    return _mm512_mask3_fmadd_pd(there, here, sum, in);
}

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
