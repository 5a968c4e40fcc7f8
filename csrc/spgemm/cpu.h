/* What the CPU files of SpGEMM share: workers that take chunks of rows, and memory cut in pieces.
 *
 *     chunks   | rows 0..17 | rows 18..19 | rows 20..90 | ...     about equal products each
 *                    ^             ^
 *     workers   0: its room   1: its room                         the next free chunk is theirs
 *
 * An accumulator is as long as a row of C may be, so there is one for each worker and not for each
 * chunk. Workers take chunks as they become free, which no result depends on: a row has one owner,
 * who adds its products in the order of A's entries. */
#pragma once

#include "../core/checks.h"
#include "calls.h"

#include <stdatomic.h>

/* Computes rows [first, last) in room `worker`. */
typedef void spgemm_body(void *ctx, int worker, int64_t first, int64_t last);

/* How many threads should share so many products: those of the caller, one where they are few. */
int fmm_spgemm_workers(const fmm_exec *exec, int64_t products);

/* Runs body for the chunks of a schedule of `rows` rows; without one, for blocks of a few rows. At
 * most `workers` threads take part, each with a number of its own; a thread beyond those leaves the
 * rows to them. */
void fmm_spgemm_crew(const fmm_exec *exec, int workers, const int64_t *schedule, int64_t rows,
                     spgemm_body *body, void *ctx);

/* The next `bytes` of a workspace, in whole cache lines. With a NULL base it only counts them. */
void *fmm_spgemm_take(spgemm_memory *m, int64_t count, size_t bytes);

/* a's sizes, and whether the device has an algorithm at all. */
fmm_status fmm_spgemm_device(const fmm_exec *exec, const fmm_csr *a);

/* Sizes, devices, and whether A and B fit each other. */
fmm_status fmm_spgemm_check(const fmm_exec *exec, const fmm_csr *a, const fmm_csr *b);

/* ---- the numeric phase ---- */

enum {
    SPGEMM_FIRST = 512,    /* entries in the first table of a hashed row */
    SPGEMM_SPACE = 4,      /* slots of a table for each entry, at least */
    SPGEMM_AHEAD = 8,      /* a row of B is fetched so many entries of A before its use */
    FMM_SPGEMM_ALIKE = 32, /* rows of a run that are learned from, at least */
};

typedef enum spgemm_kind { SPGEMM_AUTO, SPGEMM_DENSE, SPGEMM_HASH, SPGEMM_SORT } spgemm_kind;

/* Where a worker keeps the sums of its row; they have the type of sums. cpu_rows.inc says how. */
typedef struct spgemm_place {
    bool ready, flushed; /* sums and marks are zero; sums of the row went aside */
    int64_t entries;     /* of the row; with `stands` the stage's place of the next one */
    void *sums;     /* DENSE: one for each column, zero between rows; with `stands` the stage */
    uint8_t *marks; /* which columns the row has; DENSE without a mask: NULL */
    void *aside;    /* sums of SPGEMM_TERMS terms, by the row's entries; or NULL */
    void *listed;   /* where the sums of the row's entries are */
    int32_t *keys, *more; /* HASH: columns, -1 where a slot is free; more: the pool's, or NULL */
    void *slots, *more_slots; /* sums beside them */
    uint64_t mask, more_mask; /* number of slots less one */
    int64_t last;             /* HASH: no column beyond it is in the first table */
    int32_t *sorted;          /* SORT: the row's columns */
    void *sorted_sums;        /* sums beside them */
    int64_t row;              /* how many */
    /* Of a whole product: */
    int32_t *columns;    /* of the row, as products touch them; with `stands` the stage */
    int32_t *stands;     /* where columns stand in the stage, if rows are alike; else NULL */
    int64_t first, full; /* where the row begins and ends there */
} spgemm_place;

typedef struct spgemm_numeric spgemm_numeric;
typedef struct symbolic symbolic;

/* Rows [first, last): of any kind; and where many are as the one before, see cpu_alike.inc, the
 * others of which it gives to `plain`. */
typedef void spgemm_plain(const spgemm_numeric *t, spgemm_place *at, int64_t first, int64_t last);
typedef void spgemm_alike(const spgemm_numeric *t, spgemm_place *at, int64_t first, int64_t last,
                          spgemm_plain *plain);

struct spgemm_numeric {
    const fmm_call *call;
    fmm_csr a, b;
    const fmm_spgemm *of;      /* what is known of C; NULL in a whole product */
    const void *a_val, *b_val; /* in the type of sums, in the order of entries */
    spgemm_kind kind;
    spgemm_place *places; /* of the workers */
    int64_t longest;      /* entries of a row of c: what a place has room for */
    int64_t per_block;    /* entries of A whose products one accumulator adds */
    size_t width;         /* of a sum */
    int64_t fetch_end;    /* from this entry of A on nothing is fetched ahead */
    bool plain; /* sums are one for each column, and values lie in c's order; see cpu_rows.inc */
    const volatile uint8_t *follows; /* [rows] whether a row is as the one before; or NULL */
    spgemm_alike *alike;             /* what computes those */
    /* Tables for rows that do not fit into a first one; a worker holds one during such a row. */
    atomic_flag *taken;
    char *tables;
    int64_t table_count, table_slots;
};

/* What is compiled for each dtype: rows [first, last), entries [first, last) of values as numbers
 * of the type of sums, and rows of a whole product, whose context is its `symbolic`: by whether
 * rows are alike, and whether row k of B has entry k alone. */
typedef struct spgemm_loops {
    spgemm_plain *rows;
    void (*lay)(const fmm_csr *a, const fmm_dense *val, int64_t first, int64_t last, void *to);
    spgemm_body *whole[2][2];
} spgemm_loops;
extern const spgemm_loops fmm_spgemm_loops[FMM_DTYPES];

/* Bytes of the type of sums. */
static inline size_t fmm_spgemm_width(fmm_dtype dtype) { return dtype == FMM_F64 ? 8 : 4; }

/* Values in the type of sums and the order of entries: where they lie, or a copy in the memory. */
const void *fmm_spgemm_lay(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                           fmm_dtype dtype, spgemm_memory *m);

fmm_status fmm_spgemm_reference(const fmm_exec *exec, const fmm_call *call);
size_t fmm_spgemm_reference_workspace(const fmm_call *call);
