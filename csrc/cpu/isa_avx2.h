/* AVX2, FMA and F16C: 256-bit vectors, 16 registers. simd.h says what each primitive does.
 *
 *     vf32    |0 |1 |2 |3 |4 |5 |6 |7 |     two sides of 128 bits, across which few
 *     vf64    |0    |1    |2    |3    |     instructions reach: hadd does not, permute does
 *
 * Parts of 32- and 64-bit vectors are loaded and stored by mask. There are no masks for 16 bits:
 * parts of those are put together from narrower loads, and stored one by one. */
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd.h"

typedef __m256 vf32;
typedef __m256d vf64;
enum { LANES_vf32 = 8, LANES_vf64 = 4 };

/* ---- numbers of 32 bits ---- */

static inline vf32 vf32_set1(float s) { return _mm256_set1_ps(s); }
static inline vf32 vf32_fma(vf32 a, vf32 b, vf32 c) { return _mm256_fmadd_ps(a, b, c); }
/* The instruction returns its second operand when either is NaN: right unless b is the NaN. */
static inline vf32 vf32_max(vf32 a, vf32 b)
{
    return _mm256_blendv_ps(_mm256_max_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
}
/* A blend takes a where the comparison's bits are set. A NaN is not above 0. */
static inline vf32 vf32_above(vf32 t, vf32 a, vf32 b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(t, _mm256_setzero_ps(), _CMP_GT_OQ));
}
static inline vf32 vf32_where(vf32 t, vf32 a)
{
    return _mm256_and_ps(a, _mm256_cmp_ps(t, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}
/* A NaN equals nothing, itself included, and infinities of one sign are equal: a difference would
 * not tell. */
static inline vf32 vf32_equal(vf32 t, vf32 u, vf32 a)
{
    return _mm256_and_ps(a, _mm256_cmp_ps(t, u, _CMP_EQ_OQ));
}
/* Neighbours are added twice within the 128-bit sides of all four, then both sides. */
FMM_INLINE void vf32_sum4(const vf32 *v, float *out) { fmm_sum4_ps(v[0], v[1], v[2], v[3], out); }
/* hadd gives a's and b's sums in turns of 64 bits: a0 b0 a1 b1, which 0xd8 makes a0 a1 b0 b1. */
static inline vf32 vf32_pairs(vf32 a, vf32 b)
{
    const __m256d sums = _mm256_castps_pd(_mm256_hadd_ps(a, b));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(sums, 0xd8));
}
/* Where each lane of a vector that spans heads finds its weight, from the first one on. */
typedef __m256i vf32_at, vf64_at;
static inline __m256i vf32_lanes(const int32_t *index)
{
    return _mm256_sub_epi32(_mm256_loadu_si256((const void *)index), _mm256_set1_epi32(*index));
}
static inline vf32 vf32_pick(const float *p, __m256i at)
{
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), at);
}

/* ---- numbers of 64 bits ---- */

static inline vf64 vf64_set1(double s) { return _mm256_set1_pd(s); }
static inline vf64 vf64_fma(vf64 a, vf64 b, vf64 c) { return _mm256_fmadd_pd(a, b, c); }
/* The same for doubles. */
static inline vf64 vf64_max(vf64 a, vf64 b)
{
    return _mm256_blendv_pd(_mm256_max_pd(b, a), b, _mm256_cmp_pd(b, b, _CMP_UNORD_Q));
}
static inline vf64 vf64_above(vf64 t, vf64 a, vf64 b)
{
    return _mm256_blendv_pd(b, a, _mm256_cmp_pd(t, _mm256_setzero_pd(), _CMP_GT_OQ));
}
static inline vf64 vf64_where(vf64 t, vf64 a)
{
    return _mm256_and_pd(a, _mm256_cmp_pd(t, _mm256_setzero_pd(), _CMP_NEQ_UQ));
}
/* The same for doubles. */
static inline vf64 vf64_equal(vf64 t, vf64 u, vf64 a)
{
    return _mm256_and_pd(a, _mm256_cmp_pd(t, u, _CMP_EQ_OQ));
}
FMM_INLINE void vf64_sum4(const vf64 *v, double *out) { fmm_sum4_pd(v[0], v[1], v[2], v[3], out); }
static inline vf64 vf64_pairs(vf64 a, vf64 b)
{
    return _mm256_permute4x64_pd(_mm256_hadd_pd(a, b), 0xd8);
}
/* AVX2 permutes 32-bit lanes by a vector of indices, but not 64-bit ones: lane k of 64 bits is its
 * two of 32, 2 k and 2 k + 1. */
static inline __m256i vf64_lanes(const int32_t *index)
{
    const __m128i four = _mm_loadu_si128((const void *)index);
    const __m256i at = _mm256_cvtepu32_epi64(_mm_sub_epi32(four, _mm_set1_epi32(*index)));
    const __m256i twice = _mm256_mul_epu32(at, _mm256_set1_epi64x(2));
    return _mm256_add_epi32(_mm256_or_si256(twice, _mm256_slli_epi64(twice, 32)),
                            _mm256_set1_epi64x(0x100000000));
}
static inline vf64 vf64_pick(const double *p, __m256i at)
{
    const __m256 all = _mm256_castpd_ps(_mm256_loadu_pd(p));
    return _mm256_castps_pd(_mm256_permutevar8x32_ps(all, at));
}

/* All ones in the first n 32-bit lanes: eight numbers of a row of ones followed by zeros. */
static inline __m256i mask32(int64_t n)
{
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const void *)(ones + 8 - n));
}

/* ---- loads and stores, at any address ---- */

static inline vf32 f32_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void f32_store(float *p, vf32 v) { _mm256_storeu_ps(p, v); }
/* A sanitizer does not see accesses by mask: fmm_reads and fmm_writes show it both ends. */
static inline vf32 f32_load_part(const float *p, int64_t n)
{
    fmm_reads(p, 4 * n);
    return _mm256_maskload_ps(p, mask32(n));
}
static inline void f32_store_part(float *p, vf32 v, int64_t n)
{
    fmm_writes(p, 4 * n);
    _mm256_maskstore_ps(p, mask32(n), v);
}

static inline vf64 f64_load(const double *p) { return _mm256_loadu_pd(p); }
static inline void f64_store(double *p, vf64 v) { _mm256_storeu_pd(p, v); }
/* A mask of 64-bit lanes is one of twice as many of 32. */
static inline vf64 f64_load_part(const double *p, int64_t n)
{
    fmm_reads(p, 8 * n);
    return _mm256_maskload_pd(p, mask32(2 * n));
}
static inline void f64_store_part(double *p, vf64 v, int64_t n)
{
    fmm_writes(p, 8 * n);
    _mm256_maskstore_pd(p, mask32(2 * n), v);
}

/* ---- 16 bits in memory, 32 in registers ---- */

static inline vf32 f16_wide(__m128i h) { return _mm256_cvtph_ps(h); }
static inline __m128i f16_narrow(vf32 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
/* bf16 is the upper 16 bits of an f32. */
static inline vf32 bf16_wide(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
/* The lower 16 bits of each lane, whose upper ones are 0: it is packed with saturation. */
static inline __m128i low16(vf32 v)
{
    return _mm_packus_epi32((__m128i)_mm256_castps256_ps128(v),
                            (__m128i)_mm256_extractf128_ps(v, 1));
}

static inline __m128i load16(const uint16_t *p) { return _mm_loadu_si128((const void *)p); }
static inline void store16(uint16_t *p, __m128i h) { _mm_storeu_si128((void *)p, h); }
/* Two words hold the n numbers and zeros, without a read past them. */
static inline __m128i load16_part(const uint16_t *p, int64_t n)
{
    const fmm_words parts = fmm_load_words(p, n);
    return _mm_set_epi64x((int64_t)parts.high, (int64_t)parts.low);
}
/* At most seven numbers, once at the end of a row. */
static inline void store16_part(uint16_t *p, __m128i h, int64_t n)
{
    uint16_t all[8];
    store16(all, h);
    for (int64_t k = 0; k < n; k++) p[k] = all[k];
}

#include "bits16.inc"

/* Of 16 registers, sums take 8, and the others hold what is loaded and the weights. More sums would
 * be kept in memory. */
#define FMM_PANEL 8
#endif
