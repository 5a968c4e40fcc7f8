/* See heuristics.h; the figures are those of an H200. */
#include "heuristics.h"

/* Measured was the time of SpMM `tiles` over that of `segments`, at 32 and 128 columns of x.
 *
 * Uniform matrices of 1,024 to 32,768 rows and 1,024 to 8,192 columns: 0.49 to 0.86 where 10 to
 * 30 % of the places have an entry, 0.61 to 0.88 at 5 %, 0.70 to 0.89 at 3 and 4 % of 4 million
 * places, 1.03 to 1.16 at 2 %. Of 8,192 x 512 it was 0.75 and 0.96, of 512 x 8,192 1.40 and 1.75.
 *
 * `tiles` gives every warp as many rows, whatever their lengths. So on graphs with hubs it was 1.14
 * to 1.89 (R-MAT of 4,096 and 8,192 nodes, and drug interactions of 4,267, 12 to 20 % full), and
 * 1.7 where columns do not rise.
 *
 * Hence the choice. Rows that are known to be even go to `tiles` from 3 % on, rows that are known
 * to be uneven never do. Between the two, or where nobody looked, a square matrix, which may be a
 * graph with hubs, needs 15 %, and any other needs 8 %.
 *
 * A part of a matrix is never tiled: its columns are numbered anew, so that windows of them would
 * hold others than those of the whole matrix.
 *
 * Where neither side is above 1,024, `segments` mostly waits for its plan: from 4 % on `tiles` took
 * 0.57 to 0.94 of its time (1,024 x 512 and 1,024 x 1,024 with 10 %; 512 x 512 with 5 %, whose
 * longest row has three times the mean). */
bool fmm_may_be_tiled(const fmm_csr *a)
{
    const bool small = a->rows <= 1024 && a->cols <= 1024;
    const bool even = a->rows_are == FMM_ROWS_EVEN;
    const double share = small ? 0.04 : even ? FMM_TILED_SHARE : a->rows == a->cols ? 0.15 : 0.08;
    const int64_t rows = small ? 256 : FMM_TILED_ROWS;
    const int64_t cols = small ? 256 : even ? FMM_TILED_COLS : 1024;
    return !a->whole.nnz && a->rows >= rows && a->cols >= cols &&
           (small || a->rows_are != FMM_ROWS_UNEVEN) &&
           (double)a->nnz >= share * (double)a->rows * (double)a->cols;
}
