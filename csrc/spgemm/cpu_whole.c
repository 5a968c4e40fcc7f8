/* The whole product in one pass, where it is small: the symbolic phase computes values on its way.
 *
 *     products of row i   ---> marks of columns, and a list in the order of touching
 *                         ---> sums, one for each column            the same pass over products
 *     columns, as listed  ---> stage       | row | row |   ...  |   see cpu_symbolic.c
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
    MOST = 32 << 20, /* products of all rows, at most, */
    ROW = 512,       /* and of a row on average */
    SUMS = 4 << 20,  /* bytes of a worker's sums */
};

bool fmm_spgemm_whole_pays(const symbolic *s)
{
    return s->out->want > FMM_SPGEMM_COUNTS && s->total > 0 && s->total <= MOST &&
           s->total <= ROW * s->a->rows && s->out->schedule[0] <= SPGEMM_TERMS &&
           s->b->cols <= SUMS / (int64_t)fmm_spgemm_width(s->out->with->dtype);
}

/* More threads than have room for marks and sums in half of what a call may take do not take part.
 */
int fmm_spgemm_whole_workers(const symbolic *s, int workers)
{
    const size_t each = (size_t)s->b->cols * (1 + fmm_spgemm_width(s->out->with->dtype));
    const size_t most = fmm_spgemm_allowed(s) / 2 / (each + 1);
    return (size_t)workers > most ? (int)most : workers;
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
fmm_status fmm_spgemm_whole(const fmm_exec *exec, symbolic *s, int workers, spgemm_numeric *t)
{
    const fmm_spgemm_values *with = s->out->with;
    const int64_t cols = s->b->cols;
    const size_t width = fmm_spgemm_width(with->dtype);
    spgemm_memory m = {0};
    fmm_isa level;
    TRY(fmm_isa_level(&level));
    if (s->out->want == FMM_SPGEMM_SORTED) s->sort = sort_of(level);
    s->val_width = fmm_dtype_bytes(with->dtype);
    s->numeric = t;
    *t = (spgemm_numeric){.a = *s->a, .b = *s->b, .per_block = SPGEMM_TERMS / s->out->schedule[0]};
    bool cuts = false;
    for (int64_t i = 0; i < s->a->rows && !cuts; i++)
        cuts = row_end(s->a, i) - row_begin(s->a, i) > t->per_block;
    const bool alike = s->alike && !cuts && s->val_width == width;
    s->find = fmm_spgemm_loops[with->dtype].whole[alike][s->each == 1];
    t->fetch_end = alike ? 0 : s->fetch_end; /* rows that are alike find those of B in the cache */
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        t->a_val = fmm_spgemm_lay(exec, s->a, &with->a_val, with->dtype, &m);
        t->b_val = fmm_spgemm_lay(exec, s->b, &with->b_val, with->dtype, &m);
        t->places = fmm_spgemm_take(&m, workers, sizeof *t->places);
        for (int k = 0; k < workers; k++) {
            spgemm_place at = {0};
            if (alike) {
                at.stands = fmm_spgemm_take(&m, cols, sizeof *at.stands);
            } else {
                at.columns = fmm_spgemm_take(&m, s->own, sizeof *at.columns);
                at.marks = fmm_spgemm_take(&m, cols, 1);
                at.sums = fmm_spgemm_take(&m, cols, width);
                if (cuts) at.aside = fmm_spgemm_take(&m, s->own, width);
            }
            if (pass) t->places[k] = at;
        }
    }
    s->lent += m.used;
    return FMM_OK;
}
