/* What the files of the symbolic phase share. */
#pragma once

#include "../cpu/reference.h"
#include "cpu.h"

enum { WORD = 64 }; /* columns in a word of bits */

enum {
    SPGEMM_PAD = 32,        /* columns beyond a row that are read, and places that are written */
    SPGEMM_BLOCK = 4096,    /* entries of the stage that a worker takes at a time, at least */
    SPGEMM_LENT = 32 << 20, /* bytes that a call takes beside a quarter of the largest matrix */
};

/* What a worker has: one row's columns as bits, and its block of the stage. */
typedef struct spgemm_bits {
    uint64_t *words, *summary; /* of 64 columns, of 64 words */
    int32_t *touched;          /* words */
    int64_t width;             /* words of a row */
    int64_t next, end;         /* of its block in the stage: the next place */
    /* Of a whole product: */
    bool alike;          /* as in the struct below */
    int32_t *places;     /* where each column of the row that was sorted last went in C's row */
    const int32_t *last; /* that row's columns, whose places the next row may share */
    int64_t count;       /* how many they are, or -1 where the next row cannot share them */
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
typedef void spgemm_sort(spgemm_bits *room, int64_t n, const int32_t *columns, const char *values,
                         size_t width, int32_t *to, char *to_values);

struct symbolic {
    const fmm_csr *a, *b;
    const fmm_spgemm_pattern *out;
    /* [rows of A]: products of each row; after its turn where it stands in the stage, or -1. */
    int64_t *at;
    int64_t *runs; /* [rows of B + 1]: where they start */
    int32_t *run_words;
    uint64_t *run_bits;        /* NULL where B is not compressed */
    atomic_llong run_products; /* products of A and compressed B */
    atomic_bool falls;         /* whether columns do not rise in some row of B */
    atomic_bool uneven;        /* whether rows of B are not of one length, */
    int64_t each;              /* which this is, else 0 */
    /* Of a row of B: its first column and, times 2^32, the first of the rows up to it that are
     * alike but for a shift. */
    uint64_t *shapes;
    uint8_t *follows; /* of rows of A: whether C's row is that before, shifted; or NULL: few are */
    atomic_llong following; /* rows of B that are like the one before */
    bool alike;             /* rows of A have as many products as the row before, mostly */
    int64_t total, longest; /* products of all rows, and of one */
    size_t lent;            /* bytes of memory so far */
    spgemm_bits *rooms;     /* of the workers */
    int64_t fetch_end;      /* from this entry of A on nothing is fetched ahead */
    spgemm_body *find;      /* finds rows, for the stage or for C */
    /* Columns, and where values are computed in the same pass those: of C, once it has memory, and
     * of the stage. */
    int32_t *idx, *stage;
    char *val, *val_stage;
    size_t val_width;   /* 0 without values */
    int64_t capacity;   /* entries that the stage has room for, */
    atomic_llong taken; /* those that are in blocks, */
    int64_t own;        /* and those behind them that a worker has for a row on its way to C */
    /* Of a whole product: */
    const spgemm_numeric *numeric;
    spgemm_sort *sort; /* where rows are to rise; or NULL */
};

/* How many columns row i of C has. */
int64_t fmm_spgemm_count(const symbolic *s, const spgemm_bits *room, int64_t i);

/* Takes a block of the stage for a row of so many columns at most; false if it is full. */
bool fmm_spgemm_block(symbolic *s, spgemm_bits *room, int64_t most);

/* Where row i goes, of *most columns at most: to C, where it has a place of its size, or before
 * that to the stage. If that is full, or there is none, the row is only counted: -1. It then has no
 * more columns than products were counted, for as many as which a worker has room, whatever a
 * forged B has. */
static inline int64_t fmm_spgemm_begin(symbolic *s, spgemm_bits *room, int64_t i, int64_t *most)
{
    int64_t *const ptr = s->out->ptr;
    if (s->idx) {
        *most = ptr[i + 1] - ptr[i];
        return ptr[i];
    }
    *most = s->at[i] < s->b->cols ? s->at[i] : s->b->cols;
    const bool none = !s->capacity || room->end - room->next < *most;
    if (none && !fmm_spgemm_block(s, room, *most)) {
        const int64_t count = fmm_spgemm_count(s, room, i);
        ptr[i + 1] = count < *most ? count : *most;
        return s->at[i] = -1;
    }
    return s->at[i] = room->next;
}

/* Row i has n columns in the stage. */
static inline void fmm_spgemm_end(const symbolic *s, spgemm_bits *room, int64_t i, int64_t n)
{
    s->out->ptr[i + 1] = n;
    room->next += n;
}

/* Row i from place `from` of the stage to C, in order. */
static inline void fmm_spgemm_sort_row(const symbolic *s, spgemm_bits *room, int64_t i,
                                       int64_t from)
{
    const int64_t to = s->out->ptr[i], n = s->out->ptr[i + 1] - to;
    const size_t width = s->val_width;
    s->sort(room, n, s->stage + from, s->val_stage + (size_t)from * width, width, s->idx + to,
            s->val + (size_t)to * width);
}

/* Rows [i, next), which lie together there, as they are. */
static inline void fmm_spgemm_copy(const symbolic *s, int64_t i, int64_t next, int64_t from)
{
    const size_t to = (size_t)s->out->ptr[i], n = (size_t)s->out->ptr[next] - to;
    const size_t width = s->val_width;
    if (!n) return;
    memcpy(s->idx + to, s->stage + from, n * sizeof *s->idx);
    if (width) memcpy(s->val + to * width, s->val_stage + (size_t)from * width, n * width);
}

/* Whether one pass is to compute values, too; how many workers have room for that; and what it
 * needs. */
bool fmm_spgemm_whole_pays(const symbolic *s);
int fmm_spgemm_whole_workers(const symbolic *s, int workers);
fmm_status fmm_spgemm_whole(const fmm_exec *exec, symbolic *s, int workers, spgemm_numeric *t);

/* Bytes that a call may take in all. */
size_t fmm_spgemm_allowed(const symbolic *s);

/* Counts products, and makes the schedule. */
fmm_status fmm_spgemm_look(const fmm_exec *exec, symbolic *s);
