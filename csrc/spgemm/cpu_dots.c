/* Products of rows of two sparse matrices where a third has entries: the gradients of SpGEMM.
 *
 *     row i of x   .  x  .  x  x  .  .     dense, with a flag where it has an entry
 *     row k of y      (1, y)   (4, y)      for each entry (i, k) of a: one owner each
 *     out          =  x1 y + x4 y          in the order of y's entries
 *
 * It costs as many products as the product whose gradient it is. A flag says where x has an entry,
 * since 0 times an infinity of y would be no 0. Workers take a few rows of a at
 * a time; a result has one owner, who adds in the order of y's entries, so that its bits are the
 * same for any number of threads. */
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

fmm_status fmm_spgemm_dots_cpu(const fmm_exec *exec, const fmm_spgemm_dots_call *call)
{
    const fmm_csr *a = call->a, *x = call->x, *y = call->y;
    const fmm_dense *out = call->out;
    const int workers = fmm_spgemm_workers(exec, a->nnz + y->nnz);
    static spgemm_body *const loops[FMM_DTYPES] = OF_DTYPES(spgemm_dots);
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
    fmm_spgemm_crew(exec, workers, NULL, a->rows, loops[out->dtype], &d);
    return FMM_OK;
}
