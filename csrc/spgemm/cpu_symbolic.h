/* What the files of the symbolic phase share. */
#pragma once

#include "cpu.h"

enum { WORD = 64 }; /* columns in a word of bits */

/* One row's columns as bits. */
typedef struct spgemm_bits {
    uint64_t *words, *summary; /* of 64 columns, of 64 words */
    int32_t *touched;
    uint8_t *marks; /* of columns, where these are listed in any order; or NULL */
    int64_t few;    /* words of a row that are sorted without the summary, at most */
} spgemm_bits;

struct symbolic {
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
    char *val_stage,
        *val; /* where values are computed in the same pass: beside the stage, and C's */
    size_t val_width;
};

/* Ors the products of row i together; returns how many words they touch. */
int64_t fmm_spgemm_mark(const symbolic *s, const spgemm_bits *room, int64_t i);

/* Reads out the words that a row touched and clears them; the columns are written to [at, end), in
 * the order of columns or of touching. Returns their end. */
int32_t *fmm_spgemm_read(const spgemm_bits *room, int64_t touched, bool sorted, int32_t *at,
                         const int32_t *end);

/* Whether one pass is to compute values, too, and by how many workers; and that pass. */
bool fmm_spgemm_whole_pays(const symbolic *s, int *workers);
fmm_status fmm_spgemm_whole(const fmm_exec *exec, symbolic *s, int workers);

/* Counts products and runs, and makes the schedule. */
fmm_status fmm_spgemm_look(const fmm_exec *exec, symbolic *s);
