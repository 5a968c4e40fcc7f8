/* The look of the symbolic phase at A and B: what there is to do, and who does it.
 *
 *     B     runs of each row: entries whose columns lie in one word of 64     a pass over B
 *     A     products of each row, and what they would be of B's runs          a pass over A
 *     rows  |--- 1/512 of the products ---|--- 1/512 ---| ...                 a sum over the rows
 *
 * Where values are wanted, too, a whole product may follow, which packs nothing. Then the first
 * pass asks only whether B's columns rise, in one loop over all of idx, and runs are counted when
 * it is known that two phases follow:
 *
 *     idx       3 7 9 | 2 5 | 0 ...     descents: 9 2 and 5 0; both lie between rows, so none is
 *                                       within a row, and columns rise
 *
 * A chunk ends with the row that fills its share, so that a row is never cut, and a hub has a chunk
 * of its own. Chunks depend on the structures alone, not on how many threads there are. */
#include "cpu_symbolic.h"

/* Counts runs of rows [first, last) of B, as compress in cpu_symbolic.c makes them, and whether
 * columns rise in all of them; they do not where one is out of range, -1 here. */
static void look_b(int64_t first, int64_t last, void *ctx)
{
    symbolic *s = ctx;
    bool falls = false;
    int64_t packed = 0;
    for (int64_t k = first; k < last; k++) {
        const int64_t begin = row_begin(s->b, k), end = row_end(s->b, k);
        int64_t runs = 0, before = -1, word = -1;
        for (int64_t q = begin; q < end; q++) {
            const int64_t j = column_of(s->b, q);
            falls |= j <= before;
            if (j < 0) continue;
            runs += j / WORD != word;
            word = j / WORD;
            before = j;
        }
        s->sizes[k] = (spgemm_size){end > begin ? end - begin : 0, runs};
        packed += runs;
    }
    atomic_fetch_add_explicit(&s->packed, packed, memory_order_relaxed);
    if (falls) atomic_store_explicit(&s->falls, true, memory_order_relaxed);
}

/* Counts entries [first, last) of B whose column does not exceed that of the entry before, in
 * whichever row that is, and looks for columns out of range: plain loops over all of idx, which
 * compilers vectorise. Numbers that another thread changes meanwhile are only counted. */
static void look_order(int64_t first, int64_t last, void *ctx)
{
    enum { BLOCK = 1 << 16 };
    symbolic *s = ctx;
    const int32_t *const idx = s->b->idx;
    uint32_t most = 0;
    int64_t descents = 0;
    for (int64_t q = first ? first : 1, next; q < last; q = next) {
        int32_t here = 0;
        next = last - q > BLOCK ? q + BLOCK : last;
        for (; q < next; q++) here += idx[q] <= idx[q - 1];
        descents += here;
    }
    for (int64_t q = first; q < last; q++) most = (uint32_t)idx[q] > most ? (uint32_t)idx[q] : most;
    if (most >= s->b->cols) atomic_store_explicit(&s->falls, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->descents, descents, memory_order_relaxed);
}

/* Takes away the descents that lie between rows [first, last) of B and the rows before them. */
static void look_starts(int64_t first, int64_t last, void *ctx)
{
    symbolic *s = ctx;
    int64_t between = 0;
    for (int64_t k = first; k < last; k++) {
        const int64_t q = row_begin(s->b, k);
        if (q > 0 && q < row_end(s->b, k)) between += s->b->idx[q] <= s->b->idx[q - 1];
    }
    atomic_fetch_sub_explicit(&s->descents, between, memory_order_relaxed);
}

/* Counts products of rows [first, last) of A. Indices that are out of range have none. What is
 * wanted of a row of B lies side by side, since A may want rows in any order; for a whole product
 * its ends are enough. */
static void look_a(int64_t first, int64_t last, void *ctx)
{
    symbolic *s = ctx;
    int64_t run_products = 0;
    for (int64_t i = first; i < last; i++) {
        int64_t products = 0;
        for (int64_t p = row_begin(s->a, i), end = row_end(s->a, i); p < end; p++) {
            const int64_t k = column_of(s->a, p);
            if (k < 0) continue;
            if (s->sizes) {
                products += s->sizes[k].entries;
                run_products += s->sizes[k].runs;
            } else {
                const int64_t entries = row_end(s->b, k) - row_begin(s->b, k);
                products += entries > 0 ? entries : 0;
            }
        }
        s->products[i] = products;
    }
    atomic_fetch_add_explicit(&s->run_products, run_products, memory_order_relaxed);
}

/* How often a column stands in one row of B at most: 1 where columns rise. A sum takes so many
 * terms of one entry of A, which is what decides when sums go aside. One thread counts, since this
 * is for matrices with repeated or unsorted columns alone. */
static int64_t repeats(const fmm_csr *b, int32_t *seen)
{
    int32_t most = 1;
    memset(seen, 0, (size_t)b->cols * sizeof *seen);
    for (int64_t k = 0; k < b->rows; k++) {
        const int64_t begin = row_begin(b, k), end = row_end(b, k);
        for (int64_t q = begin; q < end; q++) {
            const int64_t j = column_of(b, q);
            if (j >= 0 && ++seen[j] > most) most = seen[j];
        }
        for (int64_t q = begin; q < end; q++) {
            const int64_t j = column_of(b, q);
            if (j >= 0) seen[j] = 0;
        }
    }
    return most;
}

/* Each chunk but the last has at least its share of the products and rows. Rows count too, so that
 * many rows without products do not become one chunk. begins[] is how many products come before a
 * chunk: its place in a stage that has a place for each. */
static void cut(symbolic *s, int64_t *schedule)
{
    const int64_t rows = s->a->rows, share = (s->total + rows) / FMM_SPGEMM_PARTS + 1;
    int64_t chunk = 0, products = 0;
    int64_t *const first = schedule + 1;
    first[0] = s->begins[0] = 0;
    for (int64_t i = 0; i < rows; i++) {
        products += s->products[i];
        while (products + i >= share * (chunk + 1) && chunk < FMM_SPGEMM_PARTS - 1) {
            first[++chunk] = i + 1;
            s->begins[chunk] = products;
        }
    }
    while (chunk < FMM_SPGEMM_PARTS) {
        first[++chunk] = rows;
        s->begins[chunk] = products;
    }
}

/* Products of all rows are added in 64 bits, and refused where these are too few. Rows are even if
 * seven of eight have as many products as the one before. */
static fmm_status add_products(symbolic *s)
{
    int64_t alike = 0;
    s->total = 0;
    for (int64_t i = 0; i < s->a->rows; i++) {
        REQUIRE(!__builtin_add_overflow(s->total, s->products[i], &s->total) &&
                    s->total <= INT64_MAX / 2,
                FMM_INVALID_ARGUMENT, "spgemm: more products than int64 counts");
        alike += i > 0 && s->products[i] == s->products[i - 1];
    }
    s->even = alike > s->a->rows - s->a->rows / 8;
    return FMM_OK;
}

/* What packing would leave, too, which a whole product does not ask. */
static fmm_status look_at_runs(const fmm_exec *exec, symbolic *s)
{
    spgemm_memory m;
    TRY(fmm_spgemm_ask(exec, (size_t)s->b->rows * sizeof *s->sizes, &m));
    s->sizes = (spgemm_size *)(void *)m.base;
    fmm_parallel(exec, s->b->rows, look_b, s);
    fmm_parallel(exec, s->a->rows, look_a, s);
    return add_products(s);
}

/* Whether columns repeat is looked at where some do not rise: those that rise differ. */
fmm_status fmm_spgemm_look(const fmm_exec *exec, symbolic *s)
{
    const fmm_csr *a = s->a, *b = s->b;
    int64_t *const most = s->out->schedule;
    spgemm_memory m;
    TRY(fmm_spgemm_ask(exec, (size_t)a->rows * sizeof *s->products, &m));
    s->products = (int64_t *)(void *)m.base;
    if (s->out->with) {
        fmm_parallel(exec, b->nnz, look_order, s);
        fmm_parallel(exec, b->rows, look_starts, s);
        if (s->descents) s->falls = true;
        fmm_parallel(exec, a->rows, look_a, s);
        TRY(add_products(s));
    } else
        TRY(look_at_runs(exec, s));
    *most = 1; /* how often a column stands in a row of B */
    if (s->falls && b->cols) {
        TRY(fmm_spgemm_ask(exec, (size_t)b->cols * sizeof(int32_t), &m));
        *most = repeats(b, (int32_t *)(void *)m.base);
    }
    /* Decided of totals, which are added up anew if what they stand on is counted anew. */
    s->whole = s->out->with && fmm_spgemm_whole_pays(s);
    if (s->out->with && !s->whole) TRY(look_at_runs(exec, s));
    cut(s, s->out->schedule);
    return FMM_OK;
}
