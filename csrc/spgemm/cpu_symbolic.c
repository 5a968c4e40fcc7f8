/* The symbolic phase: where C has entries, and which rows are a chunk.
 *
 *     look      products of each row of A, whether columns of B rise        one pass over A and B
 *     chunks    rows of about equal products                                a sum over the rows
 *     pack      columns of B in one word become (word, bits)       if all in all it saves 15 %
 *     count     bits of a row's words, all products ored together           one pass over products
 *     columns   the same once more; the words are then read out             one pass over products
 *
 * The stage spares the pass that counts: columns are read out at once, and copied when their number
 * is known. It has as many places as a call has memory for, and workers take blocks of them:
 *
 *     stage     | rows 0..8 | rows 30..35 | rows 9..12 |        ptr: how many columns each row has
 *     C         | rows 0..8 | rows 9..12 | ... | rows 30..35 |  sizes are known: C has memory
 *
 * Rows that found no place are counted, and found again for C.
 *
 *     products of row i     B's row k   (3, ..1..1..)  (7, 1.......)
 *                           B's row k'  (3, 1....1..)  (9, ...1....)
 *     a worker's words      [3] = 1.1..1..   [7] = 1.......   [9] = ...1....   touched: 3, 7, 9
 *
 * A worker's words are zero between rows: only the touched ones are read and cleared. Sorted
 * columns cost little, because the touched words are sorted by a second level of bits, each of
 * which stands for a word. B's indices are read once, checked, and used; a row's columns have the
 * room that was counted for them, whatever another thread writes to B meanwhile. */
#include "cpu_symbolic.h"

#include <inttypes.h>

enum {
    SAVES = 85,         /* percent of the products that are left where compression pays */
    FETCHED = 64 << 10, /* entries of B from which its rows are fetched ahead */
    FOLLOWS = -2,       /* where a row stands in the stage that is the row before, shifted */
};

/* ---- B's columns, packed ---- */

/* Counts runs of rows [first, last) of B: entries one after another whose columns lie in one word.
 */
static void count_runs(int64_t first, int64_t last, void *ctx)
{
    const symbolic *s = ctx;
    for (int64_t k = first; k < last; k++) {
        int64_t runs = 0, word = -1;
        for (int64_t q = row_begin(s->b, k), end = row_end(s->b, k); q < end; q++) {
            const int64_t j = column_of(s->b, q);
            runs += j >= 0 && j / WORD != word;
            word = j < 0 ? word : j / WORD;
        }
        s->runs[k + 1] = runs;
    }
}

/* Adds up what is multiplied for entries [first, last) of A where B is packed. */
static void add_runs(int64_t first, int64_t last, void *ctx)
{
    symbolic *s = ctx;
    int64_t products = 0;
    for (int64_t p = first; p < last; p++) {
        const int64_t k = column_of(s->a, p);
        if (k >= 0) products += s->runs[k + 1] - s->runs[k];
    }
    atomic_fetch_add_explicit(&s->run_products, products, memory_order_relaxed);
}

/* Compresses rows [first, last) of B: neighbours in one word become one pair of word and bits. A
 * row has the places that were counted for it, and fills them: where B was written to since, pairs
 * are left out, or the first column stands for those that are missing. */
static void compress(int64_t first, int64_t last, void *ctx)
{
    symbolic *s = ctx;
    for (int64_t k = first; k < last; k++) {
        int64_t at = s->runs[k], word = -1;
        const int64_t stop = s->runs[k + 1];
        for (int64_t q = row_begin(s->b, k), end = row_end(s->b, k); q < end; q++) {
            const int64_t j = column_of(s->b, q);
            if (j < 0) continue;
            if (word != j / WORD) {
                if (at == stop) break;
                word = j / WORD;
                s->run_words[at] = (int32_t)word;
                s->run_bits[at++] = 0;
            }
            s->run_bits[at - 1] |= UINT64_C(1) << j % WORD;
        }
        for (; at < stop; at++) s->run_words[at] = 0, s->run_bits[at] = 1; /* B has changed */
    }
}

/* Packs B where that pays. */
static fmm_status pack(const fmm_exec *exec, symbolic *s)
{
    const int64_t rows = s->b->rows;
    spgemm_memory m;
    s->lent += (size_t)(rows + 1) * sizeof *s->runs;
    TRY(fmm_spgemm_ask(exec, (size_t)(rows + 1) * sizeof *s->runs, &m));
    s->runs = (int64_t *)(void *)m.base;
    fmm_parallel(exec, rows, count_runs, s);
    s->runs[0] = 0;
    for (int64_t k = 0; k < rows; k++) s->runs[k + 1] += s->runs[k];
    fmm_parallel(exec, s->a->nnz, add_runs, s);
    if (s->run_products + s->b->nnz > s->total / 100 * SAVES) return FMM_OK;
    m = (spgemm_memory){0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        s->run_bits = fmm_spgemm_take(&m, s->runs[rows], sizeof *s->run_bits);
        s->run_words = fmm_spgemm_take(&m, s->runs[rows], sizeof *s->run_words);
    }
    s->lent += m.used;
    fmm_parallel(exec, rows, compress, s);
    return FMM_OK;
}

/* ---- one row ---- */

/* Ors bits into a word, and lists the word if it was empty. Without a branch: whether a word is new
 * cannot be foreseen on most graphs, and its number is written in either case. */
FMM_INLINE int64_t touch(uint64_t *words, int32_t *touched, int64_t count, uint32_t word,
                         uint64_t bits)
{
    const uint64_t old = words[word];
    words[word] = old | bits;
    touched[count] = (int32_t)word;
    return count + !old;
}

/* Ors the products of row i together; returns how many words they touch. Of B as it is, or as it
 * was packed: then each step ors up to 64 columns at once. */
static int64_t mark(const symbolic *s, const spgemm_bits *room, int64_t i)
{
    uint64_t *const words = room->words;
    int32_t *const touched = room->touched;
    const int64_t *const starts = s->run_bits ? s->runs : s->b->ptr;
    const int32_t *const columns = s->run_bits ? s->run_words : s->b->idx;
    int64_t count = 0;
    for (int64_t p = row_begin(s->a, i), end = row_end(s->a, i); p < end; p++) {
        const int64_t k = column_of(s->a, p);
        if (p < s->fetch_end) fmm_spgemm_fetch(s->a, p, starts, columns, s->run_bits, 8);
        if (k < 0) continue;
        if (s->run_bits) {
            for (int64_t r = s->runs[k], stop = s->runs[k + 1]; r < stop; r++)
                count = touch(words, touched, count, (uint32_t)s->run_words[r], s->run_bits[r]);
            continue;
        }
        const uint64_t cols = (uint64_t)s->b->cols;
        for (int64_t q = row_begin(s->b, k), stop = row_end(s->b, k); q < stop; q++) {
            const uint64_t j = (uint64_t)((const volatile int32_t *)s->b->idx)[q];
            if (j >= cols) continue;
            count = touch(words, touched, count, (uint32_t)(j / WORD), UINT64_C(1) << j % WORD);
        }
    }
    return count;
}

/* The number of columns of a row: bits of the words that it touched, which are cleared. */
static int64_t count_row(const spgemm_bits *room, int64_t touched)
{
    int64_t count = 0;
    for (int64_t t = 0; t < touched; t++) {
        uint64_t *word = &room->words[room->touched[t]];
        count += fmm_spgemm_bits_of(*word);
        *word = 0;
    }
    return count;
}

/* Writes the columns of one word to [at, end) and clears it. There is an end, since the row may
 * have more columns by now than were counted. */
FMM_INLINE int32_t *read_out(const spgemm_bits *room, int32_t word, int32_t *at, const int32_t *end)
{
    uint64_t bits = room->words[word];
    room->words[word] = 0;
    do { /* a word that was touched has a bit, most often just one */
        if (at == end) break;
        *at++ = word * WORD + __builtin_ctzll(bits);
        bits &= bits - 1;
    } while (bits);
    return at;
}

/* Reads out the words that a row touched and clears them; the columns are written to [at, end), and
 * rise. Returns their end. The second level of bits sorts words. The groups between the first and
 * the last that a row touched are looked at, so that rows of a band on a wide matrix look at few.
 * Reading words in the order of touching was no faster. Sorting a few words by insertion took 0.85
 * of a plan's time on a 5-point grid and 0.96 to 1 elsewhere: too little for another way. */
static int32_t *read_row(const spgemm_bits *room, int64_t touched, int32_t *at, const int32_t *end)
{
    int32_t low = INT32_MAX, high = -1;
    for (int64_t t = 0; t < touched; t++) {
        const int32_t word = room->touched[t], group = word / WORD;
        room->summary[group] |= UINT64_C(1) << word % WORD;
        low = group < low ? group : low;
        high = group > high ? group : high;
    }
    for (int32_t group = low; group <= high; group++) {
        uint64_t words = room->summary[group];
        room->summary[group] = 0;
        for (; words; words &= words - 1)
            at = read_out(room, group * WORD + __builtin_ctzll(words), at, end);
    }
    return at;
}

/* A row of one entry is equal to one of B, if all columns of B rise: a product of a column and a
 * row so knows its size without walking over it. */
int64_t fmm_spgemm_count(const symbolic *s, const spgemm_bits *room, int64_t i)
{
    const bool lone = !s->falls && row_end(s->a, i) == row_begin(s->a, i) + 1;
    return lone ? s->at[i] : count_row(room, mark(s, room, i));
}

bool fmm_spgemm_block(symbolic *s, spgemm_bits *room, int64_t most)
{
    if (s->taken >= s->capacity) return false;
    const int64_t block = most > SPGEMM_BLOCK ? most : SPGEMM_BLOCK;
    room->next = atomic_fetch_add_explicit(&s->taken, block, memory_order_relaxed);
    const int64_t end = room->next + block;
    room->end = end < s->capacity ? end : s->capacity;
    return room->end - room->next >= most;
}

/* Row i of C is the row before, shifted: it has as many columns, and they are as far on as the
 * first of the products is. */
static void follow(const symbolic *s, int64_t i)
{
    const int64_t *const ptr = s->out->ptr;
    const int64_t k = column_of(s->a, row_begin(s->a, i)), n = ptr[i + 1] - ptr[i];
    const int64_t before = column_of(s->a, row_begin(s->a, i - 1));
    const bool known = k >= 0 && before >= 0;
    const uint32_t further = known ? (uint32_t)(s->shapes[k] - s->shapes[before]) : 0;
    int32_t *restrict const to = s->idx + ptr[i];
    const int32_t *restrict const from = to - n;
    for (int64_t x = 0; x < n; x++) to[x] = (int32_t)((uint32_t)from[x] + further);
}

/* Finds the columns of rows, for the stage or for C. In C zeros stand for columns that are missing
 * because B changed meanwhile. */
static void find_rows(void *ctx, int worker, int64_t first, int64_t last)
{
    symbolic *s = ctx;
    spgemm_bits room = s->rooms[worker];
    for (int64_t i = first; i < last; i++) {
        int64_t most;
        if (s->follows && s->follows[i] && i > first && !s->idx) {
            s->out->ptr[i + 1] = s->out->ptr[i];
            s->at[i] = FOLLOWS;
            continue;
        }
        const int64_t begin = fmm_spgemm_begin(s, &room, i, &most);
        if (begin < 0) continue;
        int32_t *const to = (s->idx ? s->idx : s->stage) + begin, *const end = to + most;
        int32_t *next = read_row(&room, mark(s, &room, i), to, end);
        if (!s->idx) fmm_spgemm_end(s, &room, i, next - to);
        while (s->idx && next < end) *next++ = 0;
    }
    s->rooms[worker] = room;
}

/* Writes rows of C: they come from the stage, or are found again where they had no place there. */
static void give_rows(void *ctx, int worker, int64_t first, int64_t last)
{
    const symbolic *s = ctx;
    const int64_t *const ptr = s->out->ptr;
    spgemm_bits room = s->rooms[worker]; /* no line of memory that other workers write to */
    room.count = -1;
    for (int64_t i = first, next; i < last; i = next) {
        const int64_t from = s->at[i], to = ptr[i];
        next = i + 1;
        if (from == FOLLOWS) {
            follow(s, i);
        } else if (from < 0) {
            while (next < last && s->at[next] == -1) next++;
            s->find(ctx, worker, i, next);
            room.count = -1; /* it sorted rows, too */
        } else if (s->sort) {
            fmm_spgemm_sort_row(s, &room, i, from);
        } else {
            while (next < last && s->at[next] - from == ptr[next] - to) next++;
            fmm_spgemm_copy(s, i, next, from);
        }
    }
}

/* ---- the phases ---- */

/* Words for each worker, in a whole product places of a row's columns. */
static fmm_status lay_out_rooms(const fmm_exec *exec, symbolic *s, int workers)
{
    const int64_t words = s->b->cols / WORD + 1; /* a last one may be empty: there is always one */
    spgemm_memory m = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        s->rooms = fmm_spgemm_take(&m, workers, sizeof *s->rooms);
        for (int w = 0; w < workers; w++) {
            spgemm_bits room = {.width = words, .alike = s->alike, .count = -1};
            room.words = fmm_spgemm_take(&m, words, sizeof *room.words);
            room.summary = fmm_spgemm_take(&m, words / WORD + 1, sizeof *room.summary);
            room.touched = fmm_spgemm_take(&m, words + 1, sizeof *room.touched);
            room.places = fmm_spgemm_take(&m, s->own, sizeof *room.places);
            if (!pass) continue;
            s->rooms[w] = room;
            memset(room.words, 0, (size_t)((char *)room.touched - (char *)room.words));
        }
    }
    s->lent += m.used;
    return FMM_OK;
}

/* Bytes that a call may take in all: a quarter of the larger factor, and some. */
size_t fmm_spgemm_allowed(const symbolic *s)
{
    const int64_t nnz = s->a->nnz > s->b->nnz ? s->a->nnz : s->b->nnz;
    const size_t width = s->out->with ? fmm_spgemm_width(s->out->with->dtype) : 0;
    return SPGEMM_LENT + (size_t)nnz / 4 * (sizeof *s->idx + width);
}

static fmm_status ask_stage(const fmm_exec *exec, symbolic *s, int64_t places)
{
    spgemm_memory m = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(fmm_spgemm_ask(exec, m.used, &m));
        s->val_stage = fmm_spgemm_take(&m, places, s->val_width);
        s->stage = fmm_spgemm_take(&m, places, sizeof *s->stage);
    }
    return FMM_OK;
}

/* The stage takes what is left of that. Where it cannot be had, no more than workers' own rows. */
static fmm_status lay_out_stage(const fmm_exec *exec, symbolic *s, int workers)
{
    const size_t allowed = fmm_spgemm_allowed(s), width = sizeof *s->stage + s->val_width;
    const int64_t own = s->own * workers, enough = s->total + (int64_t)workers * SPGEMM_BLOCK;
    s->lent += (size_t)own * width;
    s->capacity = s->lent < allowed ? (int64_t)((allowed - s->lent) / width) : 0;
    if (s->capacity > enough) s->capacity = enough;
    if (ask_stage(exec, s, s->capacity + own) == FMM_OK) return FMM_OK;
    s->capacity = 0;
    return ask_stage(exec, s, own);
}

/* A plan keeps which rows of C are as the one before. */
static fmm_status keep_following(const symbolic *s)
{
    const int64_t rows = s->a->rows, words = (rows + 3) / 4;
    int32_t *const kept = s->out->kept(s->out->owner, words);
    REQUIRE(kept, FMM_OUT_OF_MEMORY, "spgemm: no memory for what a plan keeps");
    memset(kept + words - 1, 0, sizeof *kept);
    memcpy(kept, s->follows, (size_t)rows);
    return FMM_OK;
}

/* One pass over the products or two: what is wanted, and how many there are, decide. C's memory is
 * asked for when its size is known; all that is lent before is the caller's, and goes back to it
 * whatever fails. */
fmm_status fmm_spgemm_symbolic_cpu(const fmm_exec *exec, const fmm_spgemm_symbolic_call *call)
{
    const fmm_csr *a = call->a, *b = call->b;
    const fmm_spgemm_pattern *out = call->out;
    symbolic s = {.a = a, .b = b, .out = out, .find = find_rows};
    spgemm_numeric numeric;
    TRY(fmm_spgemm_look(exec, &s));
    if (out->want == FMM_SPGEMM_CHUNKS) return FMM_OK;
    int workers = fmm_spgemm_workers(exec, s.total);
    const bool whole = out->with && !s.follows && fmm_spgemm_whole_pays(&s);
    if (whole) {
        workers = fmm_spgemm_whole_workers(&s, workers);
        s.own = SPGEMM_PAD + (s.longest < b->cols ? s.longest : b->cols);
    }
    s.fetch_end = b->nnz > FETCHED ? a->nnz - 2 * SPGEMM_AHEAD : 0;
    TRY(lay_out_rooms(exec, &s, workers));
    /* A whole product multiplies entries of B. */
    if (whole) TRY(fmm_spgemm_whole(exec, &s, workers, &numeric));
    if (!whole && !s.follows) TRY(pack(exec, &s));
    if (s.follows && out->kept) TRY(keep_following(&s));
    if (out->want > FMM_SPGEMM_COUNTS) TRY(lay_out_stage(exec, &s, workers));
    out->ptr[0] = 0;
    fmm_spgemm_crew(exec, workers, out->schedule, a->rows, s.find, &s);
    for (int64_t i = 0; i < a->rows; i++) out->ptr[i + 1] += out->ptr[i];
    if (out->want == FMM_SPGEMM_COUNTS) return FMM_OK;
    const int64_t nnz = out->ptr[a->rows];
    s.idx = out->columns(out->owner, nnz);
    if (whole && s.idx) s.val = out->with->values(out->owner, nnz);
    REQUIRE((s.idx && (s.val || !whole)) || !nnz, FMM_OUT_OF_MEMORY,
            "spgemm: no memory for the %" PRId64 " entries of the product", nnz);
    if (nnz) fmm_spgemm_crew(exec, workers, out->schedule, a->rows, give_rows, &s);
    return FMM_OK;
}
