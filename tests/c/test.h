/* What the C tests share: counting checks, numbers, arrays between guard pages, small matrices.
 *
 * Every array lies against a page that may not be touched, at its end or at its beginning, so one
 * element read or written outside stops the program with a signal. Outputs are filled with a
 * pattern that is a NaN in every dtype; what lies between strided rows has to keep it. */
#ifndef FMM_TEST_H
#define FMM_TEST_H

#define _GNU_SOURCE
#include "../../csrc/cpu/simd.h"
#include "fusedmm.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int passed, failed;

/* One check; the text after cond says which case it was. Only the first failures are shown. */
#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (cond) {                                                                                \
            passed++;                                                                              \
        } else if (failed++ < 20) {                                                                \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond);                                      \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

static inline int finish(void)
{
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

/* xorshift: the same numbers on every run and machine. */
static uint64_t random_state = 88172645463325252u;
static inline uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}
static inline int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }
static inline double random_unit(void) { return (double)(random_bits() >> 11) * 0x1p-53; }

/* ---- arrays between guard pages ---- */

typedef enum side { AT_END, AT_BEGIN, SIDES } side;
static struct {
    void *base;
    size_t bytes;
} held[64];
static int held_count;

/* Zeroed memory, freed by release_all. AT_END its last byte is followed by a guard page. */
static inline void *guarded(size_t bytes, side where)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = (bytes + page - 1) / page * page, outer = inner + 2 * page;
    char *base = mmap(NULL, outer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || held_count == 64) abort();
    if (inner && mprotect(base + page, inner, PROT_READ | PROT_WRITE)) abort();
    held[held_count].base = base;
    held[held_count++].bytes = outer;
    return base + page + (where == AT_END ? inner - bytes : 0);
}

/* Frees what was allocated after the first `kept` arrays. */
static inline void release_from(int kept)
{
    while (held_count > kept) {
        held_count--;
        munmap(held[held_count].base, held[held_count].bytes);
    }
}

static inline void release_all(void) { release_from(0); }

/* ---- dense views ---- */

static const size_t width_of[FMM_DTYPES] = {4, 8, 2, 2};
static const char *const dtype_of[FMM_DTYPES] = {"f32", "f64", "f16", "bf16"};
/* Half the distance to the next number: of the output, and of the sum behind it. */
static const double unit_out[FMM_DTYPES] = {0x1p-24, 0x1p-53, 0x1p-11, 0x1p-8};
static const double unit_sum[FMM_DTYPES] = {0x1p-24, 0x1p-53, 0x1p-24, 0x1p-24};

static inline int64_t place(const fmm_dense *d, int64_t r, int64_t h, int64_t c)
{
    return r * d->row_stride + h * d->head_stride + c;
}

static inline double get(const fmm_dense *d, int64_t r, int64_t h, int64_t c)
{
    const int64_t at = place(d, r, h, c);
    switch (d->dtype) {
    case FMM_F64:
        return ((const double *)d->data)[at];
    case FMM_F16:
        return (double)f16_value(((const uint16_t *)d->data)[at]);
    case FMM_BF16:
        return (double)bf16_value(((const uint16_t *)d->data)[at]);
    default:
        return (double)((const float *)d->data)[at];
    }
}

static inline void set(const fmm_dense *d, int64_t r, int64_t h, int64_t c, double value)
{
    const int64_t at = place(d, r, h, c);
    switch (d->dtype) {
    case FMM_F64:
        ((double *)d->data)[at] = value;
        break;
    case FMM_F16:
        ((uint16_t *)d->data)[at] = f16_of((float)value);
        break;
    case FMM_BF16:
        ((uint16_t *)d->data)[at] = bf16_of((float)value);
        break;
    default:
        ((float *)d->data)[at] = (float)value;
        break;
    }
}

static inline int64_t extent(const fmm_dense *d)
{
    if (!d->rows || !d->heads || !d->feat) return 0;
    return place(d, d->rows - 1, d->heads - 1, d->feat - 1) + 1;
}

/* gap elements between heads and twice as many between rows. */
static inline fmm_dense view(fmm_dtype dtype, int64_t rows, int64_t heads, int64_t feat,
                             int64_t gap, side where)
{
    fmm_dense d = {.dtype = dtype, .rows = rows, .heads = heads, .feat = feat};
    d.head_stride = feat + gap;
    d.row_stride = heads * d.head_stride + gap;
    d.data = guarded((size_t)extent(&d) * width_of[dtype], where);
    return d;
}

typedef enum content { RANDOM, CONSTANT, POWERS, CONTENTS } content;
static inline void fill(const fmm_dense *d, content what)
{
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t h = 0; h < d->heads; h++)
            for (int64_t c = 0; c < d->feat; c++)
                set(d, r, h, c,
                    what == RANDOM     ? 2 * random_unit() - 1
                    : what == CONSTANT ? 0.1
                                       : ldexp(1, (int)random_below(3)));
}

static inline void poison(const fmm_dense *d)
{
    if (d->data) memset(d->data, 0xff, (size_t)extent(d) * width_of[d->dtype]);
}

/* The gaps of an output still hold the pattern. */
static inline bool gaps_kept(const fmm_dense *d)
{
    if (!d->rows || !d->heads || !d->feat) return true;
    const unsigned char *bytes = d->data;
    const int64_t width = (int64_t)width_of[d->dtype];
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t begin = place(d, r, h, d->feat);
            const int64_t end = h + 1 < d->heads  ? place(d, r, h + 1, 0)
                                : r + 1 < d->rows ? place(d, r + 1, 0, 0)
                                                  : begin;
            for (int64_t b = begin * width; b < end * width; b++)
                if (bytes[b] != 0xff) return false;
        }
    return true;
}

/* ---- matrices ---- */

typedef enum structure { EMPTY_ROWS, ALL_EMPTY, HUB, DENSE_ROWS, LONG_ROWS, STRUCTURES } structure;

/* Columns are random: unsorted and often repeated. with_eid: a random order of the edges. */
static inline fmm_csr matrix(structure kind, int64_t rows, int64_t cols, bool with_eid, side where)
{
    int64_t *ptr = guarded((size_t)(rows + 1) * sizeof *ptr, where);
    for (int64_t i = 0; i < rows; i++) {
        int64_t degree = random_below(3) ? random_below(8) : 0;
        if (kind == DENSE_ROWS) degree = 20 + random_below(40);
        if (kind == LONG_ROWS) degree = 250 + random_below(600);
        if (kind == HUB && i == rows / 2) degree = 100000;
        if (kind == ALL_EMPTY || cols == 0) degree = 0;
        ptr[i + 1] = ptr[i] + degree;
    }
    const int64_t nnz = ptr[rows];
    int32_t *idx = guarded((size_t)nnz * sizeof *idx, where), *eid = NULL;
    for (int64_t p = 0; p < nnz; p++) idx[p] = (int32_t)random_below(cols);
    if (with_eid) {
        eid = guarded((size_t)nnz * sizeof *eid, where);
        for (int64_t p = 0; p < nnz; p++) {
            const int64_t q = random_below(p + 1);
            eid[p] = eid[q];
            eid[q] = (int32_t)p;
        }
    }
    return (fmm_csr){.rows = rows, .cols = cols, .nnz = nnz, .ptr = ptr, .idx = idx, .eid = eid};
}

static inline int64_t edge(const fmm_csr *a, int64_t p)
{
    return a->eid ? ((const int32_t *)a->eid)[p] : p;
}

/* |computed - exact| <= 4 sqrt(n) u sum|a||b| + u_out |exact|, and the last bit of a tiny f16. */
static inline bool within(double computed, long double exact, long double magnitude, int64_t terms,
                          fmm_dtype dtype)
{
    if (!isfinite(computed)) return false;
    const long double sum = 4 * sqrtl((long double)terms) * unit_sum[dtype] * magnitude;
    const long double rounding = unit_out[dtype] * fabsl(exact);
    return fabsl((long double)computed - exact) <=
           sum + rounding * (1 + 0x1p-10L) + (dtype == FMM_F16 ? 0x1p-25L : 0);
}

/* The algorithms of an operator that run on this machine, one after the other; NULL at the end. */
static inline const fmm_algorithm *next_algorithm(fmm_operator op, int *k, const fmm_call *call)
{
    const fmm_algorithm *a;
    while ((a = fmm_algorithms(op, FMM_CPU, (*k)++)))
        if (!a->supports || a->supports(call)) return a;
    return NULL;
}

#endif
