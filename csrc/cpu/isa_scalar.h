/* Plain C, one number at a time: for every machine, and what the other sets are compared with.
 *
 * A vector has one lane, so there are no parts of vectors: the part functions are named all over
 * the loops, but never reached. a b + c is rounded twice here and once in the other sets, so
 * results differ from theirs in the last bits, within the same bound. */
#pragma once

#include "simd.h"

typedef float vf32;
typedef double vf64;
enum { LANES_vf32 = 1, LANES_vf64 = 1 };

static inline float vf32_set1(float s) { return s; }
static inline float vf32_fma(float a, float b, float c) { return a * b + c; }
/* NaN if either is: a NaN in a is chosen by itself, one in b because no comparison with it holds.
 */
static inline float vf32_max(float a, float b) { return a > b || a != a ? a : b; }
static inline float vf32_above(float t, float a, float b) { return t > 0 ? a : b; }
static inline float vf32_where(float t, float a) { return t != 0 ? a : 0; }
/* A NaN equals nothing. */
static inline float vf32_equal(float t, float u, float a) { return t == u ? a : 0; }
static inline void vf32_sum4(const float *v, float *out) { memcpy(out, v, 4 * sizeof *v); }

static inline float vf32_pairs(float a, float b) { return a + b; }
typedef int vf32_at, vf64_at;
/* The one lane is the first, wherever it is picked from. */
#define vf32_lanes(index) ((void)(index), 0)
#define vf64_lanes(index) ((void)(index), 0)
static inline float vf32_pick(const float *p, int at) { return p[at]; }

/* The same for doubles. */
static inline double vf64_set1(double s) { return s; }
static inline double vf64_fma(double a, double b, double c) { return a * b + c; }
static inline double vf64_max(double a, double b) { return a > b || a != a ? a : b; }
static inline double vf64_above(double t, double a, double b) { return t > 0 ? a : b; }
static inline double vf64_where(double t, double a) { return t != 0 ? a : 0; }
static inline double vf64_equal(double t, double u, double a) { return t == u ? a : 0; }
static inline void vf64_sum4(const double *v, double *out) { memcpy(out, v, 4 * sizeof *v); }
static inline double vf64_pairs(double a, double b) { return a + b; }
static inline double vf64_pick(const double *p, int at) { return p[at]; }

static inline float f32_load(const float *p) { return *p; }
static inline void f32_store(float *p, float v) { *p = v; }
static inline double f64_load(const double *p) { return *p; }
static inline void f64_store(double *p, double v) { *p = v; }
static inline float bf16_load(const uint16_t *p) { return bf16_value(*p); }
/* Inlined in unrolled loops, the longer conversions would double the time these take to compile. */
FMM_APART float f16_load(const uint16_t *p) { return f16_value(*p); }
FMM_APART void f16_store(uint16_t *p, float v) { *p = f16_of(v); }
FMM_APART void bf16_store(uint16_t *p, float v) { *p = bf16_of(v); }

#define f32_load_part(p, n) ((void)(n), f32_load(p))
#define f64_load_part(p, n) ((void)(n), f64_load(p))
#define f16_load_part(p, n) ((void)(n), f16_load(p))
#define bf16_load_part(p, n) ((void)(n), bf16_load(p))
#define f32_store_part(p, v, n) ((void)(n), f32_store(p, v))
#define f64_store_part(p, v, n) ((void)(n), f64_store(p, v))
#define f16_store_part(p, v, n) ((void)(n), f16_store(p, v))
#define bf16_store_part(p, v, n) ((void)(n), bf16_store(p, v))

/* Sums side by side hide the latency of additions here, too. */
#define FMM_PANEL 8
