/* The look of the symbolic phase at A and B: what there is to do, and who does it.
 *
 *     B     whether columns rise in all rows, and rows are of one length      a pass over B
 *           which rows are as the row before, but for a shift                 another, on meshes
 *     A     which rows want such rows alone: C's row is as the one before     a pass over A, there
 *           products of each row                                              a pass over A
 *     rows  |--- 1/512 of the products ---|--- 1/512 ---| ...                 a sum over the rows
 *
 * A chunk ends with the row that fills its share, so that a row is never cut, and a hub has a chunk
 * of its own. Chunks depend on the structures alone, not on how many threads there are. */
#include "cpu_symbolic.h"

/* Looks whether rows [first, last) of B are of one length, how many of them are as long as the row
 * before, and whether columns rise in all of them; they do not where one is out of range. Columns
 * that are no larger than the one before are counted across rows, in vectors, and those that begin
 * a row are taken off. */
static void look_b(int64_t first, int64_t last, void *ctx)
{
    symbolic *s = ctx;
    const int32_t *const idx = s->b->idx;
    const uint32_t cols = (uint32_t)(s->b->cols < INT32_MAX ? s->b->cols : INT32_MAX);
    const int64_t begin = row_begin(s->b, first), end = row_begin(s->b, last), each = s->each;
    const uint64_t *const ptr = (const uint64_t *)s->b->ptr; /* a difference may be any */
    int64_t falls = 0, following = 0;
    uint32_t outside = 0;
    bool even = true;
    for (int64_t k = first; k < last; k++) even &= s->b->ptr[k] == k * each;
    for (int64_t k = first > 0 ? first : 1; k < last; k++)
        following += ptr[k + 1] - ptr[k] == ptr[k] - ptr[k - 1];
    atomic_fetch_add_explicit(&s->following, following, memory_order_relaxed);
    if (!even) atomic_store_explicit(&s->uneven, true, memory_order_relaxed);
    for (int64_t q = begin; q < end; q++) outside |= (uint32_t)idx[q] >= cols;
    if (!even || each != 1) {
        for (int64_t q = begin + 1; q < end; q++) falls += idx[q] <= idx[q - 1];
        for (int64_t k = first, q = begin, next; k < last; k++, q = next) {
            next = row_end(s->b, k);
            if (q > begin && next > q) falls -= idx[q] <= idx[q - 1];
        }
    }
    if (falls || outside) atomic_store_explicit(&s->falls, true, memory_order_relaxed);
}

/* Whether row k of B is the one before, shifted: as long, with all columns further by one number,
 * which may be 0 or less. An empty row is like no other. */
static bool shifted(const fmm_csr *b, int64_t k)
{
    const int64_t before = row_begin(b, k - 1), begin = row_begin(b, k);
    const int64_t entries = row_end(b, k) - begin;
    if (entries < 1 || begin - before != entries) return false;
    const uint32_t further = (uint32_t)b->idx[begin] - (uint32_t)b->idx[before];
    uint32_t other = 0;
    for (int64_t q = 1; q < entries; q++)
        other |= (uint32_t)b->idx[begin + q] - (uint32_t)b->idx[before + q] - further;
    return !other;
}

/* Looks at rows [first, last) of B, whose columns rise: the upper half of a shape is its row, or
 * that of the row before if this is one with it. */
static void look_shapes(int64_t first, int64_t last, void *ctx)
{
    symbolic *s = ctx;
    int64_t following = 0;
    for (int64_t k = first; k < last; k++) {
        const int64_t begin = row_begin(s->b, k);
        const bool one = k > 0 && shifted(s->b, k);
        s->shapes[k] = (uint64_t)(k - one) << 32;
        if (begin < row_end(s->b, k)) s->shapes[k] += (uint32_t)s->b->idx[begin];
        following += one;
    }
    atomic_fetch_add_explicit(&s->following, following, memory_order_relaxed);
}

/* Whether row i of C is that before, shifted: its entries of A want rows of B that are so, all by
 * the same number. In R A, where R joins four rows, they are four rows of B further. A shape as one
 * number has its column in the lower half, so that a difference is that of columns where both are
 * alike. */
static bool follows_before(const symbolic *s, int64_t i)
{
    const int64_t before = row_begin(s->a, i - 1), begin = row_begin(s->a, i);
    const int64_t entries = row_end(s->a, i) - begin;
    uint64_t other = 0, further = 0;
    if (entries < 1 || begin - before != entries) return false;
    for (int64_t p = 0; p < entries && !other; p++) {
        const int64_t k = column_of(s->a, begin + p), last = column_of(s->a, before + p);
        if (k < 0 || last < 0) return false;
        const uint64_t step = s->shapes[k] - s->shapes[last];
        if (!p) further = step;
        other = step ^ further;
    }
    return !other && (int64_t)further == (int32_t)further;
}

/* Looks which of rows [first, last) of C follow the row before. */
static void look_following(int64_t first, int64_t last, void *ctx)
{
    const symbolic *const s = ctx;
    for (int64_t i = first; i < last; i++) s->follows[i] = i > 0 && follows_before(s, i);
}

/* Keeps the rows that follow each other in runs so long that it pays to learn from one
 * (cpu_alike.inc); the others no longer count. Answers how many rows such runs have. */
static int64_t keep_long_runs(uint8_t *follows, int64_t rows)
{
    int64_t found = 0;
    for (int64_t i = 0, next; i < rows; i = next) {
        const uint8_t *const other = memchr(follows + i + 1, 0, (size_t)(rows - i - 1));
        next = other ? other - follows : rows;
        if (next - i < FMM_SPGEMM_ALIKE)
            memset(follows + i, 0, (size_t)(next - i));
        else
            found += next - i;
    }
    return found;
}

/* Counts products of rows [first, last) of A. Indices that are out of range have none. What a
 * forged ptr of B says is cut off once for each row, where each entry had all of B. */
static void look_a(int64_t first, int64_t last, void *ctx)
{
    const symbolic *s = ctx;
    const volatile int64_t *const ptr = s->b->ptr;
    const uint8_t *const follows = s->follows;
    const uint64_t each = (uint64_t)s->each, nnz = (uint64_t)s->b->nnz;
    for (int64_t i = first; i < last; i++) {
        const int64_t begin = row_begin(s->a, i), end = row_end(s->a, i);
        const uint64_t entries = begin < end ? (uint64_t)(end - begin) : 0;
        uint64_t products = entries * each, most;
        if (follows && follows[i] && i > first) { /* as many as before */
            s->at[i] = s->at[i - 1];
            continue;
        }
        if (!each) {
            for (int64_t p = begin; p < end; p++) {
                const int64_t k = column_of(s->a, p);
                if (k >= 0) products += (uint64_t)ptr[k + 1] - (uint64_t)ptr[k];
            }
        }
        if (!__builtin_mul_overflow(entries, nnz, &most) && products > most) products = most;
        s->at[i] = (int64_t)(products & INT64_MAX);
    }
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
 * many rows without products do not become one chunk. */
static void cut(const symbolic *s, int64_t *first)
{
    const int64_t rows = s->a->rows, share = (s->total + rows) / FMM_SPGEMM_PARTS + 1;
    int64_t chunk = 0, before = 0;
    first[0] = 0;
    for (int64_t i = 0; i < rows; i++) {
        before += s->at[i];
        while (before + i >= share * (chunk + 1) && chunk < FMM_SPGEMM_PARTS - 1)
            first[++chunk] = i + 1;
    }
    while (chunk < FMM_SPGEMM_PARTS) first[++chunk] = rows;
}

/* Products of all rows are added in 64 bits, and refused where these are too few. Rows are alike if
 * half of them have as many products as the one before: of meshes 0.73 and more do, of graphs 0.19
 * and fewer. */
static fmm_status add_products(symbolic *s)
{
    int64_t alike = 0, last = -1, longest = 0;
    uint64_t total = 0; /* of two numbers without a sign in 64 bits: it does not wrap */
    for (int64_t i = 0; i < s->a->rows; i++) {
        const int64_t products = s->at[i];
        total += (uint64_t)products;
        VALID(total <= INT64_MAX / 2, "spgemm: more products than int64 counts");
        alike += products == last;
        last = products;
        longest = products > longest ? products : longest;
    }
    s->total = (int64_t)total;
    s->longest = longest;
    s->alike = alike > s->a->rows / 2;
    return FMM_OK;
}

/* Shapes of B's rows, and memory for what they say of A's. Rows of a graph are seldom as long as
 * the row before, and then nothing is looked for; nor where rows have one entry, since to add that
 * costs less than to find out; nor beyond the memory that a call may take. */
static fmm_status find_shapes(const fmm_exec *exec, symbolic *s)
{
    const int64_t half = s->b->rows / 2, as_long = s->following;
    spgemm_memory m = {0};
    uint8_t *follows = NULL;
    s->following = 0;
    if (as_long <= half || s->falls || s->each == 1 || s->out->want <= FMM_SPGEMM_COUNTS)
        return FMM_OK;
    for (int pass = 0; pass < 2; pass++) {
        if (s->lent + m.used > fmm_spgemm_allowed(s)) return FMM_OK;
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        s->shapes = fmm_spgemm_take(&m, s->b->rows, sizeof *s->shapes);
        follows = fmm_spgemm_take(&m, s->a->rows, 1);
    }
    s->lent += m.used;
    fmm_parallel(exec, s->b->rows, look_shapes, s);
    for (int64_t k = 1; k < s->b->rows; k++) {
        const uint64_t like = s->shapes[k - 1] >> 32 << 32;
        if (s->shapes[k] >> 32 < (uint64_t)k) s->shapes[k] = like + (uint32_t)s->shapes[k];
    }
    if (s->following <= half) return FMM_OK;
    s->follows = follows;
    fmm_parallel(exec, s->a->rows, look_following, s);
    if (keep_long_runs(follows, s->a->rows) <= s->a->rows / 2) s->follows = NULL;
    return FMM_OK;
}

/* Counts, adds up and cuts, in memory that the caller lends. How often a column repeats is looked
 * at where some do not rise, since those that rise differ from each other. */
fmm_status fmm_spgemm_look(const fmm_exec *exec, symbolic *s)
{
    const fmm_csr *a = s->a, *b = s->b;
    int64_t *const most = s->out->schedule;
    spgemm_memory m, seen;
    s->lent = (size_t)a->rows * sizeof *s->at;
    TRY(fmm_spgemm_ask(exec, s->lent, &m));
    s->at = (int64_t *)(void *)m.base;
    s->each = b->rows ? b->nnz / b->rows : 0;
    fmm_parallel(exec, b->rows, look_b, s);
    if (s->uneven || s->each * b->rows != b->nnz) s->each = 0;
    TRY(find_shapes(exec, s));
    fmm_parallel(exec, a->rows, look_a, s);
    TRY(add_products(s));
    *most = 1; /* how often a column stands in a row of B */
    if (s->falls && b->cols) {
        TRY(fmm_spgemm_ask(exec, (size_t)b->cols * sizeof(int32_t), &seen));
        s->lent += (size_t)b->cols * sizeof(int32_t);
        *most = repeats(b, (int32_t *)(void *)seen.base);
    }
    cut(s, s->out->schedule + 1);
    return FMM_OK;
}
