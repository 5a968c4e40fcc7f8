/* From an operand's shape to a kernel's: which walk_shape a call gets, and the launch of the walk
 * and of the join behind it.
 *
 *     operands lie in packs of 16 bytes?
 *       no                           -> single elements, PER_SINGLE of them a lane
 *       yes, a head of up to 512 B   -> one pack a lane and row, in batches of several entries
 *       yes, a wider head            -> several packs a lane and row, one entry at a time
 *     heads of 8, 64 or 128 columns in f32 -> 8 columns a lane, with a kernel for that number
 *     heads of 64 or 128 in 16 bits        -> kernels for that number where arithmetic decides;
 *                                             of additive scores 16 columns a lane
 *
 * A kernel is compiled for one shape: the compiler then keeps a lane's columns in registers and
 * knows how many loads a batch starts. */
#pragma once

#include "cuda_join.cuh"
#include "cuda_walk.cuh"
#include "../cuda/device.h"

/* A head gets enough lanes for its columns, and more, each with fewer loads, as long as a warp
 * still holds every head; or 2^BITS lanes where the kernel is compiled for them. A group gets all
 * heads, or as many as a warp holds. */
template <class SHAPE, class T> static void deal_lanes(attend_args<T> *s, int score)
{
    constexpr int VEC = SHAPE::VEC, PER = SHAPE::PER, BITS = SHAPE::BITS;
    /* ADDITIVE has one number a head on the side of the score, which needs no lane of its own. */
    const int64_t feat = s->feat_v > s->feat || score == FMM_ADDITIVE ? s->feat_v : s->feat;
    int32_t most = BITS >= 0 && BITS < 5 && PER > 1 ? 4 : 5;
    const int bytes = VEC * PER * (int)sizeof(T) * gathered_rows(score);
    while (s->narrow && bytes << most > 256) most--;
    int32_t heads = 0, bits = 0;
    while (heads < 5 && 1 << heads < s->heads) heads++;
    while (bits < 5 && (int64_t)VEC * PER << bits < feat) bits++;
    while (BITS < 0 && bits + heads < 5 && (int64_t)VEC << bits < feat) bits++;
    s->lane_bits = bits;
    s->group_bits = bits + heads < most ? bits + heads : bits > most ? bits : most;
    /* A chunk has an entry a lane, and batches must fit it. */
    while (1 << s->group_bits < SHAPE::FLY) s->group_bits++;
}

/* The join of long rows, if the plan has any. It starts while the walk still runs and waits for it
 * where it first needs its sums. */
template <class TASK>
static void launch_join(const fmm_exec *exec, attend_args<typename TASK::T> &s)
{
    typedef typename TASK::T T;
    constexpr int WALK = TASK::WALK;
    constexpr bool POS = TASK::POS;
    if (!s.plan.long_rows_max || !s.partial) return;
    const int64_t across = s.width / QUAD - (WALK == FORWARD);
    const int64_t threads = s.plan.long_rows_max * s.heads * across;
    if (!threads) return;
    /* FORWARD of ADDITIVE divides a hub among threads as if it had POS's columns even where it has
     * not, so that a result does not depend on whether pos is asked for. */
    const bool lacks_pos = WALK == FORWARD && TASK::SCORE == FMM_ADDITIVE && !POS;
    s.join = shape_of_join(s.heads, across, lacks_pos ? 2 * across : across);
    /* There are as many blocks as run at once. More would only look up their first rows after the
     * walk has ended. */
    const int64_t at_once = fmm_cuda_processors(exec->index) * (sizeof(T) == 8 ? CREWS / 2 : CREWS);
    launch_early(exec->index, stream_of(exec), attend_join<T, WALK, POS>,
                 dim3((unsigned)smaller(ceil_div(threads, CREW), at_once)), s, CREW);
}

/* The walk gets a group of lanes for each item. Where it sums gatt it gets as many blocks as gatt
 * has parts, and groups take several items. */
template <class TASK, class SHAPE>
static void launch_lanes(const fmm_exec *exec, attend_args<typename TASK::T> s, int64_t parts)
{
    typedef walk_traits<TASK, SHAPE> K;
    deal_lanes<SHAPE>(&s, K::SCORE);
    const int64_t groups = ceil_div(s.heads, 1 << (s.group_bits - s.lane_bits));
    s.shift = bundle_shift(exec, s.a.rows, groups, 1 << s.group_bits);
    const int64_t items = items_max(s.plan, s.a.rows, s.a.nnz, s.shift);
    const bool collects = K::COLLECT && s.to_att.data;
    const int64_t blocks = smaller(ceil_div(items << s.group_bits, K::THREADS), INT32_MAX);
    const dim3 grid((unsigned)(collects ? parts : blocks), (unsigned)groups);
    if (K::WALK == COLS && s.early)
        launch_early(exec->index, stream_of(exec), attend_segments<K>, grid, s, K::THREADS);
    else
        attend_segments<K><<<grid, K::THREADS, 0, stream_of(exec)>>>(s);
    launch_join<TASK>(exec, s);
}

/* Whether heads of q, k and v have just as many columns. */
template <class T> static bool fills(const attend_args<T> &s, int score, int32_t feat)
{
    return (score == FMM_ADDITIVE || s.feat == feat) && s.feat_v == feat;
}

/* Heads of 8 columns are the commonest. They have kernels of their own wherever the lanes of a head
 * exchange sums, for which the number of lanes is then known. So have those of 64 and 128 in 16
 * bits where the arithmetic decides: without, gatv2 in bf16 took longer than in f32. The pass
 * ROWS has registers for four rows in flight at heads of 8, where others have two. The pass COLS of
 * dot has registers for two at heads of 64 and 128; with four it would spill 460 bytes. */
template <class TASK, int VEC, int PER, int FLY, int BLOCKS>
static void launch_walk(const fmm_exec *exec, const attend_args<typename TASK::T> &s, int64_t parts)
{
    enum { EIGHT = VEC == 8 ? 0 : 1 };
    constexpr int FOUR = TASK::WALK == ROWS && FLY == 2 ? 4 : FLY;
    if constexpr (TASK::KIND != WITH_EDGES &&
                  (TASK::WALK != FORWARD || TASK::SCORE != FMM_ADDITIVE))
        if (fills(s, TASK::SCORE, 8))
            return launch_lanes<TASK, walk_shape<VEC, PER, FOUR, BLOCKS, EIGHT>>(exec, s, parts);
    constexpr bool BUSY = TASK::SCORE == FMM_GATV2 || TASK::WALK == COLS;
    if constexpr (VEC == 8 && TASK::KIND != WITH_EDGES && BUSY) {
        constexpr int TWO = TASK::WALK == COLS && TASK::SCORE == FMM_DOT ? 2 : FLY;
        if (fills(s, TASK::SCORE, 64))
            return launch_lanes<TASK, walk_shape<VEC, PER, TWO, BLOCKS, 3>>(exec, s, parts);
        if (fills(s, TASK::SCORE, 128))
            return launch_lanes<TASK, walk_shape<VEC, PER, TWO, BLOCKS, 4>>(exec, s, parts);
    }
    launch_lanes<TASK, walk_shape<VEC, PER, FLY, BLOCKS>>(exec, s, parts);
}

/* Shapes with 8 columns a lane, in groups of at most 16 lanes, which gather 512 bytes of a row.
 * Compared with 4 columns a lane, half as many lanes repeat what all lanes of a head do alike, and
 * sums over a head take one exchange less. The walk then has half as many warps, which are too few
 * for a small matrix of long rows if k and v are both read (measured on ogbl-ddi, 2 M entries: 6 to
 * 20 % slower; on 115 M entries of rows as long: 1 to 20 % faster). */
template <class T> static bool takes_eights(const attend_args<T> &s, int score, kind kind)
{
    return ((fills(s, score, 8) && s.heads > 2) || fills(s, score, 64) || fills(s, score, 128) ||
            fills(s, score, 256)) &&
           (kind == SAME_FAR || (kind == PLAIN && !s.few));
}
template <class TASK>
static void launch_eights(const fmm_exec *exec, const attend_args<typename TASK::T> &s,
                          int64_t parts)
{
    constexpr bool SCALAR = TASK::SCORE == FMM_ADDITIVE, BACK = TASK::WALK != FORWARD;
    constexpr bool SAME = TASK::KIND == SAME_FAR;
    constexpr int FLY = SCALAR || (SAME && !BACK) ? 4 : 2;
    constexpr int BLOCKS = BACK ? 2 : SCALAR ? 4 : 5;
    constexpr int MORE = BACK && SCALAR ? BLOCKS + 1 : BLOCKS;
    if (s.feat_v == 8) launch_lanes<TASK, walk_shape<4, 2, FLY, BLOCKS, 0>>(exec, s, parts);
    if (s.feat_v == 64) launch_lanes<TASK, walk_shape<4, 2, FLY, MORE, 3>>(exec, s, parts);
    if (s.feat_v == 128) launch_lanes<TASK, walk_shape<4, 2, FLY, MORE, 4>>(exec, s, parts);
    constexpr int PER = SCALAR ? 4 : 2, BITS = SCALAR ? 4 : 5;
    if (s.feat_v == 256)
        launch_lanes<TASK, walk_shape<4, PER, FLY * 2 / PER, BLOCKS, BITS>>(exec, s, parts);
}

/* How many blocks a multiprocessor must have registers for (FORWARD's blocks are half as large).
 * The numbers were chosen from the SASS of sm_90: a walk's registers hardly spill, and all loads of
 * a batch start before the first is waited for. With one block more there are too few registers for
 * that, and a batch waits two or three times instead of once. The backward of additive scores has a
 * third block although it spills, because it does not spill in its innermost loop. */
template <class T, int WALK, int SCORE, bool POS> static constexpr int blocks_of(bool edges)
{
    if (WALK != FORWARD) {
        if (sizeof(T) == 8 || SCORE != FMM_ADDITIVE) return 2;
        return sizeof(T) == 4 || !edges ? 3 : 2;
    }
    if (sizeof(T) == 8) return 4;
    if (SCORE == FMM_ADDITIVE) return edges || POS || sizeof(T) == 2 ? 6 : 8;
    return edges || sizeof(T) == 2 ? 4 : SCORE == FMM_DOT ? 5 : 6;
}

/* A kernel WITH_EDGES can do what the others do. PLAIN and SAME_FAR have kernels of their own only
 * where reading less pays for one more kernel in the library. */
template <class T, int WALK, int SCORE, bool POS>
static void choose_walk(const fmm_exec *exec, const attend_args<T> &s, bool packs, kind kind,
                        int64_t parts)
{
    typedef walk_task<T, WALK, SCORE, PLAIN, POS> plain;
    typedef walk_task<T, WALK, SCORE, SAME_FAR, POS> same;
    typedef walk_task<T, WALK, SCORE, WITH_EDGES, POS> with_edges;
    enum { V = 16 / sizeof(T), MANY = per_packs(V), ONE = BLOCK / threads_of(WALK) };
    constexpr bool BACK = WALK != FORWARD;
    constexpr bool HAS_SAME = SCORE == FMM_GATV2 && WALK != COLS && sizeof(T) < 8;
    const int64_t feat = s.feat > s.feat_v ? s.feat : s.feat_v;
    if constexpr (sizeof(T) == 4 && (WALK != ROWS || SCORE != FMM_ADDITIVE))
        if (packs && takes_eights(s, SCORE, kind)) {
            if constexpr (HAS_SAME)
                if (kind == SAME_FAR) return launch_eights<same>(exec, s, parts);
            return launch_eights<plain>(exec, s, parts);
        }
    /* Additive scores of 16 bits: 16 columns a lane take fewer instructions. One head of 64 would
     * have too few lanes. */
    if constexpr (sizeof(T) == 2 && SCORE == FMM_ADDITIVE && WALK != ROWS) {
        const bool wide = packs && kind == PLAIN && !s.few && s.heads * s.feat_v >= 128;
        constexpr int FLY = BACK ? 2 : 4, BLOCKS = BACK ? 2 : 4;
        if (wide && fills(s, SCORE, 64))
            return launch_lanes<plain, walk_shape<V, 2, FLY, BLOCKS, 2>>(exec, s, parts);
        if (wide && fills(s, SCORE, 128))
            return launch_lanes<plain, walk_shape<V, 2, FLY, BLOCKS, 3>>(exec, s, parts);
    }
    if (packs && feat <= WARP * V) {
        constexpr int FLY = BACK && SCORE == FMM_GATV2 && sizeof(T) == 2 ? 2 : 4;
        constexpr int BLOCKS = blocks_of<T, WALK, SCORE, POS>(false);
        if constexpr (HAS_SAME)
            if (kind == SAME_FAR) return launch_walk<same, V, 1, FLY, BLOCKS>(exec, s, parts);
        if constexpr (sizeof(T) < 8)
            if (kind != WITH_EDGES) return launch_walk<plain, V, 1, FLY, BLOCKS>(exec, s, parts);
        return launch_walk<with_edges, V, 1, 2, blocks_of<T, WALK, SCORE, POS>(true)>(exec, s,
                                                                                      parts);
    }
    if (packs && feat <= WARP * V * MANY)
        return launch_walk<with_edges, V, MANY, 1, ONE>(exec, s, parts);
    launch_walk<with_edges, 1, PER_SINGLE, 1, BACK || sizeof(T) == 8 ? ONE : 4>(exec, s, parts);
}
/* Only FORWARD of ADDITIVE has POS. */
template <class T, int WALK>
static void choose_score(const fmm_exec *exec, const attend_args<T> &s, int score, bool packs,
                         kind kind, int64_t parts)
{
    if constexpr (WALK == FORWARD)
        if (s.to_pos_w.data)
            return choose_walk<T, WALK, FMM_ADDITIVE, true>(exec, s, packs, kind, parts);
    if (score == FMM_DOT) choose_walk<T, WALK, FMM_DOT, false>(exec, s, packs, kind, parts);
    if (score == FMM_ADDITIVE)
        choose_walk<T, WALK, FMM_ADDITIVE, false>(exec, s, packs, kind, parts);
    if (score == FMM_GATV2) choose_walk<T, WALK, FMM_GATV2, false>(exec, s, packs, kind, parts);
}
