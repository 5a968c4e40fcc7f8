/* What the files of SpMV on the CPU share: a call cut in pieces, and what pieces leave. */
#pragma once

#include "../cpu/rows.h"

/* What a kernel does with pieces [first, last) of a call. */
typedef enum fmm_spmv_step {
    FMM_SPMV_WIDEN,   /* elements of x, to numbers of the type of sums */
    FMM_SPMV_PATH,    /* CSR: pieces that may end within a row, to y */
    FMM_SPMV_ENTRIES, /* COO: pieces of entries, to sums */
    FMM_SPMV_BLOCKS,  /* DIA, ELL, SELL: blocks of rows, to y; for COO and HYB to sums */
    FMM_SPMV_FINISH,  /* rows of sums, to y; without sums rows without entries */
} fmm_spmv_step;

enum {
    FMM_SPMV_BLOCK = 512,   /* rows whose sums a kernel keeps at once, or chooses sums for */
    FMM_SPMV_TALL = 2048,   /* rows of a block of DIA or ELL */
    FMM_SPMV_STREAMS = 9,   /* diagonals that are read at once: processors prefetch so many */
    FMM_SPMV_PAIRS = 5,     /* and stored columns, each beside its values */
    FMM_SPMV_AHEAD = 512,   /* entries of CSR that are asked for ahead */
    FMM_SPMV_BEHIND = 256,  /* and elements of each diagonal */
    FMM_SPMV_FEW = 16,      /* entries of a row from which several sums take it */
    FMM_SPMV_CHUNK = 2048,  /* entries of CSR whose products a kernel keeps at once */
    FMM_SPMV_AT_ONCE = 128, /* rows that are looked at together, to be summed side by side */
    FMM_SPMV_RUN = 512,     /* entries of a long row that 16 sums take */
    FMM_SPMV_PIECE = 16384, /* rows and entries of a piece of CSR or COO: some 10 us */
};

/* What a piece leaves of the rows that it shares with its neighbours; -1 where there is none. */
typedef struct fmm_spmv_carry {
    int64_t head_row, tail_row; /* the row that began before the piece, that goes on behind it */
    double head, tail;          /* the sums of their entries here */
} fmm_spmv_carry;

/* How rows of CSR are summed: one after the other, side by side in lanes, or as suits the lengths
 * of the rows around them. */
typedef enum fmm_spmv_sums { FMM_SPMV_ONE, FMM_SPMV_SIDE_BY_SIDE, FMM_SPMV_EITHER } fmm_spmv_sums;

typedef struct fmm_spmv_task {
    fmm_rows_task rows; /* first, since kernels are handed a pointer to it */
    fmm_spmv_step step;
    fmm_spmv_sums sums_are; /* CSR */
    bool by_entries;        /* CSR: pieces of equally many entries, instead of rows + entries */
    int64_t pieces;         /* CSR, COO: how many the path is cut in */
    int64_t units, group;   /* what the step runs over, and how many a thread takes at once */
    const void *x;          /* contiguous, of the type of sums: the caller's, or wide */
    void *wide; /* [cols], of the type of sums; NULL where the caller's x is as the loops read it */
    void *sums; /* [rows], of the type of sums: COO and HYB; else NULL */
    fmm_spmv_carry *carries; /* [pieces]: CSR, COO, HYB; NULL where one piece is all */
} fmm_spmv_task;

/* The first row and the first entry of a piece. before: those of the piece before it, or NULL. */
typedef struct fmm_spmv_place {
    int64_t row, entry;
} fmm_spmv_place;
fmm_spmv_place fmm_spmv_cut(const fmm_spmv_task *t, int64_t piece, const fmm_spmv_place *before);
fmm_spmv_place fmm_spmv_end(const fmm_spmv_task *t, int64_t piece, int64_t last,
                            const fmm_spmv_place *from, const fmm_spmv_place *stop);

/* Rows of a block of a padded format. */
static inline int64_t fmm_spmv_tall(const fmm_spmv_matrix *a)
{
    return a->format == FMM_FORMAT_SELL ? a->width : FMM_SPMV_TALL;
}

/* The specification. */
fmm_status fmm_spmv_reference(const fmm_exec *exec, const fmm_call *call);
