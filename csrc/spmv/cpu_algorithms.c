/* The algorithms of SpMV on the CPU: how a call is cut in pieces for the loops of cpu.inc, how sums
 * of rows that lie in several pieces are joined, and the table.
 *
 * Every algorithm is a list of steps, each of which runs over its pieces with the caller's threads:
 *
 *     all          WIDEN, where x is no contiguous vector of the type of sums: a gather of numbers
 *                  that need no conversion is worth a pass over x
 *     merge        PATH, then a join          csr_segmented   the same, cut by entries alone
 *     csr_scalar   as merge, row by row       csr_vector      as merge, rows side by side
 *     coo, hyb     BLOCKS, ENTRIES, a join, FINISH
 *     dia, ell     BLOCKS                     sell            FINISH, BLOCKS */
#include "../cpu/isa.h"
#include "../cpu/reference.h"
#include "cpu.h"

#include <string.h>

FMM_ISA_KERNELS(spmv)

/* ---- where pieces begin ---- */

/* Rows by which a guess is off where rows are alike. */
enum { NEAR = 32 };

/* The number of rows that end, with `weight` for each, before `target` on the path; no fewer than
 * `low`, and no more than `high`. The first two questions are asked about `guess`, which is near
 * where rows are alike: each question that is far from there waits for memory. With bisection alone
 * usa_road_ny takes 1.07 times as long, 5-point 1000^2 1.27 times (AMD EPYC). */
static int64_t rows_before(const fmm_csr *a, int64_t weight, int64_t target, int64_t low,
                           int64_t high, int64_t guess)
{
    for (int asked = 0; low < high; asked++) {
        const int64_t about = guess + (asked ? NEAR : -NEAR);
        const bool use = asked < 2 && about >= low && about < high;
        const int64_t middle = use ? about : low + (high - low) / 2;
        if (row_end(a, middle) + weight * (middle + 1) <= target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A path walks over all entries and, unless it goes by entries alone, over the end of each row:
 * Merrill & Garland's merge of ptr with the natural numbers. A piece then has no more rows than its
 * length, which bounds the search for the next one. */
fmm_spmv_place fmm_spmv_cut(const fmm_spmv_task *t, int64_t piece, const fmm_spmv_place *before)
{
    const fmm_csr *a = t->rows.call->a;
    const fmm_format format = fmm_spmv_of(t->rows.call)->matrix->format;
    const int64_t target = piece * FMM_SPMV_PIECE;
    if (format != FMM_FORMAT_CSR) return (fmm_spmv_place){0, target < a->nnz ? target : a->nnz};
    if (piece == 0) return (fmm_spmv_place){0, 0};
    if (piece >= t->pieces) return (fmm_spmv_place){a->rows, a->nnz};
    const int64_t weight = t->by_entries ? 0 : 1, low = before ? before->row : 0;
    const bool near = before && weight && a->rows - low > FMM_SPMV_PIECE;
    const int64_t high = near ? low + FMM_SPMV_PIECE : a->rows;
    const double share = (double)a->rows / (double)(a->nnz + weight * a->rows);
    const int64_t mean = (int64_t)(FMM_SPMV_PIECE * share);
    const int64_t row = rows_before(a, weight, target, low, high, before ? low + mean : low);
    const int64_t entry = target - weight * row;
    /* What the search for the next border will read. */
    for (int64_t i = row + mean - NEAR; i <= row + mean + NEAR; i += 8)
        if (i > 0 && i < a->rows) __builtin_prefetch(a->ptr + i);
    return (fmm_spmv_place){row, entry < a->nnz ? entry : a->nnz};
}

/* Where a piece ends, of those up to `last`, which end at `stop`: no later, and no earlier than it
 * begins. Stretches of pieces then meet, whatever ptr holds, so that every row has one that writes
 * it: of places that lead from row 0 to the last one, some two lie on either side of a row. */
fmm_spmv_place fmm_spmv_end(const fmm_spmv_task *t, int64_t piece, int64_t last,
                            const fmm_spmv_place *from, const fmm_spmv_place *stop)
{
    fmm_spmv_place to = piece + 1 < last ? fmm_spmv_cut(t, piece + 1, from) : *stop;
    if (to.row > stop->row) to = *stop;
    return to.row < from->row ? *from : to;
}

/* At least one, since a matrix without entries has rows to write. */
static int64_t pieces_of(const fmm_call *call, bool by_entries)
{
    const fmm_csr *a = call->a;
    const bool csr = fmm_spmv_of(call)->matrix->format == FMM_FORMAT_CSR;
    const int64_t work = a->nnz + (csr && !by_entries ? a->rows : 0);
    return work / FMM_SPMV_PIECE + 1;
}

/* ---- joining ---- */

/* The sum of a row of several pieces. */
static void finish_row(const fmm_spmv_task *t, int64_t i, double sum)
{
    const fmm_call *call = t->rows.call;
    const fmm_spmv_operands *own = fmm_spmv_of(call);
    if (t->sums && call->x->dtype == FMM_F64)
        ((double *)t->sums)[i] += sum;
    else if (t->sums)
        ((float *)t->sums)[i] += (float)sum;
    else
        put(call->y, i, 0, 0,
            own->alpha * sum + (own->y_in ? own->beta * get(own->y_in, i, 0, 0) : 0));
}

/* In the order of pieces, whoever computed them. One thread does it: there is a carry for every
 * 16,384 entries, so that even 10^9 entries leave only some 60,000 of them. A row that goes on over
 * many pieces leaves a tail in each, and the head that ends it finishes the row. */
static void join(const fmm_spmv_task *t)
{
    blocked_sum sum = {0};
    for (int64_t k = 0; k < t->pieces; k++) {
        const fmm_spmv_carry *carry = &t->carries[k];
        if (carry->head_row >= 0) {
            add(&sum, carry->head);
            finish_row(t, carry->head_row, total(&sum));
            sum = (blocked_sum){0};
        }
        if (carry->tail_row >= 0) add(&sum, carry->tail);
    }
}

/* ---- running ---- */

/* A thread takes groups of units, so that small units, such as slices of 32 rows, do not cost more
 * to hand out than to compute. */
static void range(int64_t first, int64_t last, void *ctx)
{
    const fmm_spmv_task *t = ctx;
    const int64_t end = last * t->group;
    t->rows.kernel(&t->rows, first * t->group, end < t->units ? end : t->units);
}

/* Runs a step over so many units, in groups that have about FMM_SPMV_PIECE elements. */
static void run_step(const fmm_exec *exec, fmm_spmv_task *t, fmm_spmv_step step, int64_t units,
                     int64_t elements_each)
{
    t->step = step;
    t->units = units;
    t->group = elements_each < FMM_SPMV_PIECE ? FMM_SPMV_PIECE / (elements_each + 1) + 1 : 1;
    fmm_parallel(exec, (units + t->group - 1) / t->group, range, t);
}

/* Whether rows have sums apart, which COO's entries are added to. */
static bool sums_rows(const fmm_call *call)
{
    const fmm_format format = fmm_spmv_of(call)->matrix->format;
    return format == FMM_FORMAT_COO || format == FMM_FORMAT_HYB;
}

/* Whether the loops may gather from the caller's x. */
static bool reads_x_in_place(const fmm_call *call)
{
    const fmm_dense *x = call->x;
    return (x->dtype == FMM_F32 || x->dtype == FMM_F64) && (x->rows <= 1 || x->row_stride == 1);
}

/* The workspace, of which most calls of a single piece need none, which spares small products an
 * allocation:
 *
 *     x in the type of sums | the sums of rows | carries
 *     if the caller's is      COO, HYB           if there are several pieces
 *     another                                                                  */
typedef struct room {
    size_t sums, carries, end;
} room;

static room room_of(const fmm_call *call)
{
    const size_t each = call->x->dtype == FMM_F64 ? sizeof(double) : sizeof(float);
    const size_t pieces = (size_t)pieces_of(call, false), lines = ~(size_t)15;
    room r = {0};
    if (!reads_x_in_place(call)) r.sums = ((size_t)call->a->cols * each + 15) & lines;
    r.carries = r.sums;
    if (sums_rows(call)) r.carries += ((size_t)call->a->rows * each + 15) & lines;
    r.end = r.carries + (pieces > 1 ? pieces * sizeof(fmm_spmv_carry) : 0);
    return r;
}
static size_t workspace(const fmm_call *call) { return room_of(call).end; }

/* Runs the steps of an algorithm, each of which ends before the next one begins: a later step reads
 * what all pieces of an earlier one wrote. */
static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_spmv_sums sums_are,
                      bool by_entries, fmm_isa level)
{
    if (level == FMM_ISAS) TRY(fmm_isa_level(&level)); /* the best */
    const fmm_spmv_matrix *a = fmm_spmv_of(call)->matrix;
    const int64_t rows = a->csr.rows, tall = fmm_spmv_tall(a);
    const room r = room_of(call);
    char *base = exec->workspace;
    fmm_spmv_task t = {.rows = {.call = call, .kernel = kernel_of(level, call->x->dtype)},
                       .x = call->x->data,
                       .sums_are = sums_are,
                       .by_entries = by_entries,
                       .pieces = pieces_of(call, by_entries)};
    if (r.sums) t.x = t.wide = base;
    if (sums_rows(call)) t.sums = base + r.sums;
    if (t.pieces > 1) t.carries = (fmm_spmv_carry *)(void *)(base + r.carries);

    if (t.wide) run_step(exec, &t, FMM_SPMV_WIDEN, a->csr.cols, 1);
    if (a->format == FMM_FORMAT_CSR)
        run_step(exec, &t, FMM_SPMV_PATH, t.pieces, FMM_SPMV_PIECE);
    else {
        /* SELL's `order` may leave rows out. COO has no columns, and its sums become 0. */
        const int64_t blocks = (rows + tall - 1) / tall;
        if (a->format == FMM_FORMAT_SELL) run_step(exec, &t, FMM_SPMV_FINISH, rows, 1);
        run_step(exec, &t, FMM_SPMV_BLOCKS, blocks, tall + a->stored / (blocks + 1));
    }
    if (t.sums) run_step(exec, &t, FMM_SPMV_ENTRIES, t.pieces, FMM_SPMV_PIECE);
    if (t.carries) join(&t);
    if (t.sums) run_step(exec, &t, FMM_SPMV_FINISH, rows, 1);
    return FMM_OK;
}

/* No format is converted, so an algorithm supports its own alone. Of each family an algorithm per
 * instruction set, and one that takes the best of them. */
#define LEVEL(name, its_format, sums, by_entries, isa, level, usable)                              \
    static bool name##_##isa##_fits(const fmm_call *call)                                          \
    {                                                                                              \
        return fmm_spmv_of(call)->matrix->format == its_format && (usable);                        \
    }                                                                                              \
    static fmm_status name##_##isa(const fmm_exec *exec, const fmm_call *call)                     \
    {                                                                                              \
        return run(exec, call, sums, by_entries, level);                                           \
    }
#define FAMILY(name, ...)                                                                          \
    LEVEL(name, __VA_ARGS__, scalar, FMM_SCALAR, true)                                             \
    LEVEL(name, __VA_ARGS__, avx2, FMM_AVX2, fmm_isa_avx2(call))                                   \
    LEVEL(name, __VA_ARGS__, avx512, FMM_AVX512, fmm_isa_avx512(call))                             \
    LEVEL(name, __VA_ARGS__, neon, FMM_NEON, fmm_isa_neon(call))                                   \
    LEVEL(name, __VA_ARGS__, best, FMM_ISAS, true)
#define LINE(number, title, name, isa, about, source)                                              \
    {                                                                                              \
        number, title, about, source, true, name##_##isa##_fits, workspace, name##_##isa           \
    }
#define LINES(number, name, about, source)                                                         \
    LINE(number, #name, name, best, about, source),                                                \
        LINE(number + 1, #name ":scalar", name, scalar, about ", plain C", source),                \
        LINE(number + 2, #name ":avx2", name, avx2, about ", AVX2 + FMA", source),                 \
        LINE(number + 3, #name ":avx512", name, avx512, about ", AVX-512", source),                \
        LINE(number + 4, #name ":neon", name, neon, about ", NEON", source)

FAMILY(csr_scalar, FMM_FORMAT_CSR, FMM_SPMV_ONE, false)
FAMILY(csr_vector, FMM_FORMAT_CSR, FMM_SPMV_SIDE_BY_SIDE, false)
FAMILY(csr_segmented, FMM_FORMAT_CSR, FMM_SPMV_EITHER, true)
FAMILY(merge, FMM_FORMAT_CSR, FMM_SPMV_EITHER, false)
FAMILY(coo, FMM_FORMAT_COO, FMM_SPMV_ONE, true)
FAMILY(dia, FMM_FORMAT_DIA, FMM_SPMV_ONE, true)
FAMILY(ell, FMM_FORMAT_ELL, FMM_SPMV_ONE, true)
FAMILY(hyb, FMM_FORMAT_HYB, FMM_SPMV_ONE, true)
FAMILY(sell, FMM_FORMAT_SELL, FMM_SPMV_ONE, true)

static const fmm_algorithm algorithms[] = {
    {1, "reference", "plain loops in double: the specification", "fusedmm", true, NULL, NULL,
     fmm_spmv_reference},
    LINES(10, csr_scalar, "one row at a time", "Bell & Garland 2009"),
    LINES(20, csr_vector, "the lanes of a vector sum a row side by side", "Bell & Garland 2009"),
    LINES(30, csr_segmented, "pieces of equally many entries, carries joined in order",
          "Blelloch, Heroux & Zagha 1993"),
    LINES(40, merge, "pieces of equally many rows and entries, carries joined in order",
          "Merrill & Garland 2016"),
    LINES(50, coo, "runs of equal rows, carries joined in order", "Bell & Garland 2009"),
    LINES(60, dia, "diagonals over blocks of rows", "Bell & Garland 2009"),
    LINES(70, ell, "columns of entries over blocks of rows", "Bell & Garland 2009"),
    LINES(80, hyb, "ell, then coo for what rows have beyond", "Bell & Garland 2009"),
    LINES(90, sell, "columns of entries over slices of rows", "Kreutzer et al. 2014"),
    {0},
};

/* A format has its own algorithm but CSR, whose rows may have any length. Measured on real graphs,
 * grids and R-MAT with one and two threads, `merge` is as fast as walking over whole rows, and it
 * alone keeps threads busy where one row has most entries. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    static const int numbers[FMM_FORMATS] = {
        [FMM_FORMAT_CSR] = 40, [FMM_FORMAT_COO] = 50, [FMM_FORMAT_DIA] = 60,
        [FMM_FORMAT_ELL] = 70, [FMM_FORMAT_HYB] = 80, [FMM_FORMAT_SELL] = 90,
    };
    const int number = numbers[fmm_spmv_of(call)->matrix->format];
    const fmm_algorithm *found = algorithms;
    while (found->number != number) found++;
    return found;
}

const fmm_registry fmm_spmv_cpu = {algorithms, choose};
