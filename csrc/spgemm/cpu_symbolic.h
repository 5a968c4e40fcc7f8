/* What the files of the symbolic phase share. */
#pragma once

#include "../cpu/reference.h"
#include "cpu.h"

enum { WORD = 64 }; /* columns in a word of bits */

enum { SPGEMM_PAD = 32 /* columns beyond a row that a sort reads, and places that it writes */ };

/* One row's columns as bits, and in a whole product the places that they are sorted to. */
typedef struct spgemm_bits {
    uint64_t *words, *summary; /* of 64 columns, of 64 words */
    int32_t *touched;          /* words */
    int32_t *places;           /* of the columns of a row, where it is sorted */
    int64_t width;             /* words of a row */
} spgemm_bits;

/* Brings what entry p + SPGEMM_AHEAD of A wants closer: the row that begins at its place in
 * `starts`, of columns and of values of `width` bytes, or NULL; and twice as far ahead the place in
 * `starts`. The addresses are made of integers: what is out of range is not read, and a fetch of
 * nowhere does nothing. */
static inline void fmm_spgemm_fetch(const fmm_csr *a, int64_t p, const int64_t *starts,
                                    const int32_t *columns, const void *val, size_t width)
{
    const int64_t k = column_of(a, p + SPGEMM_AHEAD);
    const int32_t later = ((const volatile int32_t *)a->idx)[p + 2 * SPGEMM_AHEAD];
    __builtin_prefetch((const void *)((uintptr_t)starts + (uintptr_t)later * sizeof *starts));
    if (k < 0) return;
    const uintptr_t at = (uintptr_t)((const volatile int64_t *)starts)[k];
    __builtin_prefetch((const void *)((uintptr_t)columns + at * sizeof *columns));
    if (val) __builtin_prefetch((const void *)((uintptr_t)val + at * width));
}

/* The base instruction set has no instruction for it; for others compilers know this by heart. */
static inline int64_t fmm_spgemm_bits_of(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (int64_t)(word * UINT64_C(0x0101010101010101) >> 56);
}

/* Writes the n columns of a row to `to` so that they rise, and their values beside them. */
typedef void spgemm_sort(const spgemm_bits *room, int64_t n, const int32_t *columns,
                         const char *values, size_t width, int32_t *to, char *to_values);

enum { SPGEMM_SPARE = 32 << 20 /* products that have a stage, at most: 128 MiB of columns */ };

struct symbolic {
    const fmm_csr *a, *b;
    const fmm_spgemm_pattern *out;
    int64_t *before; /* [rows of A + 1]: products before each row, as places of a stage */
    int64_t *sizes;  /* [rows of B]: entries */
    int64_t *runs;   /* [rows of B + 1]: where they start */
    int32_t *run_words;
    uint64_t *run_bits;        /* NULL where B is not compressed */
    atomic_llong run_products; /* products of A and compressed B */
    atomic_bool falls;         /* whether columns do not rise in some row of B */
    bool even;                 /* rows of A have as many products as the row before, mostly */
    int64_t total;             /* products of all rows */
    spgemm_bits *rooms;        /* of the workers */
    int64_t fetch_end;         /* from this entry of A on nothing is fetched ahead */
    int32_t *idx;              /* C's columns */
    int32_t *stage; /* room for a column of each product, where that is little; or NULL */
    /* Where values are computed in the same pass: those beside the stage, and C's. */
    char *val_stage, *val;
    size_t val_width;
    spgemm_sort *sort; /* where a whole product's rows are to rise; or NULL */
};

/* Whether one pass is to compute values, too; how many workers have room for that; and that pass.
 */
bool fmm_spgemm_whole_pays(const symbolic *s);
int fmm_spgemm_whole_workers(const symbolic *s, int workers);
fmm_status fmm_spgemm_whole(const fmm_exec *exec, symbolic *s, int workers);

/* Counts products, and makes the schedule. */
fmm_status fmm_spgemm_look(const fmm_exec *exec, symbolic *s);
