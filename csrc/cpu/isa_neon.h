/* NEON of AArch64: 128-bit vectors, 32 registers. simd.h says what each primitive does.
 *
 *     vf32    |0   |1   |2   |3   |     a vector is 16 bytes; a table lookup (tbl)
 *     vf64    |0        |1        |     takes any of them to any place
 *
 * NEON has no masks. Parts of vectors go through an array on the stack, which compilers turn to a
 * few loads: at most three numbers are left over. `make test-arm` runs the C tests on this set. */
#pragma once

#if defined(__aarch64__) && defined(__ARM_NEON)
#include "simd.h"

#include <arm_neon.h>

typedef float32x4_t vf32;
typedef float64x2_t vf64;
enum { LANES_vf32 = 4, LANES_vf64 = 2 };

/* ---- numbers of 32 bits ---- */

static inline vf32 vf32_set1(float s) { return vdupq_n_f32(s); }
static inline vf32 vf32_fma(vf32 a, vf32 b, vf32 c) { return vfmaq_f32(c, a, b); }
static inline vf32 vf32_max(vf32 a, vf32 b) { return vmaxq_f32(a, b); } /* NaN if either is */
static inline vf32 vf32_above(vf32 t, vf32 a, vf32 b) { return vbslq_f32(vcgtzq_f32(t), a, b); }
static inline vf32 vf32_where(vf32 t, vf32 a)
{
    return vbslq_f32(vceqzq_f32(t), vdupq_n_f32(0), a);
}
/* A NaN equals nothing, itself included, and infinities of one sign are equal: a difference would
 * not tell. */
static inline vf32 vf32_equal(vf32 t, vf32 u, vf32 a)
{
    return vbslq_f32(vceqq_f32(t, u), a, vdupq_n_f32(0));
}
/* paddq adds neighbours of two vectors: three of them make the four sums. */
static inline void vf32_sum4(const vf32 *v, float *out)
{
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}
static inline vf32 vf32_pairs(vf32 a, vf32 b) { return vpaddq_f32(a, b); }
/* Where each lane of a vector that spans heads finds its weight, from the first one on, as bytes
 * for the table lookup: lane k of 32 bits is bytes 4 k to 4 k + 3. */
typedef uint8x16_t vf32_at, vf64_at;
static inline uint8x16_t vf32_lanes(const int32_t *index)
{
    const uint32x4_t at = vreinterpretq_u32_s32(vsubq_s32(vld1q_s32(index), vdupq_n_s32(*index)));
    const uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100), at, 0x04040404);
    return vreinterpretq_u8_u32(bytes);
}
static inline vf32 vf32_pick(const float *p, uint8x16_t at)
{
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(vld1q_f32(p)), at));
}

/* ---- numbers of 64 bits ---- */

static inline vf64 vf64_set1(double s) { return vdupq_n_f64(s); }
static inline vf64 vf64_fma(vf64 a, vf64 b, vf64 c) { return vfmaq_f64(c, a, b); }
/* The same for doubles. */
static inline vf64 vf64_max(vf64 a, vf64 b) { return vmaxq_f64(a, b); }
static inline vf64 vf64_above(vf64 t, vf64 a, vf64 b) { return vbslq_f64(vcgtzq_f64(t), a, b); }
static inline vf64 vf64_where(vf64 t, vf64 a)
{
    return vbslq_f64(vceqzq_f64(t), vdupq_n_f64(0), a);
}
/* The same for doubles. */
static inline vf64 vf64_equal(vf64 t, vf64 u, vf64 a)
{
    return vbslq_f64(vceqq_f64(t, u), a, vdupq_n_f64(0));
}
static inline void vf64_sum4(const vf64 *v, double *out)
{
    vst1q_f64(out, vpaddq_f64(v[0], v[1]));
    vst1q_f64(out + 2, vpaddq_f64(v[2], v[3]));
}
static inline vf64 vf64_pairs(vf64 a, vf64 b) { return vpaddq_f64(a, b); }
/* Two lanes have one head or two: the second lane's bytes are the first eight or the other eight.
 */
static inline uint8x16_t vf64_lanes(const int32_t *index)
{
    const uint64_t first = 0x0706050403020100, other = 0x0f0e0d0c0b0a0908;
    return vcombine_u8(vcreate_u8(first), vcreate_u8(index[1] == index[0] ? first : other));
}
static inline vf64 vf64_pick(const double *p, uint8x16_t at)
{
    return vreinterpretq_f64_u8(vqtbl1q_u8(vreinterpretq_u8_f64(vld1q_f64(p)), at));
}

/* ---- loads and stores, at any address ---- */

static inline vf32 f32_load(const float *p) { return vld1q_f32(p); }
static inline void f32_store(float *p, vf32 v) { vst1q_f32(p, v); }
static inline vf32 f32_load_part(const float *p, int64_t n)
{
    float all[4] = {0};
    for (int64_t k = 0; k < n; k++) all[k] = p[k];
    return vld1q_f32(all);
}
static inline void f32_store_part(float *p, vf32 v, int64_t n)
{
    float all[4];
    vst1q_f32(all, v);
    for (int64_t k = 0; k < n; k++) p[k] = all[k];
}

static inline vf64 f64_load(const double *p) { return vld1q_f64(p); }
static inline void f64_store(double *p, vf64 v) { vst1q_f64(p, v); }
/* A part of two lanes is one, or none. */
static inline vf64 f64_load_part(const double *p, int64_t n)
{
    const vf64 none = vdupq_n_f64(0);
    return n > 0 ? vsetq_lane_f64(*p, none, 0) : none;
}
static inline void f64_store_part(double *p, vf64 v, int64_t n)
{
    if (n > 0) vst1q_lane_f64(p, v, 0);
}

/* ---- 16 bits in memory, 32 in registers ---- */

static inline vf32 f16_wide(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
static inline uint16x4_t f16_narrow(vf32 v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
static inline vf32 bf16_wide(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
/* The lower 16 bits of each lane. */
static inline uint16x4_t low16(vf32 v) { return vmovn_u32(vreinterpretq_u32_f32(v)); }

static inline uint16x4_t load16(const uint16_t *p) { return vld1_u16(p); }
static inline void store16(uint16_t *p, uint16x4_t h) { vst1_u16(p, h); }
static inline uint16x4_t load16_part(const uint16_t *p, int64_t n)
{
    return vcreate_u16(fmm_load_words(p, n).low);
}
static inline void store16_part(uint16_t *p, uint16x4_t h, int64_t n)
{
    uint16_t all[4];
    store16(all, h);
    for (int64_t k = 0; k < n; k++) p[k] = all[k];
}

#include "bits16.inc"

/* Of 32 registers, sums take 16, and the others hold what is loaded and the weights. More sums
 * would be kept in memory. */
#define FMM_PANEL 16
#endif
