/* The whole product in one pass, where it is small: the symbolic phase computes values on its way.
 *
 *     products of row i   ---> bits of columns, as in cpu_symbolic.c
 *                         ---> sums, one for each column            the same pass over products
 *     columns, in order   ---> stage       | row | row |   ...  |   a place for each product
 *     their sums          ---> val_stage   | row | row |   ...  |
 *                              C           | row | row | ...        copied when sizes are known
 *
 * Two phases walk over the products twice. What that costs is less the products than the ends of
 * B's rows, which no branch predictor foresees, so it is short rows that gain. Long rows, whose
 * columns compress well, are found sooner without their values. Sums take the same products in the
 * same order as in cpu_rows.inc: a row of A with more entries than one accumulator may add is
 * computed there, once its columns are known. */
#include "../cpu/reference.h"
#include "cpu_symbolic.h"

enum {
    ROW = 512,        /* products of a row on average, at most */
    DENSE = 32 << 20, /* bytes that the workers' sums may take */
};

bool fmm_spgemm_whole_pays(const symbolic *s, int workers)
{
    return s->out->with && s->total <= ROW * s->a->rows &&
           s->b->cols <= DENSE / workers / (int64_t)fmm_spgemm_width(s->out->with->dtype);
}

typedef struct whole {
    const symbolic *s;
    spgemm_numeric t;
} whole;

static void run_chunk(void *ctx, int worker, int64_t chunk)
{
    const whole *w = ctx;
    fmm_spgemm_loops[w->s->out->with->dtype].whole(w->s, &w->t, worker, chunk);
}

fmm_status fmm_spgemm_whole(const fmm_exec *exec, symbolic *s, int workers)
{
    const fmm_spgemm_values *with = s->out->with;
    const int64_t cols = s->b->cols, repeats = s->out->schedule[0];
    const size_t width = fmm_spgemm_width(with->dtype);
    spgemm_memory m = {0};
    s->val_width = fmm_dtype_bytes(with->dtype);
    const fmm_csr c = {.rows = s->a->rows, .cols = cols, .nnz = s->total, .idx = s->stage};
    const fmm_spgemm of = {.b = s->b, .c = &c};
    fmm_dense y = {.dtype = with->dtype, .row_stride = 1};
    const fmm_call call = {.a = s->a, .y = &y, .own = &of};
    whole w = {s, {.call = &call, .of = &of, .per_block = SPGEMM_TERMS / repeats}};
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        w.t.a_val = fmm_spgemm_lay(exec, s->a, &with->a_val, with->dtype, &m);
        w.t.b_val = fmm_spgemm_lay(exec, s->b, &with->b_val, with->dtype, &m);
        s->val_stage = fmm_spgemm_take(&m, s->total, s->val_width);
        w.t.places = fmm_spgemm_take(&m, workers, sizeof *w.t.places);
        for (int k = 0; k < workers; k++) {
            const spgemm_place at = {.sums = fmm_spgemm_take(&m, cols, width),
                                     .aside = fmm_spgemm_take(&m, cols, width)};
            if (!pass) continue;
            w.t.places[k] = at;
            memset(at.sums, 0, (size_t)cols * width);
        }
    }
    y.data = s->val_stage;
    fmm_spgemm_crew(exec, workers, FMM_SPGEMM_PARTS, run_chunk, &w);
    return FMM_OK;
}
