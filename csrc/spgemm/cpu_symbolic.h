/* What the files of the symbolic phase share. */
#pragma once

#include "cpu.h"

enum { WORD = 64 }; /* columns in a word of bits */

/* One row's columns as bits. */
typedef struct spgemm_bits {
    uint64_t *words, *summary; /* of 64 columns, of 64 words */
    int32_t *touched;
} spgemm_bits;

typedef struct symbolic {
    const fmm_csr *a, *b;
    const fmm_spgemm_pattern *out;
    int64_t *products; /* [rows of A] */
    int64_t *runs;     /* [rows of B + 1]: how many runs of one word; then where they start */
    int32_t *run_words;
    uint64_t *run_bits;        /* NULL where B is not compressed */
    atomic_llong run_products; /* products of A and compressed B */
    atomic_bool falls;         /* whether columns do not rise in some row of B */
    int64_t words, total;      /* words of a row; products of all rows */
    spgemm_bits *rooms;        /* of the workers */
    int64_t fetch_end;         /* entries of A before it fetch B's rows ahead */
    int32_t *idx;              /* C's columns */
    int32_t *stage; /* room for a column of each product, where that is little; or NULL */
    int64_t begins[FMM_SPGEMM_PARTS + 1]; /* of the chunks, in the stage */
} symbolic;

/* Counts products and runs, and makes the schedule. */
fmm_status fmm_spgemm_look(const fmm_exec *exec, symbolic *s);
