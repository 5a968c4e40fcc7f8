/* Colours of the rows of C: rows that share a column get different ones.
 *
 *     masks   a bit per colour for each column: some row of this colour stands here already
 *
 *     row i   columns  3        7        9
 *             masks    ..1..1   ......   1.....     ored: 1.1..1  ---> colour 1, the first free bit
 *
 * Each pass gives away 64 colours; rows that find none free wait for the next pass. So the work is
 * C's entries times a 64th of the colours, without C's transpose, and the first fit is found in one
 * fixed order. A row that has a column twice needs no two colours. Of more columns than twice C's
 * entries some share a mask, so that masks take no more memory and time than entries do. */
#include "../cpu/reference.h"
#include "cpu.h"

enum { COLOURS = 64 };

static int32_t first_free(const fmm_csr *c, int64_t i, uint64_t *masks, int64_t width)
{
    const int64_t begin = row_begin(c, i), end = row_end(c, i);
    uint64_t used = 0;
    for (int64_t r = begin; r < end; r++) {
        const int64_t j = column_of(c, r);
        if (j >= 0) used |= masks[j < width ? j : j % width];
    }
    if (!~used) return -1;
    const int32_t free = __builtin_ctzll(~used);
    for (int64_t r = begin; r < end; r++) {
        const int64_t j = column_of(c, r);
        if (j >= 0) masks[j < width ? j : j % width] |= UINT64_C(1) << free;
    }
    return free;
}

fmm_status fmm_spgemm_colours(const fmm_exec *exec, const fmm_csr *c, int32_t *colours)
{
    TRY(fmm_spgemm_device(exec, c));
    REQUIRE(exec->device == FMM_CPU, FMM_UNSUPPORTED, "spgemm: no algorithm on CUDA needs colours");
    VALID(colours || !c->rows, "spgemm: colours must be given");
    spgemm_memory m;
    const int64_t width = c->cols < 2 * c->nnz ? c->cols : 2 * c->nnz; /* of masks */
    TRY(fmm_spgemm_ask(exec, (size_t)width * sizeof(uint64_t), &m));
    for (int64_t i = 0; i < c->rows; i++) colours[i] = -1;
    bool waiting = c->rows > 0;
    for (int32_t pass = 0; waiting; pass += COLOURS) {
        if (width) memset(m.base, 0, (size_t)width * sizeof(uint64_t));
        waiting = false;
        for (int64_t i = 0; i < c->rows; i++) {
            if (colours[i] >= 0) continue;
            const int32_t colour = first_free(c, i, (uint64_t *)(void *)m.base, width);
            if (colour < 0)
                waiting = true;
            else
                colours[i] = pass + colour;
        }
    }
    return FMM_OK;
}
