/* The algorithms of SpGEMM's numeric phase on the CPU: which rows are summed how, and in what
 * memory. Rows are computed by cpu_rows.inc.
 *
 *     chunk of rows ---> a worker ---> its place: [sums] [aside] [tables] ...
 *     colours: rows of one colour have no column in common, so that one dense row of sums
 *     serves all of them at the same time:
 *
 *         group of colours 0..3   rows 0 2 5 | 1 8 | 3 4 9 | 7     kkmcw: colour by colour
 *                                 rows 0 1 2 3 4 5 7 8 9           kkmcr: as they lie in memory
 *         accumulators            one for each colour of the group
 *         group of colours 4..7   begins when the group before has ended
 *
 * Every algorithm adds the same products in the same order. They differ in speed and memory. */
#include "../cpu/isa.h"
#include "../cpu/reference.h"
#include "cpu.h"

enum {
    SPARE = 32 << 20, /* bytes that dense rows of sums may take beside a quarter of the operands */
    FETCHED = 256 << 10, /* bytes of B from which its rows are fetched ahead */
};

/* How auto sums rows: densely, unless a dense row of sums for each worker would take too much
 * memory. Dense rows were the fastest on every graph and mesh and for rows of every length: hashed
 * rows took 2.0 to 3.1 times as long, sorted ones 2.1 to 11 times. So a row's own length decides
 * nothing. Where dense rows are too large all are hashed: rows of up to 4 entries are sorted in the
 * same time, longer ones in up to four times as much. */
static spgemm_kind kind_of_rows(spgemm_kind asked, bool scarce)
{
    return asked != SPGEMM_AUTO ? asked : scarce ? SPGEMM_HASH : SPGEMM_DENSE;
}

/* ---- the memory of a call ---- */

/* Values that are read once for each product lie in the type of sums and in the order of entries:
 * the loops then read no order of edges and convert nothing. Most matrices have them so. */
typedef struct laying {
    const fmm_csr *a;
    const fmm_dense *val;
    void *to;
} laying;

static void lay_range(int64_t first, int64_t last, void *ctx)
{
    const laying *l = ctx;
    fmm_spgemm_loops[l->val->dtype].lay(l->a, l->val, first, last, l->to);
}

const void *fmm_spgemm_lay(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                           fmm_dtype dtype, spgemm_memory *m)
{
    if (val->data && (dtype == FMM_F32 || dtype == FMM_F64) && !a->eid && val->row_stride == 1)
        return val->data;
    fmm_dense of = *val;
    of.dtype = dtype; /* that of ones, too */
    laying l = {a, &of, fmm_spgemm_take(m, a->nnz, fmm_spgemm_width(dtype))};
    if (m->base) fmm_parallel(exec, a->nnz, lay_range, &l);
    return l.to;
}

/* The longest row of a matrix, and how many have more than `above` entries. Differences are
 * unsigned and cut off at all entries, so that a forged ptr asks for no more than that. */
static int64_t longest_row(const fmm_csr *a, int64_t above, int64_t *count)
{
    uint64_t most = 0;
    int64_t longer = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const uint64_t entries = (uint64_t)a->ptr[i + 1] - (uint64_t)a->ptr[i];
        most = entries > most ? entries : most;
        longer += entries > (uint64_t)above;
    }
    *count = longer;
    return most < (uint64_t)a->nnz ? (int64_t)most : a->nnz;
}

/* The pool has a table for each worker that may need one at a time, but takes no more than a
 * quarter of what C's values and columns do: workers then wait for one. */
static void lay_out_pool(spgemm_numeric *t, int64_t overflowing, spgemm_memory *m)
{
    t->table_slots = 16;
    while (t->table_slots < SPGEMM_SPACE * (t->longest - SPGEMM_FIRST)) t->table_slots *= 2;
    const size_t entry = sizeof(int32_t) + t->width;
    const int64_t affordable = t->of->c->nnz / 4 / t->table_slots + 1;
    t->table_count = t->of->workers < overflowing ? t->of->workers : overflowing;
    if (t->table_count > affordable) t->table_count = affordable;
    t->taken = fmm_spgemm_take(m, t->table_count, sizeof *t->taken);
    t->tables = fmm_spgemm_take(m, t->table_count * t->table_slots, entry);
}

/* All of a call's memory. Without a base it is only counted. `sums` is whether places have dense
 * rows of sums of their own, which colours bring themselves. What a place has room for follows from
 * the longest row of C; a mask's row may be longer than B is wide, since columns may repeat. */
static void lay_out(const fmm_exec *exec, spgemm_numeric *t, bool sums, spgemm_memory *m)
{
    const fmm_csr *a = t->call->a, *b = t->of->b, *c = t->of->c;
    const fmm_dtype dtype = t->call->y->dtype;
    const int64_t repeats = ((const volatile int64_t *)t->of->schedule)[0];
    const int workers = t->of->workers;
    int64_t overflowing, many;
    t->width = fmm_spgemm_width(dtype);
    t->longest = longest_row(c, SPGEMM_FIRST, &overflowing);
    t->per_block = SPGEMM_TERMS / (repeats < 1 ? 1 : repeats);
    longest_row(a, t->per_block, &many);
    t->a = *a, t->b = *b;
    t->fetch_end =
        b->nnz * (int64_t)(sizeof *b->idx + t->width) > FETCHED ? a->nnz - 2 * SPGEMM_AHEAD : 0;
    const int64_t largest = a->nnz > b->nnz ? a->nnz : b->nnz;
    const int64_t entries = c->nnz > largest ? c->nnz : largest;
    const int64_t spare = SPARE + entries / 4 * (int64_t)(sizeof *c->idx + t->width);
    t->kind = kind_of_rows(t->kind, b->cols > spare / workers / (int64_t)t->width);
    t->a_val = fmm_spgemm_lay(exec, a, t->call->val, dtype, m);
    t->b_val = fmm_spgemm_lay(exec, b, &t->of->b_val, dtype, m);
    t->places = fmm_spgemm_take(m, workers, sizeof *t->places);
    const bool dense = t->kind == SPGEMM_DENSE, hashed = t->kind == SPGEMM_HASH;
    /* Most rows of most products need no list of where their sums are. */
    t->plain =
        dense && !t->of->masked && t->per_block > 0 && !c->eid && t->call->y->row_stride == 1;
    for (int w = 0; w < workers; w++) {
        spgemm_place at = {0};
        if (dense && sums) at.sums = fmm_spgemm_take(m, b->cols, t->width);
        if (dense && t->of->masked) at.marks = fmm_spgemm_take(m, b->cols, 1);
        if (many) at.aside = fmm_spgemm_take(m, t->longest, t->width);
        if (many || !t->plain) at.listed = fmm_spgemm_take(m, t->longest, sizeof(void *));
        if (hashed) {
            at.keys = fmm_spgemm_take(m, SPGEMM_SPACE * SPGEMM_FIRST, sizeof *at.keys);
            at.slots = fmm_spgemm_take(m, SPGEMM_SPACE * SPGEMM_FIRST, t->width);
        }
        if (t->kind == SPGEMM_SORT) {
            at.sorted = fmm_spgemm_take(m, t->longest, sizeof *at.sorted);
            at.sorted_sums = fmm_spgemm_take(m, t->longest, t->width);
        }
        if (m->base) t->places[w] = at;
    }
    if (hashed && overflowing) lay_out_pool(t, overflowing, m);
}

/* ---- rows, chunk by chunk ---- */

/* A worker clears its sums when it begins with its first chunk, so that its own core brings their
 * memory, and workers that find no chunk clear nothing. */
static void run_chunk(void *ctx, int worker, int64_t first, int64_t last)
{
    const spgemm_numeric *t = ctx;
    spgemm_place *at = &t->places[worker];
    if (!at->ready) {
        if (at->sums) memset(at->sums, 0, (size_t)t->b.cols * t->width);
        if (at->marks) memset(at->marks, 0, (size_t)t->b.cols);
        at->ready = true;
    }
    spgemm_plain *const plain = fmm_spgemm_loops[t->call->y->dtype].rows;
    if (t->alike)
        t->alike(t, at, first, last, plain);
    else
        plain(t, at, first, last);
}

#define DECLARE(room, isa, level) extern spgemm_alike *const fmm_spgemm_alike_##isa[2];
FMM_ISA_LIST(DECLARE, )

/* What a plan kept says which rows are as the one before; without it, and for values of 16 bits,
 * none is. Rows are added in registers where the instruction set has vectors of eight numbers, and
 * only where all that is asked for is a sum for each column of C. */
static fmm_status find_alike(spgemm_numeric *t)
{
    const fmm_dtype dtype = t->call->y->dtype;
    fmm_isa level;
    if (!t->plain || t->of->kept != (t->a.rows + 3) / 4 || t->kind != SPGEMM_DENSE) return FMM_OK;
    if (dtype != FMM_F32 && dtype != FMM_F64) return FMM_OK;
    TRY(fmm_isa_level(&level));
    t->follows = (const volatile uint8_t *)t->of->products;
#define OF(room, isa, known)                                                                       \
    if (level == known) t->alike = fmm_spgemm_alike_##isa[dtype == FMM_F64];
    FMM_ISA_LIST(OF, )
    return FMM_OK;
}

static size_t chunks_workspace(const fmm_call *call, spgemm_kind kind)
{
    spgemm_numeric t = {.call = call, .of = fmm_spgemm_of(call), .kind = kind};
    spgemm_memory m = {0};
    lay_out(NULL, &t, true, &m);
    return m.used;
}

/* The workspace was sized by the same lines as it is laid out by here. They read matrices that
 * another thread may write to meanwhile, hence the check. */
static fmm_status run_chunks(const fmm_exec *exec, const fmm_call *call, spgemm_kind kind)
{
    spgemm_numeric t = {.call = call, .of = fmm_spgemm_of(call), .kind = kind};
    spgemm_memory m = {.base = exec->workspace};
    lay_out(exec, &t, true, &m);
    VALID(m.used <= exec->workspace_bytes,
          "spgemm: a matrix changed while its product was computed");
    for (int64_t k = 0; k < t.table_count; k++) atomic_flag_clear(&t.taken[k]);
    TRY(find_alike(&t));
    fmm_spgemm_crew(exec, t.of->workers, t.of->schedule, t.a.rows, run_chunk, &t);
    return FMM_OK;
}

#define BY(name, kind)                                                                             \
    static size_t name##_workspace(const fmm_call *call) { return chunks_workspace(call, kind); }  \
    static fmm_status name(const fmm_exec *exec, const fmm_call *call)                             \
    {                                                                                              \
        return run_chunks(exec, call, kind);                                                       \
    }
BY(kkspeed, SPGEMM_DENSE)
BY(kkmem, SPGEMM_HASH)
BY(sorting, SPGEMM_SORT)
BY(by_memory, SPGEMM_AUTO)

/* ---- rows, colour by colour ---- */

typedef struct colouring {
    spgemm_numeric t;
    int32_t *colours, *order, *starts; /* [rows] each, but for starts: of colours or their groups */
    char *sums;
    int64_t count, together; /* colours; those that run at once */
    int64_t first;           /* of the group that runs, in `order` */
    bool by_group;           /* rows of a group lie in their own order */
} colouring;

/* What rows are ordered by: kkmcr's groups hold all colours that run at once. */
static int64_t key_of(const colouring *s, int64_t i)
{
    return s->by_group ? s->colours[i] / s->together : s->colours[i];
}

/* As many colours run at once as C has entries for each column: their sums take what C's values
 * take. */
static void lay_out_colours(const fmm_exec *exec, colouring *s, spgemm_memory *m)
{
    const fmm_csr *c = s->t.of->c;
    lay_out(exec, &s->t, false, m);
    s->together = c->cols ? c->nnz / c->cols : 1;
    if (s->together > c->rows) s->together = c->rows;
    if (s->together < 1) s->together = 1;
    s->colours = fmm_spgemm_take(m, c->rows, sizeof *s->colours);
    s->order = fmm_spgemm_take(m, c->rows, sizeof *s->order);
    s->starts = fmm_spgemm_take(m, c->rows + 2, sizeof *s->starts);
    s->sums = fmm_spgemm_take(m, s->together * c->cols, s->t.width);
}

/* Rows by their keys, each key's in their own order, by counting. The caller's colours are read
 * once; what is no colour becomes one. */
static void order_rows(colouring *s)
{
    const int64_t rows = s->t.of->c->rows;
    for (int64_t i = 0; i < rows; i++) {
        const int32_t colour = ((const volatile int32_t *)s->t.of->colours)[i];
        s->colours[i] = colour < 0 ? 0 : colour < rows ? colour : (int32_t)(rows - 1);
        if (s->colours[i] >= s->count) s->count = s->colours[i] + 1;
    }
    memset(s->starts, 0, (size_t)(rows + 2) * sizeof *s->starts);
    for (int64_t i = 0; i < rows; i++) s->starts[key_of(s, i) + 2]++;
    for (int64_t key = 2; key <= rows; key++) s->starts[key + 1] += s->starts[key];
    for (int64_t i = 0; i < rows; i++) s->order[s->starts[key_of(s, i) + 1]++] = (int32_t)i;
}

/* Rows of one group run at once: a colour has sums of its own there, and rows of one colour have no
 * column in common. So no two threads meet at a sum, and a row leaves its sums zero for the next.
 */
static void run_colours(void *ctx, int worker, int64_t first, int64_t last)
{
    const colouring *s = ctx;
    spgemm_place at = s->t.places[worker];
    for (int64_t k = s->first + first; k < s->first + last; k++) {
        const int64_t i = s->order[k], own = s->colours[i] % s->together;
        at.sums = s->sums + (size_t)(own * s->t.of->c->cols) * s->t.width;
        fmm_spgemm_loops[s->t.call->y->dtype].rows(&s->t, &at, i, i + 1);
    }
}

/* Group after group, since the next one uses the same sums. */
static fmm_status by_colours(const fmm_exec *exec, const fmm_call *call, bool by_group)
{
    colouring s = {.t = {.call = call, .of = fmm_spgemm_of(call), .kind = SPGEMM_DENSE},
                   .by_group = by_group};
    spgemm_memory m = {.base = exec->workspace};
    VALID(s.t.of->colours || !s.t.of->c->rows, "spgemm: colours of the rows must be given");
    lay_out_colours(exec, &s, &m);
    VALID(m.used <= exec->workspace_bytes,
          "spgemm: a matrix changed while its product was computed");
    order_rows(&s);
    memset(s.sums, 0, (size_t)(s.together * s.t.of->c->cols) * s.t.width);
    for (int64_t colour = 0; colour < s.count; colour += s.together) {
        const int64_t after = colour + s.together < s.count ? colour + s.together : s.count;
        s.first = s.starts[by_group ? colour / s.together : colour];
        const int64_t last = s.starts[by_group ? colour / s.together + 1 : after];
        fmm_spgemm_crew(exec, s.t.of->workers, NULL, last - s.first, run_colours, &s);
    }
    return FMM_OK;
}

static size_t colours_workspace(const fmm_call *call)
{
    colouring s = {.t = {.call = call, .of = fmm_spgemm_of(call), .kind = SPGEMM_DENSE}};
    spgemm_memory m = {0};
    lay_out_colours(NULL, &s, &m);
    return m.used;
}

static fmm_status kkmcr(const fmm_exec *exec, const fmm_call *call)
{
    return by_colours(exec, call, true);
}

static fmm_status kkmcw(const fmm_exec *exec, const fmm_call *call)
{
    return by_colours(exec, call, false);
}

/* A product may fall on another row's sum where a mask leaves out some of the row's columns. */
static bool unmasked(const fmm_call *call) { return !fmm_spgemm_of(call)->masked; }

/* Each takes every dtype and every structure; colours take no mask. */
static const fmm_algorithm algorithms[] = {
    {1, "reference", "plain loops in double: the specification", "fusedmm", true, NULL,
     fmm_spgemm_reference_workspace, fmm_spgemm_reference},
    {2, "kkspeed", "a dense row of sums for each thread", "KokkosKernels KKSPEED", true, NULL,
     kkspeed_workspace, kkspeed},
    {3, "kkmem", "hash tables of two levels, the second from a pool", "KokkosKernels KKMEM", true,
     NULL, kkmem_workspace, kkmem},
    {4, "sort", "sorted columns, found by bisection", "fusedmm", true, NULL, sorting_workspace,
     sorting},
    {5, "kkmcr", "a dense row of sums for each colour of a plan, rows in order",
     "KokkosKernels KKMCR", true, unmasked, colours_workspace, kkmcr},
    {6, "kkmcw", "a dense row of sums for each colour of a plan, colour by colour",
     "KokkosKernels KKMCW", true, unmasked, colours_workspace, kkmcw},
    {0},
};

static const fmm_algorithm *choose(const fmm_call *call)
{
    static const fmm_algorithm found = {0,    "auto", "as memory allows",  "fusedmm",
                                        true, NULL,   by_memory_workspace, by_memory};
    return (void)call, &found;
}

const fmm_registry fmm_spgemm_cpu = {algorithms, choose};
