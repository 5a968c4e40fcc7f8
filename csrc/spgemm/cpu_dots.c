/* Products of rows of two sparse matrices where a third has entries: the gradients of SpGEMM.
 *
 *     row i of x   .  x  .  x  x  .  .     dense, with a flag where it has an entry
 *     row k of y      (1, y)   (4, y)      for each entry (i, k) of a: one owner each
 *     out          =  x1 y + x4 y          in the order of y's entries
 *
 * It costs as many products as the product whose gradient it is. A flag says where x has an entry,
 * since 0 times an infinity of y would be no 0. Rows of a are dealt out in parts of about as many
 * rows and entries; a result has one owner, who adds in the order of y's entries, so that its bits
 * are the same for any number of threads. */
#include "../cpu/reference.h"
#include "cpu.h"

typedef struct dots {
    const fmm_csr *a, *x, *y;
    const fmm_dense *out;
    const void *x_val, *y_val; /* in the type of sums, in the order of entries */
    char *rows;                /* of the workers: a slot for each column of x */
} dots;

#define LOOPS "../spgemm/cpu_dots.inc"
#include "../cpu/dtypes.inc"

/* The first row from which on `part` of a's rows and entries lie, found by bisection. Where ptr was
 * forged parts may leave out rows or share some, but each stays inside. */
static int64_t first_row(const fmm_csr *a, int64_t part)
{
    const int64_t share = (a->rows + a->nnz) / FMM_SPGEMM_PARTS + 1;
    int64_t low = 0, high = a->rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (row_begin(a, middle) + middle < share * part)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void run_part(void *ctx, int worker, int64_t part)
{
    static void (*const loops[FMM_DTYPES])(const dots *, char *, int64_t, int64_t) = {
        spgemm_dots_f32, spgemm_dots_f64, spgemm_dots_f16, spgemm_dots_bf16};
    const dots *d = ctx;
    const size_t slot = 2 * fmm_spgemm_width(d->out->dtype);
    const int64_t last = part + 1 < FMM_SPGEMM_PARTS ? first_row(d->a, part + 1) : d->a->rows;
    /* Without columns there is no memory. */
    char *const room = d->rows ? d->rows + (size_t)(worker * d->x->cols) * slot : NULL;
    loops[d->out->dtype](d, room, first_row(d->a, part), last);
}

fmm_status fmm_spgemm_dots_cpu(const fmm_exec *exec, const fmm_spgemm_dots_call *call)
{
    const fmm_csr *a = call->a, *x = call->x, *y = call->y;
    const fmm_dense *out = call->out;
    const int workers = fmm_spgemm_workers(exec, a->nnz + y->nnz);
    const size_t slot = 2 * fmm_spgemm_width(out->dtype);
    dots d = {.a = a, .x = x, .y = y, .out = out};
    spgemm_memory m = {0};
    /* Twice over the same lines: the first time counts the bytes. */
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        d.x_val = fmm_spgemm_lay(exec, x, call->x_val, out->dtype, &m);
        d.y_val = fmm_spgemm_lay(exec, y, call->y_val, out->dtype, &m);
        d.rows = fmm_spgemm_take(&m, workers * x->cols, slot);
    }
    if (d.rows) memset(d.rows, 0, (size_t)(workers * x->cols) * slot);
    fmm_spgemm_crew(exec, workers, FMM_SPGEMM_PARTS, run_part, &d);
    return FMM_OK;
}
