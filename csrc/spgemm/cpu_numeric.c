/* The loops of the numeric phase for every dtype, and what they share: tables and sorted rows.
 *
 *     cpu_rows.inc    rows of C whose columns are known, by dense, hashed or sorted sums
 *     cpu_whole.inc   rows of C whose columns are found on the way
 *     here            hash tables, the pool of second tables, and a row's columns in order
 *
 * What has no dtype is here and compiled once. A table of the pool belongs to one thread for as
 * long as one row takes, so that a lock is a flag, and whoever waits for it waits for a row. */
#include "cpu_symbolic.h"

#include <sched.h>
#include <stdlib.h>

/* The upper bits of the product, which all bits of j reach. */
static inline uint64_t spgemm_hash_of(int64_t j)
{
    return (uint64_t)j * UINT64_C(0x9E3779B97F4A7C15) >> 32;
}

/* Empties a table for n columns, of which at most a quarter is taken: chains of a fuller one
 * end where no predictor foresees. Returns its mask. */
static uint64_t spgemm_table(int32_t *keys, int64_t n)
{
    uint64_t slots = 16;
    while (slots < SPGEMM_SPACE * (uint64_t)n) slots *= 2;
    memset(keys, 0xff, slots * sizeof *keys);
    return slots - 1;
}

/* Takes a table of the pool for n columns; waits where all are taken, since whoever has one gives
 * it back after one row. Answers its number, -1 where n columns do not fit into any. */
static int64_t spgemm_take_table(const spgemm_numeric *t, spgemm_place *at, int64_t n)
{
    if (SPGEMM_SPACE * n > t->table_slots) return -1;
    int64_t k = 0;
    while (atomic_flag_test_and_set_explicit(&t->taken[k], memory_order_acquire))
        if (++k == t->table_count) k = 0, sched_yield();
    at->more = (int32_t *)(void *)(t->tables + (size_t)(k * t->table_slots) * (4 + t->width));
    at->more_slots = at->more + t->table_slots;
    at->more_mask = spgemm_table(at->more, n);
    return k;
}

static void spgemm_give_table(const spgemm_numeric *t, spgemm_place *at, int64_t k)
{
    at->more = NULL;
    atomic_flag_clear_explicit(&t->taken[k], memory_order_release);
}

static int compare_columns(const void *x, const void *y)
{
    const int32_t i = *(const int32_t *)x, j = *(const int32_t *)y;
    return (i > j) - (i < j);
}

/* The columns of entries [begin, end), rising; returns how many there are. Those of a product are
 * sorted already, those of a mask may not be. */
static int64_t spgemm_sorted_row(const fmm_csr *c, int64_t begin, int64_t end, int32_t *to)
{
    int64_t n = 0;
    bool rises = true;
    for (int64_t r = begin; r < end; r++) {
        const int64_t j = column_of(c, r);
        if (j < 0) continue;
        rises &= !n || to[n - 1] <= j;
        to[n++] = (int32_t)j;
    }
    if (!rises) qsort(to, (size_t)n, sizeof *to, compare_columns);
    return n;
}

#define LOOPS "../spgemm/cpu_rows.inc"
#include "../cpu/dtypes.inc"

#define OF(dt)                                                                                     \
    {                                                                                              \
        spgemm_rows_##dt, spgemm_lay_##dt,                                                         \
        {                                                                                          \
            {spgemm_mark_##dt, spgemm_mark_ones_##dt},                                             \
            {                                                                                      \
                spgemm_stand_##dt, spgemm_stand_ones_##dt                                          \
            }                                                                                      \
        }                                                                                          \
    }
const spgemm_loops fmm_spgemm_loops[FMM_DTYPES] = {
    [FMM_F32] = OF(f32), [FMM_F64] = OF(f64), [FMM_F16] = OF(f16), [FMM_BF16] = OF(bf16)};
