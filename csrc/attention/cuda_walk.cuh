/* The walk over the entries of a matrix: attention's kernel, for all passes.
 *
 * The plan (segments.cuh) deals out items. An item is a piece of a long row, or a bundle of short
 * rows. A group of lanes takes an item and walks its rows one after the other; a row passes through
 * the steps that the files next to this one hold:
 *
 *     item ---- row ---- chunk of entries ---- batch of FLY entries
 *       |         |            |                    |
 *       |         |          fetch (1)       gather (2), score (3), accumulate (4)
 *       |       read_own, finish (5)
 *     find_item, find_span
 *
 *     block            walk_traits::THREADS threads, as many groups as fit
 *     group of lanes   one item after the other; all heads of its rows, or those of blockIdx.y
 *     lane             VEC columns of one head, PER times (cuda_lanes.cuh)
 *
 * Each of these steps is one function, which the compiler inlines. A chunk is fetched while the one
 * before is used, and the own operands of a row while the row before is walked, so that short rows
 * cost about what their entries cost.
 *
 * Why this is deterministic: a row, or a piece of one, has one owner, which adds its entries in the
 * order of storage. Pieces are cut at places that depend on the matrix alone and are joined in
 * order. There are no floating-point atomics. */
#pragma once

#include "cuda_finish.cuh"

/* One row, or one piece of a row: all chunks, and all batches of each. `near` holds the row's first
 * chunk and is left with the first chunk of the next row, number r + 1 of `mine`. */
STEP void walk_row(const attend_lane<K> &me, const walk_args<K> &s, const span &mine,
                   const span &now, int r, const own_numbers<K> &own,
                   const typename K::A (&att)[K::PS][K::VS], entry<K::EDGES> *near,
                   row_sums<K> *sums)
{
    entry<K::EDGES> near_next;
    const int longest = max(me.most_of_groups(now.length), 1);
    walk_aside<K> aside;
    for (int done = 0; done < longest; done += me.group) {
        if (done && done % CHAIN == 0) aside.put(done == CHAIN, sums);
        arrive(me, s, done + me.lane < now.length, near);
        /* The chunk ahead is this row's next one, or the first of the row after it. */
        span ahead = now;
        int at = done + me.group;
        if (at >= longest) {
            ahead = me.span_at(mine, r + 1), at = 0;
            if (r + 1 == me.group) ahead.length = 0;
        }
        fetch(me, s, ahead, at, &near_next);
        const int end = min(me.group, longest - done);
        for (int c = 0; c < end; c += K::FLY) {
            batch<K> b;
            scored<K> scores;
            deal(me, s, *near, c, &b);
            gather(me, s, own, &b);
            score(me, s, own, att, b, &scores);
            if constexpr (K::BACK)
                accumulate_back(me, s, now.row, b, scores, sums);
            else
                accumulate_forward(b, scores, sums);
        }
        *near = near_next;
    }
    if (longest > CHAIN) aside.take(sums);
}

/* All warps of a block take the same number of turns (block_k), because a block that collects gatt
 * meets at a barrier in the end. A matrix without items has one turn, for its empty rows. */
template <class K>
static __global__ void __launch_bounds__(K::THREADS, K::BLOCKS)
    attend_segments(const __grid_constant__ walk_args<K> s)
{
    typedef typename K::T T;
    typedef typename K::A A;
    constexpr bool COLLECT = K::COLLECT;
    let_next_start(); /* the join, if it is launched early */

    const attend_lane<K> me(s);
    /* Copies: through `me` the compiler shares more between rows, and spills. */
    const int group = me.group, base = me.base;
    A att[K::PS][K::VS];
    __shared__ A collected[COLLECT ? K::PS * K::VS : 1][K::THREADS];
    if (K::SCORE == FMM_GATV2)
        UNROLLED(i, K::PS) {
            typename K::pack_s packed = {};
            if (me.in_s[i]) packed = load<T, K::VS>(s.att.at(0, me.head, me.column[i]));
            unpack<T, K::VS>(packed, att[i]);
        }
    if (COLLECT)
        UNROLLED(c, K::PS * K::VS) collected[c][threadIdx.x] = A(0);

    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t items = count_items(counts, s.shift);
    const int in_block = K::THREADS >> s.group_bits; /* groups */
    int64_t k = int64_t(blockIdx.x) * in_block + (threadIdx.x >> s.group_bits);
    for (int64_t block_k = int64_t(blockIdx.x) * in_block; block_k < max(items, int64_t(1));
         block_k += int64_t(gridDim.x) * in_block, k += int64_t(gridDim.x) * in_block) {
        item_view item = find_item(counts, k, s.shift);
        const span mine = find_span(s.a, s.plan, &item, me.lane);
        const int rows = me.most_of_groups(max(item.count, item.count == 0));

        for_empty_rows(s, counts, items, k, [&](int32_t row) { write_empty(me, s, row); });

        entry<K::EDGES> near;
        span now = me.span_at(mine, 0);
        fetch(me, s, now, 0, &near);
        if (K::WALK == COLS) wait_for_previous(); /* for the kernel that packed the statistics */
        own_row<K> packed;
        read_own(me, s, now.row, &packed);
        for (int r = 0; r < rows; r++) {
            own_numbers<K> own;
            row_sums<K> sums;
            sums.start();
            own.take(packed);
            if (K::AHEAD)
                read_own(me, s, __shfl_sync(ALL, mine.row, base + ((r + 1) & (group - 1))),
                         &packed);

            walk_row(me, s, mine, now, r, own, att, &near, &sums);
            finish(me, s, item, r, now.row, att, &sums);
            if constexpr (COLLECT)
                if (now.length > 0) collect(sums, collected); /* else no row at all was read */
            now = me.span_at(mine, r + 1);
            if (!K::AHEAD) read_own(me, s, now.row, &packed);
        }
        if (!COLLECT) break; /* the grid has a group for each item */
    }
    if constexpr (COLLECT) write_collected(me, s, collected, in_block);
}
