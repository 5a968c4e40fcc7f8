/* AVX-512 F, BW, DQ and VL: 512-bit vectors, 32 registers. simd.h says what each primitive does.
 *
 *     vf32    |0|1|2|3|4|5|6|7|8|9|a|b|c|d|e|f|     mask: a bit for each lane
 *     vf64    |0  |1  |2  |3  |4  |5  |6  |7  |
 *
 * Every instruction takes a mask, so parts of vectors of any width are one load or store. Lanes
 * that are masked off are not touched in memory, even on a page that may not be read. */
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "simd.h"

typedef __m512 vf32;
typedef __m512d vf64;
enum { LANES_vf32 = 16, LANES_vf64 = 8 };

/* Ones for the first n lanes; n may be all of them. */
static inline __mmask16 mask16(int64_t n) { return (__mmask16)((1u << n) - 1); }
static inline __mmask8 mask8(int64_t n) { return (__mmask8)((1u << n) - 1); }

/* ---- numbers of 32 bits ---- */

static inline vf32 vf32_set1(float s) { return _mm512_set1_ps(s); }
static inline vf32 vf32_fma(vf32 a, vf32 b, vf32 c) { return _mm512_fmadd_ps(a, b, c); }
/* The instruction returns its second operand when either is NaN: right unless b is the NaN. */
static inline vf32 vf32_max(vf32 a, vf32 b)
{
    return _mm512_mask_mov_ps(_mm512_max_ps(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b);
}
/* A NaN is not above 0. */
static inline vf32 vf32_above(vf32 t, vf32 a, vf32 b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(t, _mm512_setzero_ps(), _CMP_GT_OQ), a);
}
static inline vf32 vf32_where(vf32 t, vf32 a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(t, _mm512_setzero_ps(), _CMP_NEQ_UQ), a);
}
/* A NaN equals nothing, itself included, and infinities of one sign are equal: a difference would
 * not tell. */
static inline vf32 vf32_equal(vf32 t, vf32 u, vf32 a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(t, u, _CMP_EQ_OQ), a);
}
/* The upper 256 bits are added to the lower ones, and the rest goes as in AVX2. */
FMM_INLINE void vf32_sum4(const vf32 *v, float *out)
{
    __m256 folded[4];
    UNROLLED(g, 4)
        folded[g] = _mm256_add_ps(_mm512_castps512_ps256(v[g]), _mm512_extractf32x8_ps(v[g], 1));
    fmm_sum4_ps(folded[0], folded[1], folded[2], folded[3], out);
}
/* Even lanes of a and then of b, and odd ones, by one permutation of two vectors each: there is no
 * horizontal add of this width. */
static inline vf32 vf32_pairs(vf32 a, vf32 b)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_permutex2var_ps(a, even, b) + _mm512_permutex2var_ps(a, odd, b);
}
/* Where each lane of a vector that spans heads finds its weight, from the first one on. */
typedef __m512i vf32_at, vf64_at;
static inline __m512i vf32_lanes(const int32_t *index)
{
    return _mm512_sub_epi32(_mm512_loadu_si512(index), _mm512_set1_epi32(*index));
}
/* The permutation reads 16 numbers from p on, of which those that `at` names are used. */
static inline vf32 vf32_pick(const float *p, __m512i at)
{
    return _mm512_permutexvar_ps(at, _mm512_loadu_ps(p));
}

/* ---- numbers of 64 bits ---- */

static inline vf64 vf64_set1(double s) { return _mm512_set1_pd(s); }
static inline vf64 vf64_fma(vf64 a, vf64 b, vf64 c) { return _mm512_fmadd_pd(a, b, c); }
/* The same for doubles. */
static inline vf64 vf64_max(vf64 a, vf64 b)
{
    return _mm512_mask_mov_pd(_mm512_max_pd(b, a), _mm512_cmp_pd_mask(b, b, _CMP_UNORD_Q), b);
}
static inline vf64 vf64_above(vf64 t, vf64 a, vf64 b)
{
    return _mm512_mask_mov_pd(b, _mm512_cmp_pd_mask(t, _mm512_setzero_pd(), _CMP_GT_OQ), a);
}
static inline vf64 vf64_where(vf64 t, vf64 a)
{
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(t, _mm512_setzero_pd(), _CMP_NEQ_UQ), a);
}
/* The same for doubles. */
static inline vf64 vf64_equal(vf64 t, vf64 u, vf64 a)
{
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(t, u, _CMP_EQ_OQ), a);
}
/* As for 32 bits. */
FMM_INLINE void vf64_sum4(const vf64 *v, double *out)
{
    __m256d folded[4];
    UNROLLED(g, 4)
        folded[g] = _mm256_add_pd(_mm512_castpd512_pd256(v[g]), _mm512_extractf64x4_pd(v[g], 1));
    fmm_sum4_pd(folded[0], folded[1], folded[2], folded[3], out);
}
/* Even lanes and odd ones again. */
static inline vf64 vf64_pairs(vf64 a, vf64 b)
{
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    const __m512i odd = _mm512_add_epi64(even, _mm512_set1_epi64(1));
    return _mm512_permutex2var_pd(a, even, b) + _mm512_permutex2var_pd(a, odd, b);
}
/* Heads are 32-bit numbers, and lanes of 64 bits want indices of 64. */
static inline __m512i vf64_lanes(const int32_t *index)
{
    const __m256i eight = _mm256_loadu_si256((const void *)index);
    return _mm512_cvtepi32_epi64(_mm256_sub_epi32(eight, _mm256_set1_epi32(*index)));
}
static inline vf64 vf64_pick(const double *p, __m512i at)
{
    return _mm512_permutexvar_pd(at, _mm512_loadu_pd(p));
}

/* ---- loads and stores, at any address ---- */

static inline vf32 f32_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void f32_store(float *p, vf32 v) { _mm512_storeu_ps(p, v); }
/* A sanitizer does not see accesses by mask: fmm_reads and fmm_writes show it both ends. */
static inline vf32 f32_load_part(const float *p, int64_t n)
{
    fmm_reads(p, 4 * n);
    return _mm512_maskz_loadu_ps(mask16(n), p);
}
static inline void f32_store_part(float *p, vf32 v, int64_t n)
{
    fmm_writes(p, 4 * n);
    _mm512_mask_storeu_ps(p, mask16(n), v);
}

static inline vf64 f64_load(const double *p) { return _mm512_loadu_pd(p); }
static inline void f64_store(double *p, vf64 v) { _mm512_storeu_pd(p, v); }
static inline vf64 f64_load_part(const double *p, int64_t n)
{
    fmm_reads(p, 8 * n);
    return _mm512_maskz_loadu_pd(mask8(n), p);
}
static inline void f64_store_part(double *p, vf64 v, int64_t n)
{
    fmm_writes(p, 8 * n);
    _mm512_mask_storeu_pd(p, mask8(n), v);
}

/* ---- 16 bits in memory, 32 in registers ---- */

static inline vf32 f16_wide(__m256i h) { return _mm512_cvtph_ps(h); }
static inline __m256i f16_narrow(vf32 v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
/* bf16 is the upper 16 bits of an f32. */
static inline vf32 bf16_wide(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* The lower 16 bits of each lane. */
static inline __m256i low16(vf32 v) { return _mm512_cvtepi32_epi16((__m512i)v); }

static inline __m256i load16(const uint16_t *p) { return _mm256_loadu_si256((const void *)p); }
static inline void store16(uint16_t *p, __m256i h) { _mm256_storeu_si256((void *)p, h); }
/* BW and VL have masks for 16-bit lanes, too. */
static inline __m256i load16_part(const uint16_t *p, int64_t n)
{
    fmm_reads(p, 2 * n);
    return _mm256_maskz_loadu_epi16(mask16(n), p);
}
static inline void store16_part(uint16_t *p, __m256i h, int64_t n)
{
    fmm_writes(p, 2 * n);
    _mm256_mask_storeu_epi16(p, mask16(n), h);
}

#include "bits16.inc"

/* Of 32 registers, sums take 16, and the others hold what is loaded and the weights. More sums
 * would be kept in memory. */
#define FMM_PANEL 16
#endif
