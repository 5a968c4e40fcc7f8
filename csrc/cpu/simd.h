/* What the kernels of every instruction set share: names, unrolling, and 16-bit types in plain C.
 *
 * An instruction set is one file isa_<name>.h. It gives, for the accumulator types vf32 and vf64
 * (LANES_vf32 and LANES_vf64 numbers each; + - * / work on them as on scalars):
 *     <vf>_set1(s)  <vf>_fma(a, b, c) = a * b + c  <vf>_max(a, b), NaN if either is
 *     <vf>_above(t, a, b): a in the lanes where t > 0, else b
 *     <vf>_where(t, a): a in the lanes where t is not 0, NaN too, else 0
 *     <vf>_equal(t, u, a): a in the lanes where t == u, else 0
 *     <vf>_sum4(v, out): out[g] = sum of the lanes of v[g], g < 4
 *     <vf>_pairs(a, b): the sums of neighbouring lanes of a, then of b
 *     <vf>_pick(p, at): lane l is p[at's lane l], where at, a <vf>_at, is <vf>_lanes(index): lane l
 *     is index[l] - index[0], which must be in [0, LANES); reads LANES numbers from p and index
 * and for every dtype: <dtype>_load(p), <dtype>_store(p, v), and <dtype>_load_part(p, n),
 * <dtype>_store_part(p, v, n) for the first n, 0 <= n < LANES, the rest 0, which touch nothing
 * beyond n;
 * f32 and f64 of eight lanes and more load n = LANES too.
 * f16 and bf16 are uint16_t in memory and vf32 in registers. kernels.inc
 * compiles a room's loops with it. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FMM_PASTE(a, b) a##_##b
#define FMM_JOIN(a, b) FMM_PASTE(a, b)
/* Loops are copied into their callers, where widths and options are constants. Builds that watch
 * the loops define it otherwise (tests/sanitize.mk). */
#ifndef FMM_INLINE
#define FMM_INLINE static inline __attribute__((always_inline))
#endif
/* A function that keeps to itself: what calls it is compiled sooner. */
#define FMM_APART static __attribute__((noinline, unused))

/* Loops over registers have to vanish for their arrays to become registers. */
#ifdef __clang__
#define FMM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FMM_UNROLL _Pragma("GCC unroll 16")
#endif
#define UNROLLED(k, n) FMM_UNROLL for (int k = 0; k < (n); k++)

/* A vector of the numbers of a and then those of b, in one or two loads where a and b are. */
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define FMM_CONCAT4(type, a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3)
#define FMM_CONCAT8(type, a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7)
#endif
#endif
#ifndef FMM_CONCAT4
#define FMM_CONCAT4(type, a, b)                                                                    \
    (type) { (a)[0], (a)[1], (b)[0], (b)[1] }
#define FMM_CONCAT8(type, a, b)                                                                    \
    (type) { (a)[0], (a)[1], (a)[2], (a)[3], (b)[0], (b)[1], (b)[2], (b)[3] }
#endif

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float f32_from(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float bf16_value(uint16_t b) { return f32_from((uint32_t)b << 16); }

/* To nearest, ties to even: the carry of what is added runs into the exponent as it should. NaN
 * keeps its upper bits and becomes quiet. */
static inline uint16_t bf16_of(float f)
{
    const uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float f16_value(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest < 0x400) return f32_from(sign | f32_bits((float)rest * 0x1p-24f)); /* subnormal */
    const uint32_t bias = rest < 0x7c00 ? 112u << 23 : 224u << 23;
    return f32_from(sign | ((rest << 13) + bias));
}

static inline uint16_t f16_of(float f)
{
    const uint32_t sign = f32_bits(f) >> 16 & 0x8000, u = f32_bits(f) & 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x1ff));
    if (u >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 2^16 and more: infinite */
    /* Below 2^-14 an f16 is a multiple of 2^-24, which is the last bit of a float in [0.5, 1). */
    if (u < 0x38800000) return (uint16_t)(sign | (f32_bits(f32_from(u) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13));
}

/* a * b + c of single numbers, rounded once where the machine can. */
#if defined(__FMA__) || defined(__aarch64__)
static inline float f32_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double f64_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
static inline float f32_fma(float a, float b, float c) { return a * b + c; }
static inline double f64_fma(double a, double b, double c) { return a * b + c; }
#endif

static inline float f32_of(float f) { return f; }
static inline double f64_of(double f) { return f; }
static inline float f32_value(float f) { return f; }
static inline double f64_value(double f) { return f; }

/* The n numbers of 16 bits at p, 0 < n < 8, in two words and zeros after them. Loads overlap
 * instead of reaching past the end; for n < 4 some number is taken twice to the same place. */
typedef struct fmm_words {
    uint64_t low, high;
} fmm_words;

static inline fmm_words fmm_load_words(const uint16_t *p, int64_t n)
{
    fmm_words parts = {0, 0};
    if (n >= 4) {
        memcpy(&parts.low, p, 8);
        memcpy(&parts.high, p + n - 4, 8);
        parts.high = n == 4 ? 0 : parts.high >> (128 - 16 * n);
    } else {
        parts.low = (uint64_t)p[0] | (uint64_t)p[n / 2] << (n / 2 * 16);
        parts.low |= (uint64_t)p[n - 1] << ((n - 1) * 16);
    }
    return parts;
}

/* Sanitizers do not see accesses by mask: for them the first and the last byte are read, and where
 * it is a store written, as C does it. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FMM_WATCHED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FMM_WATCHED 1
#endif
#ifdef FMM_WATCHED
static inline void fmm_reads(const void *p, int64_t bytes)
{
    const volatile char *at = p;
    if (bytes > 0) (void)at[0], (void)at[bytes - 1];
}
static inline void fmm_writes(void *p, int64_t bytes)
{
    volatile char *at = p;
    if (bytes > 0) at[0] = at[0], at[bytes - 1] = at[bytes - 1];
}
#else
#define fmm_reads(p, bytes) ((void)0)
#define fmm_writes(p, bytes) ((void)0)
#endif

#ifdef __AVX2__
#include <immintrin.h>

/* Four horizontal sums share their additions: 3 for the four instead of 3 for each. */
static inline void fmm_sum4_ps(__m256 a, __m256 b, __m256 c, __m256 d, float *out)
{
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

static inline void fmm_sum4_pd(__m256d a, __m256d b, __m256d c, __m256d d, double *out)
{
    const __m256d ab = _mm256_hadd_pd(a, b), cd = _mm256_hadd_pd(c, d);
    const __m256d low = _mm256_permute2f128_pd(ab, cd, 0x20);
    _mm256_storeu_pd(out, _mm256_add_pd(low, _mm256_permute2f128_pd(ab, cd, 0x31)));
}
#endif
