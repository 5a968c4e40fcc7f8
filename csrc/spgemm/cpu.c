/* Rows of a whole product in order, and values of rows that are alike (cpu_alike.inc), once per
 * instruction set.
 *
 *     one pass    columns of a row in the order in which products touch them:   7 2 9 4
 *     place       how many columns of the row are less:                         2 0 3 1
 *     C           each column, and its value, at its place:                     2 4 7 9
 *
 * The columns of a row differ from each other, so places do, and no order of equals is to be kept.
 * Short rows count in vectors, each column against all others. Longer ones mark their columns as
 * bits: what lies in words before a column's own is a sum over words, what lies before it in its
 * own is counted there. Hardly a branch depends on where columns lie, which nothing could foresee;
 * that is what a sort that compares and swaps would wait for. */
#include "../cpu/this_isa.h"

#include "cpu_symbolic.h"

#ifndef FMM_16_BITS
#ifdef FMM_PANEL
/* Of at most 8: a comparison of 16 gives a mask, which it takes longer to make a vector of. */
enum { LANES = LANES_vf32 < 4 ? 4 : LANES_vf32 > 8 ? 8 : LANES_vf32 };
typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
enum {
    BOTH = 2 * LANES,     /* columns that are counted side by side; at most SPGEMM_PAD */
    COUNTED = 12 * LANES, /* columns of a row that are counted, at most; where words are many, */
    FAR = 2 * COUNTED,    /* which is more than */
    NEAR = 4              /* words for each column of a row, whose bits cost more */
};
_Static_assert((int)BOTH <= (int)SPGEMM_PAD,
               "columns beyond a row are read, and their places written");

/* Two vectors of columns are compared with each column of the row in turn. What lies beyond the row
 * is read and counted, too, but nobody asks for it. */
static void count_places(const int32_t *columns, int64_t n, int32_t *place)
{
    for (int64_t x = 0; x < n; x += BOTH) {
        lanes mine, other, below_mine = {0}, below_other = {0};
        memcpy(&mine, columns + x, sizeof mine);
        memcpy(&other, columns + x + LANES, sizeof other);
        for (int64_t y = 0; y < n; y++) {
            const lanes all = columns[y] - (lanes){0};
            below_mine -= (lanes)(all < mine); /* a comparison that holds is -1 */
            below_other -= (lanes)(all < other);
        }
        memcpy(place + x, &below_mine, sizeof mine);
        memcpy(place + x + LANES, &below_other, sizeof other);
    }
}

/* How many columns lie in words before each one that has any. Where words are few, all between the
 * first and the last are looked at; else a second level of bits tells which have any. */
static void count_words(const spgemm_bits *room, const int32_t *columns, int64_t n)
{
    uint64_t *const words = room->words, *const summary = room->summary;
    int32_t *const before = room->touched;
    int32_t low = INT32_MAX, high = -1, count = 0;
    for (int64_t x = 0; x < n; x++) { /* in vectors */
        low = columns[x] < low ? columns[x] : low;
        high = columns[x] > high ? columns[x] : high;
    }
    low /= WORD, high /= WORD;
    for (int64_t x = 0; x < n; x++) {
        const uint32_t j = (uint32_t)columns[x]; /* without a sign, to divide it is a shift */
        words[j / WORD] |= UINT64_C(1) << j % WORD;
    }
    if (room->width <= NEAR * n) {
        for (int32_t word = low; word <= high; word++) {
            before[word] = count;
            count += (int32_t)fmm_spgemm_bits_of(words[word]);
        }
        return;
    }
    for (int64_t x = 0; x < n; x++)
        summary[columns[x] / WORD / WORD] |= UINT64_C(1) << columns[x] / WORD % WORD;
    for (int32_t group = low / WORD; group <= high / WORD; group++) {
        for (uint64_t any = summary[group]; any; any &= any - 1) {
            const int32_t word = group * WORD + __builtin_ctzll(any);
            before[word] = count;
            count += (int32_t)fmm_spgemm_bits_of(words[word]);
        }
        summary[group] = 0;
    }
}

/* Rows of a grid lie as the row before does, a column further, and so have its places. Very short
 * ones are counted in as little time. */
static bool lies_as_before(const spgemm_bits *room, int64_t n, const int32_t *columns)
{
    if (n != room->count || n <= BOTH) return false;
    const uint32_t further = (uint32_t)columns[0] - (uint32_t)room->last[0];
    uint32_t other = 0;
    for (int64_t x = 0; x < n; x++)
        other |= (uint32_t)columns[x] - (uint32_t)room->last[x] - further;
    return !other;
}

/* Values are moved as what they are long, whatever their type. */
FMM_INLINE void move_row(spgemm_bits *room, int64_t n, const int32_t *columns, const char *values,
                         size_t width, int32_t *to, char *to_values)
{
    const bool counted = n <= (room->width <= NEAR * n ? COUNTED : FAR);
    if (!counted)
        count_words(room, columns, n);
    else if (!lies_as_before(room, n, columns))
        count_places(columns, n, room->places);
    room->last = columns;
    room->count = counted && room->alike ? n : -1;
    for (int64_t x = 0; x < n; x++) {
        const uint32_t j = (uint32_t)columns[x], word = j / WORD, above = ~j % WORD;
        const int64_t place =
            counted ? room->places[x]
                    : room->touched[word] + fmm_spgemm_bits_of(room->words[word] << above << 1);
        to[place] = (int32_t)j;
        memcpy(to_values + (size_t)place * width, values + (size_t)x * width, width);
    }
    if (counted) return;
    if (room->width <= NEAR * n)
        memset(room->words, 0, (size_t)room->width * sizeof *room->words);
    else
        for (int64_t x = 0; x < n; x++) room->words[columns[x] / WORD] = 0;
}

static void sort_row(spgemm_bits *room, int64_t n, const int32_t *columns, const char *values,
                     size_t width, int32_t *to, char *to_values)
{
    if (width == 4)
        move_row(room, n, columns, values, 4, to, to_values);
    else if (width == 8)
        move_row(room, n, columns, values, 8, to, to_values);
    else
        move_row(room, n, columns, values, 2, to, to_values);
}

spgemm_sort *const FMM_JOIN(fmm_spgemm_sort, FMM_ISA) = sort_row;

/* ---- values of rows that are alike ---- */

enum {
    ALIKE_STEPS = 256,     /* of a row, at most */
    ALIKE_PRODUCTS = 2048, /* the same */
    ALIKE_FAILURES = 4,    /* after which no more is learned in a chunk */
    ALIKE_LANES = 8,       /* of float32: fewer gain nothing */
};

#define FN(name) FMM_JOIN(name, DT)
#define OP(name) FMM_JOIN(V, name)
#define IO(name) FMM_JOIN(DT, name)
#define W ((int64_t)FMM_JOIN(LANES, V))

#define ACC float
#define V vf32
#define DT f32
#include "cpu_alike.inc"
#undef ACC
#undef V
#undef DT
#define ACC double
#define V vf64
#define DT f64
#include "cpu_alike.inc"

spgemm_alike *const FMM_JOIN(fmm_spgemm_alike, FMM_ISA)[2] = {
    (int)LANES_vf32 < (int)ALIKE_LANES ? NULL : spgemm_alike_f32,
    (int)LANES_vf32 < (int)ALIKE_LANES ? NULL : spgemm_alike_f64,
};
#else
spgemm_sort *const FMM_JOIN(fmm_spgemm_sort, FMM_ISA) = NULL;
spgemm_alike *const FMM_JOIN(fmm_spgemm_alike, FMM_ISA)[2] = {NULL, NULL};
#endif
#endif
