/* exp and log in plain C without branches, which compilers turn into vectors over an array. The C
 * library's take one number at a time.
 *
 * x = k ln 2 + r, |r| <= ln 2 / 2: adding and subtracting 1.5 * 2^(mantissa bits) rounds x / ln 2
 * to k; ln 2 is taken off in two parts, of which k times the first is exact; exp(r) is its Taylor
 * sum up to the first term below half a unit. The power of two is applied in two halves, so that
 * results below the normal numbers come out rounded instead of 0. NaN stays NaN.
 *
 * log of a normal positive number: x = m 2^k, sqrt(1/2) <= m < sqrt(2), and with z = (m - 1) /
 * (m + 1), |z| < 0.172, log m = 2 z + 2 z^3 / 3 + 2 z^5 / 5 + ... NaN stays NaN, infinity does. */
#pragma once

#include "simd.h"

/* exp of any float: beyond -105 it is 0 and beyond 89 infinite, so the argument is held between. */
FMM_INLINE float f32_exp(float x)
{
    /* The last bits of what is this large are whole numbers, so adding it rounds to one. */
    const float big = 0x1.8p23f;
    const float up = x < -105.0f ? -105.0f : x, in = up > 89.0f ? 89.0f : up;
    const float shifted = f32_fma(in, 0x1.715476p+0f, big), k = shifted - big;
    const float r = f32_fma(k, -0x1.7f7d1cp-20f, f32_fma(k, -0x1.62e4p-1f, in));
    /* Taylor's sum from its last term on. */
    static const float over[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f};
    float sum = 1.0f / 5040;
    UNROLLED(n, 5) sum = f32_fma(sum, r, over[n]);
    sum = f32_fma(sum, r * r, r) + 1.0f;
    /* k + 512, which is positive, is cut in two: 2^k in one factor might not be a normal number. */
    const uint32_t power = f32_bits(shifted) - f32_bits(big) + 512;
    const uint32_t first = power / 2;
    const float low = f32_from((first - 256 + 127) << 23);
    return sum * low * f32_from((power - first - 256 + 127) << 23);
}

/* log of a positive normal float: a sum of exponentials, of which the largest is 1, is no less. */
FMM_INLINE float f32_log(float x)
{
    const uint32_t power = (f32_bits(x) - 0x3f3504f3) & 0xff800000; /* k, in its place */
    const float k = (float)((int32_t)power / 0x800000), m = f32_from(f32_bits(x) - power);
    const float z = (m - 1) / (m + 1), y = z * z;
    /* Terms from the smallest one on, so that their rounding is small against the first. */
    float sum = 2.0f / 9;
    sum = f32_fma(sum, y, 2.0f / 7);
    sum = f32_fma(sum, y, 2.0f / 5);
    sum = f32_fma(sum, y, 2.0f / 3);
    const float log = f32_fma(k, 0x1.62e43p-1f, f32_fma(sum * y, z, 2 * z) - k * 0x1.05c61p-29f);
    return x < INFINITY ? log : x;
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

/* As f32_exp, with a longer sum and a finer ln 2. */
FMM_INLINE double f64_exp(double x)
{
    const double big = 0x1.8p52;
    const double up = x < -746.0 ? -746.0 : x, in = up > 710.0 ? 710.0 : up;
    const double shifted = f64_fma(in, 0x1.71547652b82fep+0, big), k = shifted - big;
    const double r = f64_fma(k, -0x1.3de6af278ece6p-42, f64_fma(k, -0x1.62e42fefa3p-1, in));
    /* The same up to 1 / 13!. */
    static const double over[] = {
        1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
    double sum = 1.0 / 6227020800.0;
    UNROLLED(n, 11) sum = f64_fma(sum, r, over[n]);
    sum = f64_fma(sum, r * r, r) + 1.0;
    const uint64_t power = f64_bits(shifted) - f64_bits(big) + 4096;
    const uint64_t first = power / 2;
    const double low = f64_from((first - 2048 + 1023) << 52);
    return sum * low * f64_from((power - first - 2048 + 1023) << 52);
}

/* As f32_log. */
FMM_INLINE double f64_log(double x)
{
    const uint64_t power = (f64_bits(x) - 0x3fe6a09e667f3bcd) & 0xfff0000000000000;
    const double k = (double)((int64_t)power / 0x10000000000000), m = f64_from(f64_bits(x) - power);
    const double z = (m - 1) / (m + 1), y = z * z;
    /* Doubles need terms up to the 21st power. */
    double sum = 2.0 / 21;
    UNROLLED(n, 9) sum = f64_fma(sum, y, 2.0 / (19 - 2 * n));
    const double log = f64_fma(sum * y, z, 2 * z) + k * 0x1.abc9e3b39803fp-56;
    const double all = f64_fma(k, 0x1.62e42fefa39efp-1, log);
    return x < (double)INFINITY ? all : x;
}
