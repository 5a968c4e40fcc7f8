/* Threads: several callers on one matrix, and calls that spread over a pool of threads.
 *
 * Both give the bits of a serial call. A thread sanitizer that runs this sees every access. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CALLERS = 4, WORKERS = 3, PIECE = 2, ROUNDS = 2 };

/* ---- a pool that hands out pieces of a range in whatever order threads ask for them ---- */

typedef struct job {
    fmm_range *body;
    void *ctx;
    int64_t count;
    _Atomic int64_t next;
} job;

static void *work(void *arg)
{
    job *j = arg;
    for (int64_t begin; (begin = atomic_fetch_add(&j->next, PIECE)) < j->count;)
        j->body(begin, begin + PIECE < j->count ? begin + PIECE : j->count, j->ctx);
    return NULL;
}

static void pool(int64_t count, fmm_range *body, void *ctx)
{
    job j = {.body = body, .ctx = ctx, .count = count};
    pthread_t threads[WORKERS];
    for (int t = 0; t < WORKERS; t++)
        if (pthread_create(&threads[t], NULL, work, &j)) abort();
    work(&j);
    for (int t = 0; t < WORKERS; t++) pthread_join(threads[t], NULL);
}

/* ---- one call of each operator on shared operands ---- */

typedef struct operands {
    fmm_csr a;
    fmm_dense val, x, q; /* [nnz], [cols, heads, feat], [rows, heads, feat] */
} operands;

typedef struct results {
    fmm_dense y, e, out, lse;
} results;

static operands given;

static results new_results(void)
{
    const int64_t rows = given.a.rows, heads = given.x.heads, feat = given.x.feat;
    return (results){.y = view(FMM_F32, rows, heads, feat, 0, AT_END),
                     .e = view(FMM_F32, given.a.nnz, heads, 1, 0, AT_END),
                     .out = view(FMM_F32, rows, heads, feat, 0, AT_END),
                     .lse = view(FMM_F32, rows, heads, 1, 0, AT_END)};
}

static bool call_all(const results *r, fmm_parallel_for *parallel_for, int algorithm)
{
    const fmm_exec exec = {.device = FMM_CPU, .parallel_for = parallel_for};
    const fmm_attention attention = {.score = FMM_DOT,
                                     .scale = 0.25,
                                     .q = given.q,
                                     .k = given.x,
                                     .v = given.x,
                                     .out = r->out,
                                     .lse = r->lse};
    return fmm_spmm(&exec, &given.a, &given.val, &given.x, &r->y, FMM_SUM, algorithm) == FMM_OK &&
           fmm_sddmm(&exec, &given.a, &given.val, &given.q, &given.x, &r->e, algorithm) == FMM_OK &&
           fmm_attend(&exec, &given.a, &attention, algorithm) == FMM_OK;
}

static bool same(const results *a, const results *b)
{
    const fmm_dense *left[] = {&a->y, &a->e, &a->out, &a->lse};
    const fmm_dense *right[] = {&b->y, &b->e, &b->out, &b->lse};
    for (int k = 0; k < 4; k++)
        if (memcmp(left[k]->data, right[k]->data, (size_t)extent(left[k]) * sizeof(float)))
            return false;
    return true;
}

/* ---- callers side by side ---- */

typedef struct caller {
    results got;
    int algorithm, number;
    bool good;
} caller;

static void *call(void *arg)
{
    caller *c = arg;
    c->good = call_all(&c->got, c->number % 2 ? pool : NULL, c->algorithm);
    /* Each thread has its own message. */
    const fmm_exec exec = {.device = FMM_CPU};
    char expected[64];
    snprintf(expected, sizeof expected, "spmm has no algorithm number %d on cpu", 500 + c->number);
    c->good &= fmm_spmm(&exec, &given.a, NULL, &given.x, &c->got.y, FMM_SUM, 500 + c->number) ==
               FMM_INVALID_ARGUMENT;
    c->good &= strcmp(fmm_last_error(), expected) == 0;
    return NULL;
}

static void side_by_side(const results *serial, int algorithm, const char *name)
{
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    for (int t = 0; t < CALLERS; t++) {
        callers[t] = (caller){.got = new_results(), .algorithm = algorithm, .number = t};
        if (pthread_create(&threads[t], NULL, call, &callers[t])) abort();
    }
    for (int t = 0; t < CALLERS; t++) {
        pthread_join(threads[t], NULL);
        CHECK(callers[t].good, "%s: caller %d", name, t);
        CHECK(same(&callers[t].got, serial), "%s: caller %d has other bits", name, t);
    }
}

/* ---- the registry while others register and read ---- */

static fmm_status nothing(const fmm_exec *exec, const fmm_call *whole)
{
    return (void)exec, (void)whole, FMM_OK;
}

static fmm_algorithm own[CALLERS] = {{.name = "own0", .run = nothing},
                                     {.name = "own1", .run = nothing},
                                     {.name = "own2", .run = nothing},
                                     {.name = "own3", .run = nothing}};

static void *enter(void *arg)
{
    fmm_algorithm *mine = arg;
    if (fmm_register(FMM_SPMM, FMM_CPU, mine) != FMM_OK) mine->number = -1;
    for (int k = 0; fmm_algorithms(FMM_SPMM, FMM_CPU, k); k++) fmm_build_info();
    return NULL;
}

static void registering(void)
{
    pthread_t threads[CALLERS];
    for (int t = 0; t < CALLERS; t++)
        if (pthread_create(&threads[t], NULL, enter, &own[t])) abort();
    for (int t = 0; t < CALLERS; t++) pthread_join(threads[t], NULL);
    int seen = 0;
    const fmm_algorithm *a;
    for (int k = 0; (a = fmm_algorithms(FMM_SPMM, FMM_CPU, k)); k++)
        for (int t = 0; t < CALLERS; t++) seen += a == &own[t] && a->number >= 1000;
    CHECK(seen == CALLERS, "%d of %d registered algorithms are listed", seen, CALLERS);
}

/* Threads that register one name: one of them may. */
static void one_name(void)
{
    enum { NAMES = 40 };
    static fmm_algorithm same_name[NAMES][CALLERS];
    static char name[NAMES][16];
    pthread_t threads[CALLERS];
    for (int n = 0; n < NAMES; n++) {
        snprintf(name[n], sizeof name[n], "name%d", n);
        for (int t = 0; t < CALLERS; t++) {
            same_name[n][t] = (fmm_algorithm){.name = name[n], .run = nothing};
            if (pthread_create(&threads[t], NULL, enter, &same_name[n][t])) abort();
        }
        int entered = 0;
        for (int t = 0; t < CALLERS; t++) {
            pthread_join(threads[t], NULL);
            entered += same_name[n][t].number >= 1000;
        }
        CHECK(entered == 1, "%d threads entered %s", entered, name[n]);
    }
}

int main(void)
{
    for (int k = 0; k < 3; k++) { /* three matrices, so that chunks of a call end elsewhere */
        given.a =
            matrix(k == 2 ? LONG_ROWS : DENSE_ROWS, k == 2 ? 12 : 60 + 40 * k, 50, k & 1, AT_END);
        given.val = view(FMM_F32, given.a.nnz, 1, 1, 0, AT_END);
        given.x = view(FMM_F32, given.a.cols, 2, 33, 0, AT_END);
        given.q = view(FMM_F32, given.a.rows, 2, 33, 0, AT_END);
        fill(&given.val, RANDOM);
        fill(&given.x, RANDOM);
        fill(&given.q, RANDOM);
        const fmm_algorithm *algorithm;
        const int operands_held = held_count;
        const fmm_call asked = {.a = &given.a, .x = &given.x, .val = &given.val};
        for (int n = 0; (algorithm = next_algorithm(FMM_SPMM, &n, &asked));) {
            if (algorithm->number >= 1000) break;
            const results serial = new_results();
            CHECK(call_all(&serial, NULL, algorithm->number), "%s: %s", algorithm->name,
                  fmm_last_error());
            for (int round = 0; round < ROUNDS; round++) {
                side_by_side(&serial, algorithm->number, algorithm->name);
                release_from(operands_held + 4);
            }
            release_from(operands_held);
        }
        release_all();
    }
    registering();
    one_name();
    return finish();
}
