/* Row sums on the CPU: a thread owns whole rows, and adds their entries in storage order.
 *
 *     rows of A    | p p p | p | | p p |     a chunk of rows for each thread
 *     y              sum     sum 0 sum      one owner each
 *
 * So the bits are the same for any number of threads. Indices are checked where they are used, so
 * that the loops are safe whatever ptr and eid hold. */
#include "../cpu/reference.h"

static void rows(int64_t first, int64_t last, void *ctx)
{
    const fmm_call *call = ctx;
    const fmm_dense *val = call->x, *y = call->y;
    for (int64_t i = first; i < last; i++)
        for (int64_t k = 0; k < y->heads * y->feat; k++) {
            const int64_t h = k / y->feat, c = k % y->feat, end = row_end(call->a, i);
            blocked_sum sum = {0}; /* no level adds more terms in a row than the bound allows */
            for (int64_t p = row_begin(call->a, i); p < end; p++) {
                const int64_t edge = edge_of(call->a, p);
                if (edge >= 0) add(&sum, get(val, edge, h, c));
            }
            put(y, i, h, c, total(&sum));
        }
}

static fmm_status reference(const fmm_exec *exec, const fmm_call *call)
{
    fmm_call copy = *call;
    fmm_parallel(exec, call->a->rows, rows, &copy);
    return FMM_OK;
}

static const fmm_algorithm algorithms[] = {
    {1, "reference", "plain loops in double: the specification", "fusedmm", true, NULL, NULL,
     reference},
    FMM_RESERVED(2, "pairs"), /* was removed; programs that hold number 2 run the default */
    {0},
};

/* Which algorithm number 0 stands for. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    (void)call;
    return algorithms;
}

const fmm_registry fmm_rowsum_cpu = {algorithms, choose};
