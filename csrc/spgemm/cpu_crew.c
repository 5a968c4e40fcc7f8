/* Workers, and the memory of a call; see cpu.h.
 *
 *     parallel loop of the caller over [0, workers)      as many ranges as threads that are free
 *     a range      takes the number of a worker, then chunk after chunk until none is left
 *     a number     is a room with an accumulator, which one thread has at a time
 *
 * Two counters deal out everything: whoever adds 1 has what stood there before. A chunk of rows is
 * worked on whole by one thread, so that no result depends on who took which. */
#include "cpu.h"

enum {
    MOST_WORKERS = 256,
    LINE = 64,
    FEW = 1 << 15, /* products that one thread takes alone */
    BLOCK = 16,    /* rows that a worker takes at a time where there is no schedule */
};

static void count_range(int64_t begin, int64_t end, void *ctx)
{
    (void)begin, (void)end;
    atomic_fetch_add_explicit((atomic_int *)ctx, 1, memory_order_relaxed);
}

/* The interface has no function for it, but a parallel loop is cut in as many ranges. */
int fmm_spgemm_workers(const fmm_exec *exec, int64_t products)
{
    if (products < FEW) return 1;
    atomic_int ranges = 0;
    fmm_parallel(exec, MOST_WORKERS, count_range, &ranges);
    return ranges < MOST_WORKERS ? ranges : MOST_WORKERS;
}

/* What the ranges of one loop share. */
typedef struct crew {
    spgemm_body *body;
    void *ctx;
    int workers;
    const int64_t *schedule;
    int64_t rows;
    atomic_int next_worker;
    atomic_llong next_chunk;
} crew;

/* The first row of a chunk, inside [0, rows] whatever the schedule holds. */
static int64_t first_of(const crew *c, int64_t chunk)
{
    const int64_t row =
        c->schedule ? ((const volatile int64_t *)c->schedule)[1 + chunk] : chunk * BLOCK;
    return row < 0 ? 0 : row > c->rows ? c->rows : row;
}

/* A range is not what the loop says but a thread that takes part. Relaxed counters do: what chunks
 * write is seen when the parallel loop ends, and no chunk reads what another one wrote. */
static void work(int64_t begin, int64_t end, void *ctx)
{
    crew *c = ctx;
    (void)begin, (void)end;
    const int worker = atomic_fetch_add_explicit(&c->next_worker, 1, memory_order_relaxed);
    if (worker >= c->workers) return;
    const int64_t chunks = c->schedule ? FMM_SPGEMM_PARTS : (c->rows + BLOCK - 1) / BLOCK;
    int64_t k;
    while ((k = atomic_fetch_add_explicit(&c->next_chunk, 1, memory_order_relaxed)) < chunks)
        c->body(c->ctx, worker, first_of(c, k), first_of(c, k + 1));
}

void fmm_spgemm_crew(const fmm_exec *exec, int workers, const int64_t *schedule, int64_t rows,
                     spgemm_body *body, void *ctx)
{
    crew c = {body, ctx, .workers = workers, .schedule = schedule, .rows = rows};
    if (workers == 1)
        body(ctx, 0, 0, rows); /* nobody to share with */
    else
        fmm_parallel(exec, workers, work, &c);
}

/* The same calls run twice, without a base to count bytes and then with one to lay arrays out, so
 * that sizes are written once and cannot disagree. */
void *fmm_spgemm_take(spgemm_memory *m, int64_t count, size_t bytes)
{
    char *at = m->base ? m->base + m->used : NULL;
    m->used += ((size_t)count * bytes + LINE - 1) / LINE * LINE;
    return at;
}

/* What is lent here is the caller's, who takes it back after the call whatever came of it. */
fmm_status fmm_spgemm_ask(const fmm_exec *exec, size_t bytes, spgemm_memory *m)
{
    void *base = NULL;
    VALID(exec->allocate, "spgemm: exec.allocate must be given");
    *m = (spgemm_memory){0};
    if (!bytes) return FMM_OK;
    const fmm_status status = exec->allocate(exec->owner, bytes, &base);
    REQUIRE(status == FMM_OK, status, "spgemm: no workspace of %zu bytes", bytes);
    m->base = base;
    return FMM_OK;
}
