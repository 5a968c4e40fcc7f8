/* SpGEMM on the CPU: all algorithms x dtypes x structures against long double sums, the same bits
 * from any number of threads, and a pool of tables that has too few for them. */
#include "test.h"

#include <pthread.h>

enum { THREADS = 6, MOST_COLUMNS = 4096 };

/* ---- threads, each with one range ---- */

typedef struct range {
    int64_t begin, end;
    fmm_range *body;
    void *ctx;
} range;

static void *run_range(void *of)
{
    const range *r = of;
    r->body(r->begin, r->end, r->ctx);
    return NULL;
}

static void in_threads(int64_t count, fmm_range *body, void *ctx)
{
    pthread_t threads[THREADS];
    range ranges[THREADS];
    for (int t = 0; t < THREADS; t++) {
        ranges[t] = (range){count * t / THREADS, count * (t + 1) / THREADS, body, ctx};
        if (ranges[t].begin < ranges[t].end)
            pthread_create(&threads[t], NULL, run_range, &ranges[t]);
    }
    for (int t = 0; t < THREADS; t++)
        if (ranges[t].begin < ranges[t].end) pthread_join(threads[t], NULL);
}

/* ---- both phases ---- */

static void *lent[8];
static int lent_count;
static int wholes; /* products whose values came with their structure */

static size_t largest; /* piece of memory that was lent */
static size_t refused; /* bytes that are not lent, nor more, but for 0, */
static int refusals;   /* and how often */

static fmm_status lend(void *owner, size_t bytes, void **to)
{
    (void)owner;
    if (refused && bytes >= refused) return refusals++, FMM_OUT_OF_MEMORY;
    if (bytes > largest) largest = bytes;
    *to = lent[lent_count++] = aligned_alloc(16, (bytes + 15) / 16 * 16);
    return *to ? FMM_OK : FMM_OUT_OF_MEMORY;
}

static void give_back(void)
{
    while (lent_count) free(lent[--lent_count]);
}

typedef struct found {
    int32_t *idx;
    void *val;
    size_t width;
} found;

static int32_t *columns(void *owner, int64_t nnz)
{
    return ((found *)owner)->idx = guarded((size_t)nnz * sizeof(int32_t), AT_END);
}

static void *values(void *owner, int64_t nnz)
{
    found *f = owner;
    return f->val = guarded((size_t)nnz * f->width, AT_END);
}

typedef struct product {
    fmm_csr a, b, c;
    fmm_dense a_val, c_val;
    int64_t schedule[FMM_SPGEMM_SCHEDULE];
    fmm_spgemm of;
} product;

static void symbolic(product *p, fmm_parallel_for *parallel)
{
    const fmm_exec exec = {.device = FMM_CPU, .allocate = lend, .parallel_for = parallel};
    int64_t *ptr = guarded((size_t)(p->a.rows + 1) * sizeof *ptr, AT_END);
    found found = {0};
    int32_t *colours = guarded((size_t)p->a.rows * sizeof *colours, AT_END);
    const fmm_spgemm_pattern pattern = {.want = FMM_SPGEMM_SORTED,
                                        .ptr = ptr,
                                        .schedule = p->schedule,
                                        .columns = columns,
                                        .owner = &found};
    CHECK(fmm_spgemm_symbolic(&exec, &p->a, &p->b, &pattern) == FMM_OK, "%s", fmm_last_error());
    p->c = (fmm_csr){
        .rows = p->a.rows, .cols = p->b.cols, .nnz = ptr[p->a.rows], .ptr = ptr, .idx = found.idx};
    CHECK(fmm_spgemm_colours(&exec, &p->c, colours) == FMM_OK, "%s", fmm_last_error());
    p->of.b = &p->b;
    p->of.c = &p->c;
    p->of.schedule = p->schedule;
    p->of.colours = colours;
    give_back();
}

static void numeric(const product *p, int algorithm, fmm_parallel_for *parallel, const char *text)
{
    const fmm_exec exec = {.device = FMM_CPU, .allocate = lend, .parallel_for = parallel};
    poison(&p->c_val);
    CHECK(fmm_spgemm_numeric(&exec, &p->a, &p->a_val, &p->of, &p->c_val, algorithm) == FMM_OK,
          "%s: %s", text, fmm_last_error());
    give_back();
}

/* Values that the symbolic phase computes on its way have the bits of the numeric phase. */
static void whole(const product *p, fmm_parallel_for *parallel, const char *text)
{
    const fmm_exec exec = {.device = FMM_CPU, .allocate = lend, .parallel_for = parallel};
    const fmm_dtype dtype = p->c_val.dtype;
    const fmm_spgemm_values with = {p->a_val, p->of.b_val, dtype, values};
    int64_t schedule[FMM_SPGEMM_SCHEDULE];
    found found = {.width = width_of[dtype]};
    const fmm_spgemm_pattern pattern = {
        .want = FMM_SPGEMM_SORTED,
        .ptr = guarded((size_t)(p->a.rows + 1) * sizeof(int64_t), AT_END),
        .schedule = schedule,
        .columns = columns,
        .owner = &found,
        .with = &with};
    CHECK(fmm_spgemm_symbolic(&exec, &p->a, &p->b, &pattern) == FMM_OK, "%s", fmm_last_error());
    CHECK(!memcmp(pattern.ptr, p->c.ptr, (size_t)(p->a.rows + 1) * sizeof(int64_t)) &&
              !memcmp(found.idx, p->c.idx, (size_t)p->c.nnz * sizeof(int32_t)),
          "%s: another structure in one pass", text);
    if (found.val) wholes++;
    CHECK(!found.val || !memcmp(found.val, p->c_val.data, (size_t)p->c.nnz * found.width),
          "%s: other bits in one pass", text);
    give_back();
}

/* The same once more without the stage, which is the largest piece of memory: rows are counted and
 * found again. */
static void both_wholes(const product *p, fmm_parallel_for *parallel, const char *text)
{
    largest = 0, refusals = 0;
    whole(p, parallel, text);
    refused = largest;
    whole(p, parallel, text);
    CHECK(!refused || refusals == 1, "%s: %d pieces were refused", text, refusals);
    refused = 0;
}

/* Row i of C against sums in long double. */
static int64_t wrong_in_row(const product *p, int64_t i)
{
    static long double sums[MOST_COLUMNS], magnitudes[MOST_COLUMNS];
    static int64_t terms[MOST_COLUMNS];
    int64_t wrong = 0, found = 0;
    for (int64_t j = 0; j < p->b.cols; j++) sums[j] = magnitudes[j] = 0, terms[j] = 0;
    for (int64_t s = p->a.ptr[i]; s < p->a.ptr[i + 1]; s++)
        for (int64_t q = p->b.ptr[p->a.idx[s]]; q < p->b.ptr[p->a.idx[s] + 1]; q++) {
            const long double term = (long double)get(&p->a_val, edge(&p->a, s), 0, 0) *
                                     get(&p->of.b_val, edge(&p->b, q), 0, 0);
            sums[p->b.idx[q]] += term;
            magnitudes[p->b.idx[q]] += fabsl(term);
            terms[p->b.idx[q]]++;
        }
    for (int64_t j = 0; j < p->b.cols; j++) found += terms[j] > 0;
    if (found != p->c.ptr[i + 1] - p->c.ptr[i]) return 1;
    for (int64_t r = p->c.ptr[i]; r < p->c.ptr[i + 1]; r++) {
        const int32_t j = p->c.idx[r];
        wrong += (r > p->c.ptr[i] && p->c.idx[r - 1] >= j) || !terms[j] ||
                 !within(get(&p->c_val, r, 0, 0), sums[j], magnitudes[j], terms[j], p->c_val.dtype);
    }
    return wrong;
}

static void run(structure kind, structure other, int64_t rows, int64_t inner, int64_t cols,
                fmm_dtype dtype, content data, int turn)
{
    static float bits[1 << 20];
    product p = {.a = matrix(kind, rows, inner, turn % 2, (side)(turn % 2)),
                 .b = matrix(other, inner, cols, turn / 2 % 2, AT_END)};
    p.a_val = view(dtype, p.a.nnz, 1, 1, turn % 3, AT_END);
    p.of.b_val = view(dtype, p.b.nnz, 1, 1, 0, AT_END);
    if (dtype == FMM_F16 && data == POWERS) data = RANDOM; /* those of long rows are too large */
    fill(&p.a_val, data);
    fill(&p.of.b_val, data);
    symbolic(&p, turn % 2 ? in_threads : NULL);
    p.c_val = view(dtype, p.c.nnz, 1, 1, 0, AT_END);
    const fmm_call call = {.a = &p.a, .val = &p.a_val, .y = &p.c_val, .own = &p.of};
    const fmm_algorithm *algorithm;
    for (int k = 0; (algorithm = next_algorithm(FMM_SPGEMM, &k, &call));) {
        char text[128];
        snprintf(text, sizeof text, "%s %s structures %d %d [%" PRId64 ", %" PRId64 "]",
                 algorithm->name, dtype_of[dtype], (int)kind, (int)other, rows, cols);
        const size_t bytes = (size_t)extent(&p.c_val) * width_of[dtype];
        int64_t wrong = 0;
        numeric(&p, algorithm->number, NULL, text);
        for (int64_t i = 0; i < rows; i++) wrong += wrong_in_row(&p, i);
        CHECK(!wrong, "%s: %" PRId64 " entries", text, wrong);
        if (bytes > sizeof bits || !bytes) continue;
        memcpy(bits, p.c_val.data, bytes);
        numeric(&p, algorithm->number, in_threads, text);
        CHECK(!memcmp(bits, p.c_val.data, bytes), "%s: other bits in threads", text);
        if (strcmp(algorithm->name, "kkspeed")) continue;
        both_wholes(&p, NULL, text);
        both_wholes(&p, in_threads, text);
    }
    release_all();
}

/* Many rows with more entries than a first table has room for: what C's size allows for the pool
 * are fewer tables than threads, which wait for each other. */
static void scarce_tables(void)
{
    for (int turn = 0; turn < 4; turn++)
        run(DENSE_ROWS, LONG_ROWS, 60, 40, MOST_COLUMNS, FMM_F32, RANDOM, turn);
}

int main(void)
{
    int turn = 0;
    for (int dtype = 0; dtype < FMM_DTYPES; dtype++)
        for (int kind = EMPTY_ROWS; kind <= LONG_ROWS; kind++)
            for (int other = EMPTY_ROWS; other <= LONG_ROWS; other++, turn++) {
                if (kind == HUB || other == HUB) continue;
                run((structure)kind, (structure)other, 1 + turn % 13, 1 + turn % 17,
                    1 + turn * 37 % 900, (fmm_dtype)dtype, (content)(turn % CONTENTS), turn);
            }
    run(HUB, DENSE_ROWS, 3, 40, 70, FMM_F64, CONSTANT, 0);
    run(HUB, DENSE_ROWS, 3, 40, 70, FMM_F32, CONSTANT, 1);
    run(EMPTY_ROWS, EMPTY_ROWS, 0, 5, 4, FMM_F32, RANDOM, 0);
    run(ALL_EMPTY, ALL_EMPTY, 5, 0, 0, FMM_F32, RANDOM, 0);
    scarce_tables();
    CHECK(wholes > 0, "no product was computed in one pass");
    return finish();
}
