/* exp in plain C without branches, which compilers turn into vectors over an array.
 *
 * x = k ln 2 + r, |r| <= ln 2 / 2: adding and subtracting 1.5 * 2^(mantissa bits) rounds x / ln 2
 * to k; ln 2 is taken off in two parts, of which k times the first is exact; exp(r) is its Taylor
 * sum up to the first term below half a unit. The power of two is applied in two halves, so that
 * results below the normal numbers come out rounded instead of 0. NaN stays NaN. */
#ifndef FMM_EXP_H
#define FMM_EXP_H

#include "simd.h"

FMM_INLINE float f32_exp(float x)
{
    const float big = 0x1.8p23f;
    const float up = x < -105.0f ? -105.0f : x, in = up > 89.0f ? 89.0f : up;
    const float shifted = in * 0x1.715476p+0f + big, k = shifted - big;
    const float r = (in - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f;
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * (r * r) + r + 1.0f;
    const uint32_t power = f32_bits(shifted) - f32_bits(big) + 512; /* k + 512: positive */
    const uint32_t half = power / 2;
    const float low = f32_from((half - 256 + 127) << 23);
    return sum * low * f32_from((power - half - 256 + 127) << 23);
}

static inline uint64_t f64_bits(double f)
{
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline double f64_from(uint64_t u)
{
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

FMM_INLINE double f64_exp(double x)
{
    const double big = 0x1.8p52;
    const double up = x < -746.0 ? -746.0 : x, in = up > 710.0 ? 710.0 : up;
    const double shifted = in * 0x1.71547652b82fep+0 + big, k = shifted - big;
    const double r = (in - k * 0x1.62e42fefa3p-1) - k * 0x1.3de6af278ece6p-42;
    double sum = 1.0 / 6227020800.0;
    sum = sum * r + 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * (r * r) + r + 1.0;
    const uint64_t power = f64_bits(shifted) - f64_bits(big) + 4096;
    const uint64_t half = power / 2;
    const double low = f64_from((half - 2048 + 1023) << 52);
    return sum * low * f64_from((power - half - 2048 + 1023) << 52);
}

#endif
