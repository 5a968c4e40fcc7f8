/* Step 1 of the walk, fetch: the column indices, edges and dropout's decisions of a row's entries.
 *
 * Each lane of a group reads one entry, a chunk of as many entries as the group has lanes, and one
 * chunk ahead of the one in use; the lanes then hand entries round by shuffle:
 *
 *     lane of the group    0      1      2      3    ...
 *     near                 p      p+1    p+2    p+3        in use: batches of FLY of these
 *     near_next            p+g    p+g+1  p+g+2  p+g+3      on the way
 *
 * Loads are unconditional, so that the compiler keeps them together and waits for them once. Past
 * the end of a row a lane reads the last entry again, which then counts for nothing: it is ABSENT.
 * In results an ABSENT entry does not even count as 0 times infinity. In gradients, and in results
 * of additive scores with POS, an infinity that the last entry of a row gathers may become NaN: a
 * condition there would pull the loads apart and cost up to a fifth of the time. */
#pragma once

#include "cuda_lanes.cuh"

static constexpr uint32_t ABSENT = 0x80000000u; /* a bit of entry.column */
template <bool EDGES> struct entry {
    uint32_t column;
};
template <> struct entry<true> {
    uint32_t column;
    uint32_t keep;      /* bit h is 1 if dropout keeps head h of the group */
    uint32_t low, high; /* of edge, until it has arrived */
    int64_t edge;
};

/* Dropout's decisions on `heads` heads of an edge, from the counter-based generator Philox: they
 * depend on seed, edge (or its key) and head alone, so that every pass makes the same ones and none
 * is stored. A block of the generator decides on four heads. */
template <class T>
static __device__ __forceinline__ uint32_t keep_mask(const attend_args<T> &s, uint64_t seed,
                                                     int64_t edge, int32_t first_head,
                                                     int32_t heads)
{
    uint32_t mask = 0;
    if (s.keys) edge = __ldg(s.keys + edge);
    const int32_t end = min(first_head + heads, s.heads);
    for (int32_t four = first_head / 4; four * 4 < end; four++) {
        const fmm_philox_block block = fmm_philox(seed, (uint64_t)edge, (uint32_t)four);
        UNROLLED(i, 4) {
            const int32_t bit = four * 4 + i - first_head;
            if (bit >= 0 && bit < heads && block.word[i] >= s.keep_limit) mask |= 1u << bit;
        }
    }
    return mask;
}

/* Starts the loads of entry `at` + this lane of a row. Nothing here waits for them, and none is
 * under a branch, at whose end it would be waited for. */
STEP void fetch(const attend_lane<K> &me, const walk_args<K> &s, const span &from, int at,
                entry<K::EDGES> *to)
{
    const bool some = from.length > 0;
    const int64_t p = from.begin + min(at + me.lane, from.length - 1);
    const int32_t *const none = reinterpret_cast<const int32_t *>(&no_row);
    to->column = (uint32_t)__ldg(some ? s.a.idx + p : none);
    if constexpr (K::EDGES) {
        to->low = (uint32_t)p, to->high = (uint32_t)(p >> 32);
        if (!s.edges.eid) return;
        const int32_t *const eid = static_cast<const int32_t *>(s.edges.eid);
        const int32_t *const words = some ? eid + (s.edges.wide ? 2 * p : p) : none;
        to->low = (uint32_t)__ldg(words);
        if (s.edges.wide) to->high = (uint32_t)__ldg(words + 1);
    }
}

/* Waits for the loads and checks what they brought. `there` says that the entry is not past the end
 * of its row. */
STEP void arrive(const attend_lane<K> &me, const walk_args<K> &s, bool there, entry<K::EDGES> *it)
{
    if (it->column >= (uint32_t)s.a.cols) it->column = ABSENT;
    if (!there) it->column |= ABSENT;
    if constexpr (K::EDGES) {
        const bool narrow = s.edges.eid && !s.edges.wide;
        it->edge = narrow ? (int32_t)it->low : int64_t(uint64_t(it->high) << 32 | it->low);
        if (!is_edge(s.edges, it->edge)) it->column = ABSENT, it->edge = 0;
        it->keep = s.drops ? keep_mask(s, me.seed, it->edge, me.first_head, me.group_heads) : ALL;
    }
}
