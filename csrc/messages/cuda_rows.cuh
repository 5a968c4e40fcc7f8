/* Messages reduced over rows: out[i,:] = reduce_p lhs op rhs, for one element type T.
 *
 * The plan deals out items (cuda/segments.cuh): a piece of a long row, or a bundle of short ones.
 * An item goes to a group of LANES lanes. COLS of them span the features of an entry with a pack
 * each; where that is fewer than eight, SPLIT entries are taken at once:
 *
 *     features      | VEC | VEC |              gridDim.y walks over tiles of COLS packs
 *     entry p       | l 0 | l 1 |  --+
 *     entry p + 1   | l 2 | l 3 |  --+-- a lane adds up every SPLIT-th entry in registers; at
 *     entry p + 2   | l 4 | l 5 |  --+   the end of the row the lanes of a feature meet in a tree
 *     entry p + 3   | l 6 | l 7 |  --+
 *
 * The steps of a chunk of CHUNK entries:
 *   fetch    Each lane asks for the column and the edge of its entries, a chunk ahead.
 *   arrive   It checks them, which waits for them.
 *   gather   Entry by entry, the lanes learn both by a shuffle and load their packs of operands,
 *            FLY entries at a time.
 *   add      They make the messages and add them, or take the larger.
 *
 * Whole rows go straight to out, the sums of a piece to its slot, and the join adds up the slots of
 * each long row (spmm/cuda_join.cuh).
 *
 * Every sum has one owner and an order that depends on the matrix alone: the same bits every time.
 * No accumulator adds more than 512 terms, here or in the join. */
#pragma once

#include "cuda_terms.cuh"

#include <type_traits>

/* A group has eight lanes or more, so that a chunk of a short row's indices is one access. Where it
 * takes many entries at once it fetches EACH of them a lane, so that FLY loads are in flight. */
template <class T_, int VEC_, int COLS_> struct rows_shape {
    typedef T_ T;
    typedef typename sum_of<T>::type A;
    static constexpr int VEC = VEC_, COLS = COLS_, LANES = COLS < 8 ? 8 : COLS;
    static constexpr int SPLIT = LANES / COLS, EACH = COLS == 1 ? 4 : COLS == 2 ? 2 : 1;
    static constexpr int CHUNK = LANES * EACH, FLY = 4;
};

/* N operands, of which rhs has VEC_RHS numbers for a pack of lhs: VEC, or one. */
template <class S, int N, int VEC_RHS, class Reduce>
static __global__ void __launch_bounds__(BLOCK, 3)
    messages_rows(const __grid_constant__ messages_args<typename S::T> s)
{
    typedef typename S::T T;
    typedef typename S::A A;
    constexpr int VEC = S::VEC, COLS = S::COLS, LANES = S::LANES, SPLIT = S::SPLIT, FLY = S::FLY;
    constexpr int EACH = S::EACH, CHUNK = S::CHUNK, IDS = N == 1 ? 1 : 2;
    constexpr bool ADDS = std::is_same<Reduce, reduce_sum>::value;
    let_next_start();
    const task<LANES> t = find_task<LANES, false>(s);
    const int lane = t.lane, slot = lane / COLS;
    const int32_t column = (int(blockIdx.y) * COLS + lane % COLS) * VEC;
    const bool inside = column < s.feat_out, writes = inside && slot == 0;
    const A sign = Reduce::weight(A(1), s.reduce);

    /* Counts are of the type of sums. */
    auto put = [&](int r, int64_t row, A *sums, int32_t length, bool whole) {
        auto slot_at = [&] { return s.partial + int64_t(t.item.from) * s.width + column; };
        auto finish = [&](A all) { return Reduce::finish(all, length, s.reduce); };
        auto give = [&](auto *out) {
            out += row * s.out_row + column;
            if (whole)
                hand_over<typename std::remove_pointer<decltype(out)>::type, VEC>(t, r, sums, out,
                                                                                  slot_at, finish);
            else
                store<typename std::remove_pointer<decltype(out)>::type, VEC>(out, sums);
        };
        if constexpr (N == SIDES)
            if (s.op == FMM_COMBINE_ONE) return give(reinterpret_cast<A *>(s.out));
        give(s.out);
    };
    for_empty_rows(s, t, [&](int32_t row) {
        A zeros[VEC] = {};
        if (writes) put(0, row, zeros, 0, false);
    });

    /* Where the lane's pack lies in row 0 of each operand; in row i, where it belongs to rows. */
    const char *start[N], *from[N];
    uint32_t far_row[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        start[k] = s.of[k].data;
        if (inside && start[k]) start[k] += offset_of<T>(s.of[k], s.axis, column);
        far_row[k] = s.of[k].at == FMM_AT_ROW ? 0 : s.of[k].row;
    }

    int32_t near[IDS][EACH], near_next[IDS][EACH]; /* -1 where there is no entry */
    cursor<LANES> next = {};
    auto fetch = [&] {
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
            for (int k = 0; k < IDS; k++) {
                near_next[k][e] = -1;
                if (e * LANES >= next.left) continue;
                const int64_t p = next.from + e * LANES;
                near_next[k][e] = s.by[k].of ? __ldg(s.by[k].of + p) : int32_t(p) & s.by[k].pass;
            }
    };
    auto arrive = [&] {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            bool there = true;
#pragma unroll
            for (int k = 0; k < IDS; k++) {
                there = there && (uint32_t)near_next[k][e] < (uint32_t)s.by[k].limit;
                near[k][e] = near_next[k][e];
            }
            if (!there) near[0][e] = -1;
        }
    };

    /* FLY steps of a chunk, from step c on. An entry that is not there loads a line of zeros, and
     * what it gives is left out: 0 / 0 would not be 0. */
    A sum[VEC];
    auto gather_and_add = [&](int c) INLINED {
        operands<T, VEC, VEC_RHS, N> given[FLY];
        bool there[FLY];
#pragma unroll
        for (int f = 0; f < FLY; f++) {
            const int first = (c + f) * SPLIT; /* in the chunk: that of slot 0 */
            uint32_t id[IDS];
#pragma unroll
            for (int k = 0; k < IDS; k++)
                id[k] = __shfl_sync(ALL, near[k][first / LANES], first % LANES + slot, LANES);
            there[f] = int32_t(id[0]) >= 0 && inside;
            given[f].load_from(there[f], [&](int k) {
                const uint32_t j = s.of[k].at == FMM_AT_EDGE ? id[IDS - 1] : id[0];
                const char *const at = row_at(from[k], j, far_row[k]);
                return reinterpret_cast<const T *>(N < SIDES || from[k] ? at : NULL);
            });
        }
#pragma unroll
        for (int f = 0; f < FLY; f++) {
            A term[VEC];
            if (!given[f].terms(s.op, s.mask_op, term) || !there[f]) continue;
#pragma unroll
            for (int v = 0; v < VEC; v++) sum[v] = Reduce::add(sum[v], sign, term[v]);
        }
    };

    next.go_to(t.mine, 0, lane);
    fetch();
    arrive();
    for (int r = 0; r < t.rows; r++) {
        const int32_t length = next.left + lane;
        const int32_t row = __shfl_sync(ALL, t.mine.row, r, LANES);
#pragma unroll
        for (int k = 0; k < N; k++)
            from[k] = start[k] + (s.of[k].at == FMM_AT_ROW ? row * int64_t(s.of[k].row) : 0);
#pragma unroll
        for (int v = 0; v < VEC; v++) sum[v] = Reduce::template start<A>();

        /* At least one round, in which the next row's entries are fetched. */
        const int longest = max(most_in_warp<LANES>(length), 1);
        sums_aside<A, VEC> aside;
        for (int done = 0; done < longest; done += CHUNK) {
            if (ADDS && done && done % CHAIN == 0) aside.put(sum, done == CHAIN);
            if (done + CHUNK < longest)
                next.from += CHUNK, next.left -= CHUNK;
            else
                next.go_to(t.mine, r + 1, lane);
            fetch();
#pragma unroll
            for (int c = 0; c < CHUNK / SPLIT; c += FLY) {
                if (c && done + c * SPLIT >= longest) break;
                gather_and_add(c);
            }
            arrive();
        }
        if (ADDS && longest > CHAIN) aside.take(sum);
#pragma unroll
        for (int d = COLS; d < LANES; d *= 2) /* the lanes of a feature meet */
#pragma unroll
            for (int v = 0; v < VEC; v++)
                sum[v] = Reduce::join(sum[v], __shfl_xor_sync(ALL, sum[v], d));
        if (writes) put(r, row, sum, length, true);
    }
}
