/* The whole product in one pass, where it is small: the symbolic phase computes values on its way.
 *
 *     products of row i   ---> marks of columns, and a list in the order of touching
 *                         ---> sums, one for each column            the same pass over products
 *     columns, as listed  ---> stage       | row | row |   ...  |   a place for each product
 *     their sums          ---> val_stage   | row | row |   ...  |
 *                              C           | row | row | ...        copied when sizes are known;
 *                                                                   sorted on the way (cpu.c)
 *
 * Two phases walk over the products twice. What that costs is less the products than the ends of
 * B's rows, which no branch predictor foresees, so it is short rows that gain. Long rows, whose
 * columns compress well, are found sooner without their values. Sums take the same products in the
 * same order as in cpu_rows.inc, and go aside after as many. */
#include "../cpu/isa.h"
#include "cpu_symbolic.h"

enum {
    ROW = 512,        /* products of a row on average, at most */
    DENSE = 32 << 20, /* bytes that the workers' sums may take, */
    LEAST = 8,        /* which is enough for so many workers */
};

/* Bytes of a worker's sums. */
static int64_t row_of_sums(const symbolic *s)
{
    return (s->b->cols + 1) * (int64_t)fmm_spgemm_width(s->out->with->dtype);
}

/* How many threads there are decides nothing here: unsorted columns have another order in two
 * phases. */
bool fmm_spgemm_whole_pays(const symbolic *s)
{
    return s->out->want > FMM_SPGEMM_COUNTS && s->total > 0 && s->total <= SPGEMM_SPARE &&
           s->total <= ROW * s->a->rows && s->out->schedule[0] <= SPGEMM_TERMS &&
           row_of_sums(s) <= DENSE / LEAST;
}

/* More threads than have room for their sums do not take part. */
int fmm_spgemm_whole_workers(const symbolic *s, int workers)
{
    const int64_t most = DENSE / row_of_sums(s);
    return workers > most ? (int)most : workers;
}

#define DECLARE(room, isa, level) extern spgemm_sort *const fmm_spgemm_sort_##isa;
FMM_ISA_LIST(DECLARE, )

static spgemm_sort *sort_of(fmm_isa level)
{
#define OF(room, isa, known)                                                                       \
    if (level == known) return fmm_spgemm_sort_##isa;
    FMM_ISA_LIST(OF, )
    return NULL;
}

/* A whole product runs on the numeric phase's places and loops; what it does not set stays 0. */
fmm_status fmm_spgemm_whole(const fmm_exec *exec, symbolic *s, int workers)
{
    const fmm_spgemm_values *with = s->out->with;
    const int64_t cols = s->b->cols, repeats = s->out->schedule[0];
    const size_t width = fmm_spgemm_width(with->dtype);
    spgemm_memory m = {0};
    s->val_width = fmm_dtype_bytes(with->dtype);
    fmm_dense y = {.dtype = with->dtype, .row_stride = 1};
    const fmm_call call = {.a = s->a, .y = &y};
    spgemm_numeric t = {
        .call = &call, .a = *s->a, .b = *s->b, .found = s, .per_block = SPGEMM_TERMS / repeats};
    fmm_isa level;
    TRY(fmm_isa_level(&level));
    if (s->out->want == FMM_SPGEMM_SORTED) s->sort = sort_of(level);
    bool cuts = false;
    for (int64_t i = 0; i < s->a->rows && !cuts; i++)
        cuts = row_end(s->a, i) - row_begin(s->a, i) > t.per_block;
    const bool even = s->even && !cuts && s->val_width == width;
    t.fetch_end = even ? 0 : s->fetch_end; /* rows that are alike find those of B in the cache */
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        t.a_val = fmm_spgemm_lay(exec, s->a, &with->a_val, with->dtype, &m);
        t.b_val = fmm_spgemm_lay(exec, s->b, &with->b_val, with->dtype, &m);
        s->val_stage = fmm_spgemm_take(&m, s->total, s->val_width);
        t.places = fmm_spgemm_take(&m, workers, sizeof *t.places);
        for (int k = 0; k < workers; k++) {
            int32_t *const list = fmm_spgemm_take(&m, cols + 1, sizeof *list);
            spgemm_place at = {.stands = list, .columns = s->stage, .sums = s->val_stage};
            if (!even)
                at = (spgemm_place){.columns = list,
                                    .marks = fmm_spgemm_take(&m, cols, 1),
                                    .sums = fmm_spgemm_take(&m, cols, width),
                                    .aside = cuts ? fmm_spgemm_take(&m, cols, width) : NULL};
            if (!pass) continue;
            t.places[k] = at;
            memset(list, even ? 0xff : 0, (size_t)(m.base + m.used - (char *)list));
        }
    }
    y.data = s->val_stage;
    fmm_spgemm_crew(exec, workers, s->out->schedule, s->a->rows,
                    fmm_spgemm_loops[with->dtype].whole, &t);
    return FMM_OK;
}
