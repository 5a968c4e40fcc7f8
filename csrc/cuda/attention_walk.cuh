/* The walk over entries: attention.cuh says whose rows.
 *
 * The plan (segments.cuh) deals out items: a piece of a long row, or a bundle of short ones. An item
 * goes to a group of lanes that has as many heads as fit a warp, each head a power of two of lanes
 * and each of those lanes VEC neighbouring columns, PER times; gridDim.y walks over the heads beyond.
 * Lanes read idx (and the edges and dropout's masks) of as many entries at once, one such chunk
 * ahead, hand them round by shuffles, and gather FLY rows at a time. All heads of a row thus share
 * idx and are gathered as one stretch of memory.
 *
 * FORWARD keeps the largest logit so far, and sums relative to it; FLY entries move it once. Whole
 * rows are written once; pieces go to slots of the workspace, which the join adds up in order
 * (attention_join.cuh). gatt alone has no owner among the items: blocks take a fixed share of them
 * each, and leave one sum a block. The same bits every time. */
#ifndef FMM_CUDA_ATTENTION_WALK_CUH
#define FMM_CUDA_ATTENTION_WALK_CUH

#include "attention.cuh"

/* An entry as the lane that fetched it keeps it. Loads are unconditional, so that the compiler keeps
 * them together: past the end of a row they read its last entry again (what is not a number there
 * is the row's own), a lane without columns reads the first ones, and neither counts. */
static constexpr uint32_t ABSENT = 0x80000000u;
template <bool EDGES> struct entry {
    uint32_t column; /* ABSENT: counts for nothing, whatever is read there */
};
template <> struct entry<true> {
    uint32_t column;
    uint32_t keep; /* bit h: dropout keeps head h of the group */
    int64_t edge;
};

template <class T>
static __device__ __forceinline__ uint32_t keep_mask(const attend_args<T> &s, uint64_t seed, int64_t edge,
                                     int32_t first_head, int32_t heads)
{
    uint32_t mask = 0;
    const int32_t end = min(first_head + heads, s.heads);
    for (int32_t four = first_head / 4; four * 4 < end; four++) {
        const fmm_philox_block block = fmm_philox(seed, (uint64_t)edge, (uint32_t)four);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t bit = four * 4 + i - first_head;
            if (bit >= 0 && bit < heads && block.word[i] >= s.keep_limit) mask |= 1u << bit;
        }
    }
    return mask;
}

template <class T, int WALK, int SCORE, int VEC, int PER, int FLY, int BLOCKS, int KIND>
static __global__ void __launch_bounds__(BLOCK, BLOCKS)
    attend_segments(const __grid_constant__ attend_args<T> s)
{
    typedef typename sum_of<T>::type A;
    constexpr bool SCALAR = SCORE == FMM_ADDITIVE, BACK = WALK != FORWARD;
    constexpr bool EDGES = KIND == WITH_EDGES, SAME = KIND == SAME_FAR;
    constexpr bool FAR_S = !(SCALAR && WALK == COLS); /* else q lies with the statistics */
    constexpr bool COLLECT = WALK == ROWS && SCORE == FMM_GATV2;
    constexpr int PS = SCALAR ? 1 : PER, VS = SCALAR ? 1 : VEC; /* the score side's registers */
    
#ifndef TUNE_AHEAD
#define TUNE_AHEAD 1
#endif
    constexpr bool AHEAD = PER == 1 && TUNE_AHEAD; /* the next row's own operands are read during this row */
    typedef PACK(T, VEC) pack;
    typedef PACK(T, VS) pack_s;
    let_next_start();

    const int lanes = 1 << s.lane_bits, group = 1 << s.group_bits;
    const int lane = threadIdx.x & (group - 1), sub = lane & (lanes - 1);
    const int base = (threadIdx.x & (WARP - 1)) & ~(group - 1);
    const int group_heads = group >> s.lane_bits, mine_of_heads = lane >> s.lane_bits;
    const int32_t first_head = blockIdx.y * group_heads;
    const bool live = first_head + mine_of_heads < s.heads;
    const int32_t head = live ? first_head + mine_of_heads : 0;
    int32_t column[PER];
    bool in_s[PS], in_v[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        column[i] = (i * lanes + sub) * VEC;
        in_v[i] = live && column[i] < s.feat_v;
        if (!SCALAR) in_s[i] = live && column[i] < s.feat;
    }
    if (SCALAR) in_s[0] = live;
    /* Offsets of the PER loads, and addresses that the compiler keeps whole: one multiply-add each. */
    int32_t offset_s[PS], offset_v[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        offset_v[i] = in_v[i] ? i * lanes * VEC * (int32_t)sizeof(T) : 0;
        if (!SCALAR) offset_s[i] = in_s[i] ? i * lanes * VEC * (int32_t)sizeof(T) : 0;
    }
    const char *far_s = s.far_s.data + head * s.far_s.head;
    const char *far_v = s.far_v.data + head * s.far_v.head;
    if (!SCALAR && in_s[0]) far_s += column[0] * sizeof(T);
    if (in_v[0]) far_v += column[0] * sizeof(T);
    const char *stats = reinterpret_cast<const char *>(s.stats + 2 * head);
    const char *stats_q = reinterpret_cast<const char *>(s.stats + 2 * s.heads + head);
    const uint32_t stats_row = planes_of(SCORE) * (uint32_t)s.heads * (uint32_t)sizeof(A);
    asm("" : "+l"(far_s), "+l"(far_v), "+l"(stats), "+l"(stats_q));

    A att[PS][VS], collected[PS][VS];
    if (SCORE == FMM_GATV2)
#pragma unroll
        for (int i = 0; i < PS; i++) {
            pack_s packed = {};
            if (in_s[i]) packed = load<T, VS>(s.att.at(0, head, column[i]));
            unpack<T, VS>(packed, att[i]);
#pragma unroll
            for (int v = 0; v < VS; v++) att[i][v] *= A(LOG2_E), collected[i][v] = A(0);
        }
    const uint64_t seed = EDGES && s.drops ? (uint64_t)__ldg(s.seed) : 0;

    auto fetch = [&](const span &from, int at, entry<EDGES> *to) {
        *to = entry<EDGES>{ABSENT};
        if (from.length <= 0) return;
        const int64_t p = from.begin + min(at + lane, from.length - 1);
        const uint32_t j = (uint32_t)__ldg(s.a.idx + p);
        to->column = j < (uint32_t)s.a.cols ? j | (at + lane < from.length ? 0 : ABSENT) : ABSENT;
        if constexpr (EDGES) {
            to->edge = edge_of(s.edges, p);
            to->keep = s.drops ? keep_mask(s, seed, to->edge, first_head, group_heads) : ALL;
        }
    };
    auto span_at = [&](const span &of, int k) {
        span other;
        other.begin = __shfl_sync(ALL, of.begin, base + (k & (group - 1)));
        other.length = __shfl_sync(ALL, of.length, base + (k & (group - 1)));
        other.row = __shfl_sync(ALL, of.row, base + (k & (group - 1)));
        return other;
    };
    auto most_of_groups = [&](int v) {
        for (int d = group; d < WARP; d *= 2) v = max(v, __shfl_xor_sync(ALL, v, d));
        return v;
    };
    auto leaky = [&](A t) { return t > A(0) ? t : t * s.slope; };

    /* What a row has of its own. */
    pack_s next_s[PS];
    pack next_v[PER];
    A next_lse, next_delta;
    auto read_own = [&](int64_t row) {
#pragma unroll
        for (int i = 0; i < PS; i++) {
            next_s[i] = pack_s{};
            if (in_s[i]) next_s[i] = load<T, VS>(s.own_s.at(row, head, SCALAR ? 0 : column[i]));
        }
        if (BACK) {
#pragma unroll
            for (int i = 0; i < PER; i++) {
                next_v[i] = pack{};
                if (s.own_v.data && in_v[i]) next_v[i] = load<T, VEC>(s.own_v.at(row, head, column[i]));
            }
        }
        if (WALK == ROWS) {
            next_lse = live ? __ldg(s.lse.at(row, head, 0)) : A(0);
            next_delta = live && s.own_v.data ? __ldg(s.delta.at(row, head, 0)) : A(0);
        }
    };
    auto write_slot_or_row = [&](const item_view &item, int r, int64_t row, const A(*sums)[VEC],
                                 const own_side<T> &to, int64_t offset, const bool *in) {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (!in[i]) continue;
            if (item.count == 0) {
                if (r == 0 && s.partial)
                    keep<A, VEC>(s.partial + (int64_t(item.from) * s.heads + head) * s.width +
                                     offset + column[i],
                                 sums[i]);
            } else if (r < item.count && to.data)
                store<T, VEC>(to.at(row, head, column[i]), sums[i]);
        }
    };

    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t items = count_items(counts, s.shift);
    const int in_block = BLOCK >> s.group_bits;
    int64_t k = int64_t(blockIdx.x) * in_block + (threadIdx.x >> s.group_bits);
    for (int64_t block_k = int64_t(blockIdx.x) * in_block; block_k < max(items, int64_t(1));
         block_k += int64_t(gridDim.x) * in_block, k += int64_t(gridDim.x) * in_block) {
        const item_view item = find_item(counts, k, s.shift);
        const span mine = find_span(s.a, s.plan, item, lane);
        const int rows = most_of_groups(max(item.count, item.count == 0));

        /* Rows without entries: as many to each item. */
        for (int64_t e = k; e < s.a.rows - counts.ends[BUNDLES]; e += max(items, int64_t(1))) {
            if (k >= items && k) break;
            const int32_t row =
                (int32_t)clamp(__ldg(s.plan.order + counts.ends[BUNDLES] + e), 0, s.a.rows - 1);
            const A zeros[VEC] = {};
#pragma unroll
            for (int i = 0; i < PER; i++) {
                if (WALK != ROWS && s.to_v.data && in_v[i])
                    store<T, VEC>(s.to_v.at(row, head, column[i]), zeros);
                if (BACK && !SCALAR && s.to_s.data && in_s[SCALAR ? 0 : i])
                    store<T, VEC>(s.to_s.at(row, head, column[i]), zeros);
            }
            if (!live || sub) continue;
            if (WALK == FORWARD) *s.to_lse.at(row, head, 0) = -A(INFINITY);
            if (BACK && SCALAR && s.to_s.data) *s.to_s.at(row, head, 0) = narrow<T>(A(0));
        }

        entry<EDGES> near, near_next;
        span now = span_at(mine, 0);
        fetch(now, 0, &near);
        if (WALK == COLS) wait_for_previous();
        read_own(now.row);
        for (int r = 0; r < rows; r++) {
            A own_s[PS][VS], own_v[PER][VEC], sum_s[PS][VS], sum_v[PER][VEC];
            A high = -A(INFINITY), sum = A(0), own_lse = A(0), own_delta = A(0);
#pragma unroll
            for (int i = 0; i < PS; i++) {
                unpack<T, VS>(next_s[i], own_s[i]);
#pragma unroll
                for (int v = 0; v < VS; v++) {
                    if (SCORE == FMM_DOT) own_s[i][v] *= s.scale * A(LOG2_E);
                    sum_s[i][v] = A(0);
                }
            }
#pragma unroll
            for (int i = 0; i < PER; i++) {
                if (BACK) unpack<T, VEC>(next_v[i], own_v[i]);
#pragma unroll
                for (int v = 0; v < VEC; v++) sum_v[i][v] = A(0);
            }
            if (WALK == ROWS) own_lse = lse_base2(next_lse), own_delta = next_delta;
            if (AHEAD) read_own(__shfl_sync(ALL, mine.row, base + ((r + 1) & (group - 1))));

            const int longest = max(most_of_groups(now.length), 1);
            for (int done = 0; done < longest; done += group) {
                if (done + group < longest) {
                    fetch(now, done + group, &near_next);
                } else {
                    span next = span_at(mine, r + 1);
                    if (r + 1 == group) next.length = 0;
                    fetch(next, 0, &near_next);
                }
                const int end = min(group, longest - done);
                for (int c = 0; c < end; c += FLY) {
                    pack_s got_s[FLY][PS];
                    pack got_v[FLY][PER];
                    uint32_t j[FLY];
                    A far[FLY], lse[FLY], delta[FLY], bias[FLY], by[FLY], drop[FLY];
                    int64_t edge[FLY];
#pragma unroll
                    for (int f = 0; f < FLY; f++) {
                        j[f] = __shfl_sync(ALL, near.column, base + c + f);
                        bias[f] = A(0), by[f] = drop[f] = A(1), edge[f] = 0;
                        if constexpr (EDGES) {
                            edge[f] = __shfl_sync(ALL, near.edge, base + c + f);
                            const uint32_t keep = __shfl_sync(ALL, near.keep, base + c + f);
                            if (s.bias.data) bias[f] = widen(__ldg(s.bias.at(edge[f], head, 0)));
                            if (s.drops) drop[f] = keep >> mine_of_heads & 1 ? s.kept : A(0);
                            by[f] = drop[f];
                            if (s.weight.data)
                                by[f] *= widen(__ldg(s.weight.at(edge[f], head, 0)));
                        }
                    }
#pragma unroll
                    for (int f = 0; f < FLY; f++) {
                        const uint64_t at = j[f] & ~ABSENT;
                        if (FAR_S) {
#pragma unroll
                            for (int i = 0; i < PS; i++)
                                got_s[f][i] = load<T, VS>(reinterpret_cast<const T *>(
                                    far_s + at * s.far_s.row +
                                    (SCALAR || PER == 1 ? 0 : offset_s[i])));
                        }
                        if (WALK == COLS) {
                            A pair[2];
                            unpack<A, 2>(load<A, 2>(reinterpret_cast<const A *>(
                                             stats + at * stats_row)),
                                         pair);
                            lse[f] = pair[0], delta[f] = pair[1];
                            if (SCALAR)
                                far[f] = __ldg(reinterpret_cast<const A *>(stats_q +
                                                                           at * stats_row));
                        } else {
                            lse[f] = own_lse, delta[f] = own_delta;
                        }
#pragma unroll
                        for (int i = 0; i < PER; i++)
                            if constexpr (SAME)
                                got_v[f][i] = got_s[f][i];
                            else
                                got_v[f][i] = load<T, VEC>(reinterpret_cast<const T *>(
                                    far_v + at * s.far_v.row + (PER == 1 ? 0 : offset_v[i])));
                    }

                    A logit[FLY], dot[FLY], gain[FLY];
#pragma unroll
                    for (int f = 0; f < FLY; f++) {
                        logit[f] = dot[f] = A(0), gain[f] = A(1);
                        if constexpr (SCALAR) {
                            if (FAR_S) unpack<T, 1>(got_s[f][0], &far[f]);
                            A t = own_s[0][0] + far[f];
                            if (EDGES) t += bias[f];
                            gain[f] = t > A(0) ? A(LOG2_E) : s.slope * A(LOG2_E);
                            logit[f] = t * gain[f];
                        } else {
#pragma unroll
                            for (int i = 0; i < PS; i++) {
                                A wide[VS];
                                unpack<T, VS>(got_s[f][i], wide);
#pragma unroll
                                for (int v = 0; v < VS; v++)
                                    logit[f] = SCORE == FMM_DOT
                                                   ? fma(own_s[i][v], wide[v], logit[f])
                                                   : fma(att[i][v], leaky(own_s[i][v] + wide[v]),
                                                         logit[f]);
                            }
                        }
                        if (BACK) {
#pragma unroll
                            for (int i = 0; i < PER; i++) {
                                A wide[VEC];
                                unpack<T, VEC>(got_v[f][i], wide);
#pragma unroll
                                for (int v = 0; v < VEC; v++)
                                    dot[f] = fma(own_v[i][v], wide[v], dot[f]);
                            }
                        }
                    }
                    if (!SCALAR || BACK)
                        for (int d = lanes / 2; d; d /= 2)
#pragma unroll
                            for (int f = 0; f < FLY; f++) {
                                if (!SCALAR) logit[f] += __shfl_xor_sync(ALL, logit[f], d);
                                if (BACK) dot[f] += __shfl_xor_sync(ALL, dot[f], d);
                            }
                    if (EDGES && !SCALAR)
#pragma unroll
                        for (int f = 0; f < FLY; f++) logit[f] = fma(bias[f], A(LOG2_E), logit[f]);

                    if constexpr (WALK == FORWARD) {
                        A higher = high;
#pragma unroll
                        for (int f = 0; f < FLY; f++) {
                            if (j[f] & ABSENT) logit[f] = -A(INFINITY);
                            higher = most(higher, logit[f]);
                        }
                        const A zero = bounded(higher), shrink = exp2_of(high - zero);
                        high = higher;
                        sum *= shrink;
#pragma unroll
                        for (int i = 0; i < PER; i++)
#pragma unroll
                            for (int v = 0; v < VEC; v++) sum_v[i][v] *= shrink;
#pragma unroll
                        for (int f = 0; f < FLY; f++) {
                            const A w = exp2_of(logit[f] - zero), use = EDGES ? w * by[f] : w;
                            sum += w;
#pragma unroll
                            for (int i = 0; i < PER; i++) {
                                A wide[VEC];
                                unpack<T, VEC>(got_v[f][i], wide);
#pragma unroll
                                for (int v = 0; v < VEC; v++)
                                    sum_v[i][v] = fma(use, wide[v], sum_v[i][v]);
                            }
                        }
                    } else {
#pragma unroll
                        for (int f = 0; f < FLY; f++) {
                            const A w = j[f] & ABSENT ? A(0) : exp2_of(logit[f] - lse[f]);
                            const A use = EDGES ? w * by[f] : w;
                            const A t = EDGES ? by[f] * dot[f] : dot[f];
                            const A slant = w * (t - delta[f]);
                            const A gain_s = slant * gain[f];
                            if (EDGES && WALK == ROWS && live && !sub && !(j[f] & ABSENT)) {
                                if (s.to_use.data)
                                    *s.to_use.at(edge[f], head, 0) = narrow<T>(use);
                                if (s.to_weight.data)
                                    *s.to_weight.at(edge[f], head, 0) =
                                        narrow<T>(drop[f] * w * dot[f]);
                                if (s.to_bias.data)
                                    *s.to_bias.at(edge[f], head, 0) = narrow<T>(SCALAR ? gain_s * A(LN_2) : gain_s);
                            }
                            if constexpr (SCALAR) {
                                sum_s[0][0] += gain_s;
                            } else {
#pragma unroll
                                for (int i = 0; i < PS; i++) {
                                    A wide[VS];
                                    unpack<T, VS>(got_s[f][i], wide);
#pragma unroll
                                    for (int v = 0; v < VS; v++) {
                                        if (SCORE == FMM_DOT) {
                                            sum_s[i][v] = fma(slant, wide[v], sum_s[i][v]);
                                            continue;
                                        }
                                        const A t_v = own_s[i][v] + wide[v];
                                        const A slant_v = t_v > A(0) ? slant : slant * s.slope;
                                        sum_s[i][v] += slant_v;
                                        if (COLLECT)
                                            collected[i][v] = fma(slant_v, t_v, collected[i][v]);
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
                    }
                }
                near = near_next;
            }

            A *const slot = s.partial + (int64_t(item.from) * s.heads + head) * s.width;
            const bool piece = item.count == 0 && r == 0 && s.partial, whole = r < item.count;
            if (WALK == FORWARD) {
                if (whole) {
                    const A share = share_of(sum);
#pragma unroll
                    for (int i = 0; i < PER; i++)
#pragma unroll
                        for (int v = 0; v < VEC; v++) sum_v[i][v] *= share;
                }
                if (live && sub == 0) {
                    if (whole) *s.to_lse.at(now.row, head, 0) = lse_of(high, sum);
                    if (piece) slot[s.width - QUAD] = high, slot[s.width - QUAD + 1] = sum;
                }
            }
            if (WALK != ROWS)
                write_slot_or_row(item, r, now.row, sum_v, s.to_v, s.width_s, in_v);
            if constexpr (BACK && SCALAR) {
                sum_s[0][0] *= A(LN_2);
                if (live && sub == 0) {
                    if (piece) slot[0] = sum_s[0][0];
                    if (whole && s.to_s.data)
                        *s.to_s.at(now.row, head, 0) = narrow<T>(sum_s[0][0]);
                }
            } else if constexpr (BACK) {
#pragma unroll
                for (int i = 0; i < PS; i++)
#pragma unroll
                    for (int v = 0; v < VS; v++)
                        sum_s[i][v] *= SCORE == FMM_DOT ? s.scale : att[i][v] * A(LN_2);
                write_slot_or_row(item, r, now.row, sum_s, s.to_s, 0, in_s);
            }
            now = span_at(mine, r + 1);
            if (!AHEAD) read_own(now.row);
        }
        if (!COLLECT) break;
    }

    if constexpr (COLLECT) {
        __shared__ A meet[BLOCK];
        if (!s.to_att.data) return;
#pragma unroll
        for (int i = 0; i < PS; i++)
#pragma unroll
            for (int v = 0; v < VS; v++) {
                meet[threadIdx.x] = collected[i][v];
                __syncthreads();
                if (threadIdx.x < group && in_s[i]) {
                    A total = A(0);
                    for (int g = 0; g < in_block; g++) total += meet[(g << s.group_bits) + lane];
                    *s.to_att.at(blockIdx.x, head, column[i] + v) = total;
                }
                __syncthreads();
            }
    }
}

#endif
