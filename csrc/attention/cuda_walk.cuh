/* The walk over entries: cuda.cuh says whose rows.
 *
 * The plan (segments.cuh) deals out items: a piece of a long row, or a bundle of short ones. An
 * item goes to a group of lanes that has as many heads as fit a warp, each head a power of two of
 * lanes and each of those lanes VEC neighbouring columns, PER times; gridDim.y walks over the heads
 * beyond. Lanes read idx (and the edges and dropout's masks) of as many entries at once, one such
 * chunk ahead, hand them round by shuffles, and gather FLY rows at a time. All heads of a row thus
 * share idx and are gathered as one stretch of memory. Where BITS says how many lanes a head has,
 * which its columns fill, the sums over them are straight code, across which unpacked numbers stay
 * in registers.
 *
 * FORWARD keeps the largest logit so far, and sums relative to it; FLY entries move it once. Whole
 * rows are written once; pieces go to slots of the workspace, which the join adds up in order
 * (cuda_join.cuh). With POS, FORWARD of ADDITIVE also sums the entries whose argument is above
 * 0 on their own. COLS of ADDITIVE needs <gout, v> of no entry, only their sum in gk: lanes sum
 * theirs over FLY entries before they add them up, and there it cancels with delta. gatt alone has
 * no owner among the items: blocks take a fixed share of them each, and leave one sum a block. The
 * same bits every time. */
#ifndef FMM_CUDA_ATTENTION_WALK_CUH
#define FMM_CUDA_ATTENTION_WALK_CUH

#include "cuda_lanes.cuh"

template <class T, int WALK, int SCORE, int VEC, int PER, int FLY, int BLOCKS, int KIND, bool POS,
          int BITS>
static __global__ void __launch_bounds__(threads_of(WALK), BLOCKS)
    attend_segments(const __grid_constant__ attend_args<T> s)
{
    typedef typename sum_of<T>::type A;
    constexpr bool SCALAR = SCORE == FMM_ADDITIVE, BACK = WALK != FORWARD;
    constexpr bool EDGES = KIND == WITH_EDGES, SAME = KIND == SAME_FAR;
    constexpr bool LATE = SCALAR && WALK == COLS; /* lanes' dot products meet once in FLY */
    constexpr bool FAR_S = !LATE;                 /* else q lies with the statistics */
    /* lse_rest is read beside q: a branch to it spills registers. Where a head is one lane's it has
     * registers to spare, and so little else to read that the rest of a sector shows. */
    constexpr bool PAIR = LATE && BITS != 0;
    constexpr bool COLLECT = WALK == ROWS && SCORE == FMM_GATV2;
    typedef attend_lane<T, WALK, SCORE, VEC, PER, EDGES, BITS> lane_of;
    constexpr int THREADS = threads_of(WALK);
    constexpr bool FULL = lane_of::FULL;
    /* The next row's own operands are read during this row. */
    constexpr bool AHEAD = PER == 1 || FULL;
    constexpr int PS = lane_of::PS, VS = lane_of::VS; /* the score side's registers */
    let_next_start();

    const lane_of me(s);
    const int group = me.group, base = me.base;
    const int32_t head = me.head;
    const uint32_t stats_row = planes_of(SCORE) * (uint32_t)s.heads * (uint32_t)sizeof(A);
    A att[PS][VS];
    /* gatt's sums of all rows (turned has one row's), a column a thread: registers are short. */
    __shared__ A collected[COLLECT ? PS * VS : 1][THREADS];
    if (SCORE == FMM_GATV2)
#pragma unroll
        for (int i = 0; i < PS; i++) {
            PACK(T, VS) packed = {};
            if (me.in_s[i]) packed = load<T, VS>(s.att.at(0, head, me.column[i]));
            unpack<T, VS>(packed, att[i]);
        }
    if (COLLECT)
#pragma unroll
        for (int c = 0; c < PS * VS; c++) collected[c][threadIdx.x] = A(0);

    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t items = count_items(counts, s.shift);
    const int in_block = THREADS >> s.group_bits;
    int64_t k = int64_t(blockIdx.x) * in_block + (threadIdx.x >> s.group_bits);
    for (int64_t block_k = int64_t(blockIdx.x) * in_block; block_k < max(items, int64_t(1));
         block_k += int64_t(gridDim.x) * in_block, k += int64_t(gridDim.x) * in_block) {
        const item_view item = find_item(counts, k, s.shift);
        const span mine = find_span(s.a, s.plan, item, me.lane);
        const int rows = me.most_of_groups(max(item.count, item.count == 0));

        /* Rows without entries: as many to each item. */
        for (int64_t e = k; e < s.a.rows - counts.ends[BUNDLES]; e += max(items, int64_t(1))) {
            if (k >= items && k) break;
            me.template write_empty<POS>(
                s, clamp(__ldg(s.plan.order + counts.ends[BUNDLES] + e), 0, s.a.rows - 1));
        }

        entry<EDGES> near, near_next;
        span now = me.span_at(mine, 0);
        me.fetch(s, now, 0, &near);
        if (WALK == COLS) wait_for_previous();
        typename lane_of::own own;
        me.read_own(s, now.row, &own);
        for (int r = 0; r < rows; r++) {
            A own_s[PS][VS], own_v[PER][VEC], sum_s[PS][VS], sum_v[PER][VEC], turned[PS][VS];
            A also[PER][VEC], pos_w = A(0);
            A high = -A(INFINITY), sum = A(0), own_lse = A(0), own_delta = A(0);
#pragma unroll
            for (int i = 0; i < PS; i++) {
                unpack<T, VS>(own.s[i], own_s[i]);
#pragma unroll
                for (int v = 0; v < VS; v++) sum_s[i][v] = turned[i][v] = A(0);
            }
#pragma unroll
            for (int i = 0; i < PER; i++) {
                if (BACK) unpack<T, VEC>(own.v[i], own_v[i]);
#pragma unroll
                for (int v = 0; v < VEC; v++) sum_v[i][v] = also[i][v] = A(0);
            }
            if (WALK == ROWS) own_lse = lse_of_weights(own.lse), own_delta = own.delta;
            if (AHEAD)
                me.read_own(s, __shfl_sync(ALL, mine.row, base + ((r + 1) & (group - 1))), &own);

            const int longest = max(me.most_of_groups(now.length), 1);
            walk_aside<A, WALK, POS, COLLECT, PS * VS, PER * VEC> aside;
            for (int done = 0; done < longest; done += group) {
                if (done && done % CHAIN == 0)
                    aside.put(done == CHAIN, high, &sum, &pos_w, sum_v[0], also[0], sum_s[0],
                              turned[0]);
                me.arrive(s, done + me.lane < now.length, &near);
                span ahead = now;
                int at = done + group;
                if (at >= longest) {
                    ahead = me.span_at(mine, r + 1), at = 0;
                    if (r + 1 == group) ahead.length = 0;
                }
                me.fetch(s, ahead, at, &near_next);
                const int end = min(group, longest - done);
                for (int c = 0; c < end; c += FLY) {
                    PACK(T, VS) got_s[FLY][PS];
                    PACK(T, VEC) got_v[FLY][PER];
                    uint32_t j[FLY];
                    A far[FLY], rest[FLY], lse[FLY], delta[FLY], bias[FLY], by[FLY], drop[FLY];
                    int64_t edge[FLY];
#pragma unroll
                    for (int f = 0; f < FLY; f++) {
                        j[f] = __shfl_sync(ALL, near.column, base + c + f);
                        bias[f] = A(0), by[f] = drop[f] = A(1), edge[f] = 0;
                        if constexpr (EDGES) {
                            edge[f] = __shfl_sync(ALL, near.edge, base + c + f);
                            const uint32_t keep = __shfl_sync(ALL, near.keep, base + c + f);
                            if (s.drops) drop[f] = keep >> me.mine_of_heads & 1 ? s.kept : A(0);
                            by[f] = drop[f];
                        }
                    }
#pragma unroll
                    for (int f = 0; f < FLY; f++) {
                        const uint32_t at = j[f] & ~ABSENT;
                        if (FAR_S) {
#pragma unroll
                            for (int i = 0; i < PS; i++)
                                got_s[f][i] = load<T, VS>(reinterpret_cast<const T *>(
                                    row_at(me.far_s, at, s.far_s.row) +
                                    (SCALAR || PER == 1 ? 0 : me.offset_s[i])));
                        }
                        if (WALK == COLS) {
                            me.read_two(me.stats, at, stats_row, &lse[f], &delta[f]);
                            if (LATE && !PAIR) far[f] = me.read_one(me.stats_q, at, stats_row);
                            if (PAIR) me.read_two(me.stats_q, at, stats_row, &far[f], &rest[f]);
                        } else {
                            lse[f] = own_lse, delta[f] = own_delta;
                        }
#pragma unroll
                        for (int i = 0; i < PER; i++)
                            if constexpr (SAME)
                                got_v[f][i] = got_s[f][i];
                            else
                                got_v[f][i] = load<T, VEC>(
                                    reinterpret_cast<const T *>(row_at(me.far_v, at, s.far_v.row) +
                                                                (PER == 1 ? 0 : me.offset_v[i])));
                    }
                    if constexpr (EDGES) {
                        if (s.bias.data) me.read_edges(s.bias, edge, bias);
                        if (s.weight.data) {
                            A weight[FLY];
                            me.read_edges(s.weight, edge, weight);
#pragma unroll
                            for (int f = 0; f < FLY; f++) by[f] *= weight[f];
                        }
                    }

                    A logit[FLY], dot[FLY], gain[FLY];
                    /* GATV2: leaky's slope and leaky; as numbers, for predicates are few. */
                    A tilt[FLY][PS][VS], leaned[FLY][PS][VS];
                    bool above[FLY];
#pragma unroll
                    for (int f = 0; f < FLY; f++) {
                        logit[f] = dot[f] = A(0), gain[f] = A(1);
                        if constexpr (SCALAR) {
                            if (FAR_S) unpack<T, 1>(got_s[f][0], &far[f]);
                            A t = own_s[0][0] + far[f];
                            if (EDGES) t += bias[f];
                            above[f] = t > A(0);
                            gain[f] = above[f] ? A(1) : s.slope;
                            logit[f] = product(t, gain[f]);
                        } else {
#pragma unroll
                            for (int i = 0; i < PS; i++) {
                                const A before = logit[f];
                                A wide[VS];
                                unpack<T, VS>(got_s[f][i], wide);
#pragma unroll
                                for (int v = 0; v < VS; v++) {
                                    if (SCORE == FMM_DOT) {
                                        logit[f] = fma(own_s[i][v], wide[v], logit[f]);
                                        continue;
                                    }
                                    const A t = own_s[i][v] + wide[v];
                                    const bool up = t > A(0);
                                    tilt[f][i][v] = up ? A(1) : s.slope;
                                    leaned[f][i][v] = up ? t : t * s.slope;
                                    if (BACK) leaned[f][i][v] = t * tilt[f][i][v];
                                    logit[f] = fma(att[i][v], leaned[f][i][v], logit[f]);
                                }
                                if (!FULL && !me.in_s[i]) logit[f] = before;
                            }
                        }
                        if (BACK) {
#pragma unroll
                            for (int i = 0; i < PER; i++) {
                                const A before = dot[f];
                                A wide[VEC];
                                unpack<T, VEC>(got_v[f][i], wide);
#pragma unroll
                                for (int v = 0; v < VEC; v++)
                                    dot[f] = fma(own_v[i][v], wide[v], dot[f]);
                                if (!FULL && !me.in_v[i]) dot[f] = before;
                            }
                        }
                    }
                    if (!SCALAR || (BACK && !LATE))
#pragma unroll
                        for (int d = (FULL ? lane_of::LANES : me.lanes) >> 1; d; d >>= 1)
#pragma unroll
                            for (int f = 0; f < FLY; f++) {
                                if (!SCALAR) logit[f] += __shfl_xor_sync(ALL, logit[f], d);
                                if (BACK) dot[f] += __shfl_xor_sync(ALL, dot[f], d);
                            }
                    if (!SCALAR) /* symmetric in q and k, so that all passes round alike */
#pragma unroll
                        for (int f = 0; f < FLY; f++) {
                            if (SCORE == FMM_DOT) logit[f] = product(logit[f], s.scale);
                            if (EDGES) logit[f] += bias[f];
                        }

                    if constexpr (WALK == FORWARD) {
                        A higher = high;
#pragma unroll
                        for (int f = 0; f < FLY; f++) {
                            if (j[f] & ABSENT) logit[f] = -A(INFINITY);
                            higher = most(higher, logit[f]);
                        }
                        const A zero = bounded(higher), shrink = exp_of(high - zero);
                        high = higher;
                        sum = product(sum, shrink);
                        if (POS) pos_w = product(pos_w, shrink);
#pragma unroll
                        for (int i = 0; i < PER; i++)
#pragma unroll
                            for (int v = 0; v < VEC; v++) {
                                sum_v[i][v] *= shrink;
                                if (POS) also[i][v] *= shrink;
                            }
#pragma unroll
                        for (int f = 0; f < FLY; f++) {
                            const A w = exp_of(logit[f] - zero), use = EDGES ? w * by[f] : w;
                            sum += w;
                            const A use_pos = POS && above[f] ? use : A(0);
                            const bool counts = POS || !(j[f] & ABSENT);
                            if (POS && above[f]) pos_w += w;
#pragma unroll
                            for (int i = 0; i < PER; i++) {
                                A wide[VEC];
                                unpack<T, VEC>(got_v[f][i], wide);
                                settle<T, VEC>(wide);
#pragma unroll
                                for (int v = 0; v < VEC; v++)
                                    if (counts) sum_v[i][v] = fma(use, wide[v], sum_v[i][v]);
#pragma unroll
                                for (int v = 0; v < VEC; v++)
                                    if (POS) also[i][v] = fma(use_pos, wide[v], also[i][v]);
                            }
                        }
                    } else {
                        A met = A(0), level = A(0); /* LATE: of dot, and of delta */
                        const auto row_of = [&](int f) {
                            return WALK == COLS ? int64_t(j[f] & ~ABSENT) : now.row;
                        };
                        if (!PAIR) me.subtract(s, row_of, lse, logit);
#pragma unroll
                        for (int f = 0; f < FLY; f++) {
                            const A w = j[f] & ABSENT
                                            ? A(0)
                                            : exp_of(PAIR ? logit[f] - lse[f] - rest[f] : logit[f]);
                            const A use = EDGES ? w * by[f] : w;
                            const A t = EDGES ? by[f] * dot[f] : dot[f];
                            const A slant = w * (t - delta[f]);
                            const A gain_s = slant * gain[f];
                            if (EDGES && WALK == ROWS && me.live && !me.sub && !(j[f] & ABSENT)) {
                                if (s.to_use.data) *s.to_use.at(edge[f], head, 0) = narrow<T>(use);
                                if (s.to_weight.data)
                                    *s.to_weight.at(edge[f], head, 0) =
                                        narrow<T>(drop[f] * w * dot[f]);
                                if (s.to_bias.data)
                                    *s.to_bias.at(edge[f], head, 0) = narrow<T>(gain_s);
                            }
                            if constexpr (LATE) {
                                met = fma(use * gain[f], dot[f], met);
                                level = fma(w * gain[f], delta[f], level);
                            } else if constexpr (SCALAR) {
                                sum_s[0][0] += gain_s;
                            } else {
#pragma unroll
                                for (int i = 0; i < PS; i++) {
                                    A wide[VS];
                                    if (SCORE == FMM_DOT) unpack<T, VS>(got_s[f][i], wide);
#pragma unroll
                                    for (int v = 0; v < VS; v++) {
                                        const A by_v = SCORE == FMM_DOT ? wide[v] : tilt[f][i][v];
                                        sum_s[i][v] = fma(slant, by_v, sum_s[i][v]);
                                        if (COLLECT)
                                            turned[i][v] =
                                                fma(slant, leaned[f][i][v], turned[i][v]);
                                    }
                                }
                            }
                            if (WALK == COLS) {
#pragma unroll
                                for (int i = 0; i < PER; i++) {
                                    A wide[VEC];
                                    unpack<T, VEC>(got_v[f][i], wide);
#pragma unroll
                                    for (int v = 0; v < VEC; v++)
                                        sum_v[i][v] = fma(use, wide[v], sum_v[i][v]);
                                }
                            }
                        }
                        if (LATE) sum_s[0][0] += me.sum_of_head(met) - level;
                    }
                }
                near = near_next;
            }
            if (longest > CHAIN)
                aside.take(high, &sum, &pos_w, sum_v[0], also[0], sum_s[0], turned[0]);

            A *const slot = s.partial + (int64_t(item.from) * s.heads + head) * s.width;
            const bool piece = item.count == 0 && r == 0 && s.partial, whole = r < item.count;
            if (WALK == FORWARD) {
                if (whole) {
                    const A share = share_of(sum);
#pragma unroll
                    for (int i = 0; i < PER; i++)
#pragma unroll
                        for (int v = 0; v < VEC; v++) {
                            sum_v[i][v] = shared_out(sum_v[i][v], share);
                            if (POS) also[i][v] = shared_out(also[i][v], share);
                        }
                    if (POS) pos_w *= share;
                }
                if (me.live && me.sub == 0) {
                    if (whole) write_lse(s, now.row, head, high, sum);
                    if (piece) slot[s.width - QUAD] = high, slot[s.width - QUAD + 1] = sum;
                    if (POS && whole) *s.to_pos_w.at(now.row, head, 0) = pos_w;
                    if (POS && piece) slot[s.width - QUAD + 2] = pos_w;
                }
            }
            if (WALK != ROWS) me.write(s, item, r, now.row, sum_v, s.to_v, s.width_s, me.in_v);
            if (POS) me.write(s, item, r, now.row, also, s.to_pos, (s.width - QUAD) / 2, me.in_v);
            if constexpr (BACK && SCALAR) {
                if (me.live && me.sub == 0) {
                    if (piece) slot[0] = sum_s[0][0];
                    if (whole && s.to_s.data) *s.to_s.at(now.row, head, 0) = narrow<T>(sum_s[0][0]);
                }
            } else if constexpr (BACK) {
#pragma unroll
                for (int i = 0; i < PS; i++)
#pragma unroll
                    for (int v = 0; v < VS; v++)
                        sum_s[i][v] *= SCORE == FMM_DOT ? s.scale : att[i][v];
                me.write(s, item, r, now.row, sum_s, s.to_s, 0, me.in_s);
            }
            if (COLLECT && now.length > 0) /* else no row at all was read */
#pragma unroll
                for (int i = 0; i < PS; i++)
#pragma unroll
                    for (int v = 0; v < VS; v++) collected[i * VS + v][threadIdx.x] += turned[i][v];
            now = me.span_at(mine, r + 1);
            if (!AHEAD) me.read_own(s, now.row, &own);
        }
        if (!COLLECT) break;
    }

    if constexpr (COLLECT) {
        if (!s.to_att.data) return;
        __syncthreads();
        if (threadIdx.x >= group) return;
#pragma unroll
        for (int c = 0; c < PS * VS; c++) {
            if (!me.in_s[c / VS]) continue;
            A total = A(0);
            for (int g = 0; g < in_block; g++) total += collected[c][(g << s.group_bits) + me.lane];
            *s.to_att.at(blockIdx.x, head, me.column[c / VS] + c % VS) = total;
        }
    }
}

#endif
