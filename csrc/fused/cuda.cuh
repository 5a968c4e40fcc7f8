/* fused `segments`: scores, edge function and weighted sum in one pass, for one element type T.
 *
 *     out[i,h,:] = reduce_p w(score(x[i,h,:], y[j,h,:]), val[p])
 *                           * message(x[i,h,:], y[j,h,:], z[j,h,:])
 *
 * Work is dealt as for SpMM (cuda/segments.cuh): a piece of a long row, or a bundle of short ones,
 * and a head go to a group of LANES lanes, which span all channels. The group keeps its slices of
 * x's row and of the sums in registers and gathers BATCH rows of y, and of z where that is another
 * matrix. So y is gathered once for both of its uses, and no score reaches memory:
 *
 *     channels      | lane 0 | lane 1 | lane 2 | lane 3 |   VEC of them a lane, PER times
 *     own row x[i]  |  own   |  own   |  own   |  own   |   in registers for all of the row
 *     y[j of p]     | * +    | * +    | * +    | * +    |   score: each lane its channels, then the
 *     y[j of p+1]   | * +    | * +    | * +    | * +    |   butterfly, which leaves
 *     weights       | w(p)   | w(p)   | w(p+1) | w(p+1) |   an entry to SHARE lanes, which weigh it
 *     sums          | += w y | += w y | += w y | += w y |   and hand its weight to all
 *
 * The steps of a chunk of LANES entries:
 *   fetch       Each lane asks for idx and val of its entry, a chunk ahead.
 *   arrive      It makes them a column and a number, which waits for them.
 *   gather      The lanes load the rows of a batch.
 *   score       Each lane multiplies its channels; the butterfly (sddmm/cuda.cuh) adds them up.
 *   weigh       The lanes turn scores into weights side by side.
 *   accumulate  They hand the weights round and add the rows, which are still in registers.
 *
 * Whole rows are written once. Pieces of long rows go to slots of the workspace, which the group
 * that comes last adds in order (spmm/cuda_meet.cuh): the same bits every time, no accumulator of
 * more than 512 terms.
 *
 * Five forms are compiled: the dot product with the message y or z, and the squared distance with
 * x - y, for edge functions that have direct code; RUN, the dot product with y for those that are
 * interpreted; and ANY, which branches on everything, the same way in every lane. It branches once
 * for the scores of a batch, once for their messages and once for the activations. */
#pragma once

#include "cuda_pack.cuh"
#include "../sddmm/cuda.cuh"
#include "../spmm/cuda_meet.cuh"

enum fused_form { DOT_SAME, DOT_OTHER, DOT_RUN, SQDIST_SUB, ANY_FORM };

template <class T> struct fused_args : join_args<T> {
    uint32_t *tickets;
    dense_view<const T> x, y, z; /* without z the message is made of x and y */
    int32_t feat;          /* at most what a group spans; in 64 bits it costs the loop registers */
    uint32_t y_row, z_row; /* in bytes */
    int score, message, activation;
    edge_program<typename sum_of<T>::type> edge;
};

/* How many blocks a multiprocessor must have registers for. Rows of z take registers beside those
 * of y, and so does what lives across a call of the interpreter. */
static constexpr int blocks_of_form(int form, int per, int blocks)
{
    return form == DOT_SAME || form == SQDIST_SUB ? blocks : per > 2 ? 1 : 2;
}

/* S says how many lanes span a row; its FLY is the size of a batch, all of whose rows are in flight
 * and whose scores meet in one butterfly. */
template <class S, int FORM>
static __global__ void __launch_bounds__(BLOCK, blocks_of_form(FORM, S::PER, S::BLOCKS))
    fused_segments(const __grid_constant__ fused_args<typename S::T> s)
{
    typedef typename S::T T;
    typedef typename S::A A;
    constexpr int VEC = S::VEC, LANES = S::LANES, PER = S::PER, BATCH = S::FLY, STEP = S::STEP;
    constexpr int SHARE = LANES / BATCH; /* lanes with the same score */
    static_assert(LANES >= BATCH, "a lane holds one score of a batch");
    constexpr bool ANY = FORM == ANY_FORM, OTHER = FORM == DOT_OTHER || ANY;
    constexpr bool RUN = FORM == DOT_RUN || ANY;
    constexpr int UNROLL = RUN ? 1 : SHARE < 4 ? SHARE : 4; /* batches */
    const task<LANES> t = find_task<LANES>(s);
    const int lane = t.lane, column = lane * VEC;
    const int32_t head = t.head;
    const char *const y = reinterpret_cast<const char *>(s.y.at(0, head, column));
    const char *const z =
        OTHER && s.z.data ? reinterpret_cast<const char *>(s.z.at(0, head, column)) : NULL;
    const bool extreme = ANY && s.reduce >= FMM_MAX;
    const bool scored = !ANY || s.score != FMM_SCORE_NONE;
    const bool reads_y = !ANY || scored || !s.z.data;

    for_empty_rows(s, t, [&](int32_t row) {
        const A zeros[VEC] = {};
        T *const to = s.out + row * s.out_row + head * s.out_head + column;
        UNROLLED(i, PER)
            if (column + i * STEP < s.feat_out) store<T, VEC>(to + i * STEP, zeros);
    });

    /* Columns, and values or where they lie, come a chunk ahead, and are used only where their
     * chunk begins: a warp issues in order and would wait. */
    int32_t near, near_next;
    WORD(A) ahead;
    A value;
    const bool valued = s.val.data && (s.edge.valued || s.edge.kind == EDGE_PROGRAM);
    /* Both of the entry at + lane of a row. */
    auto fetch = [&](const span &from, int at) {
        const int64_t p = from.begin + at + lane;
        near_next = -1, ahead = 0;
        if (at + lane >= from.length) return;
        near_next = __ldg(s.a.idx + p);
        if (valued) ahead = s.val.eid ? edge_asked(s.val, p) : edge_bits<WORD(A)>(s.val, p, head);
    };
    auto arrive = [&](const span &from, int at) {
        near = (uint32_t)near_next < (uint32_t)s.a.cols ? near_next : -1;
        value = A(1);
        if (!valued || at + lane >= from.length) return;
        if (s.val.eid) {
            const int64_t edge = edge_said(s.val, from.begin + at + lane, (uint32_t)ahead);
            ahead = edge_bits<WORD(A)>(s.val, clamp(edge, 0, s.val.nnz - 1), head);
        }
        value = edge_number<A>(s.val, ahead);
    };
    /* Rows of the bundle after the r-th, and none after the last lane's. */
    auto span_after = [&](int r) {
        span next = span_of_lane<LANES>(t.mine, (r + 1) % LANES);
        if (r + 1 == LANES) next.length = 0;
        return next;
    };
    /* Whether channel column + i * STEP of a row of y, or of z and out, is there. */
    bool in[PER], in_out[PER];
    UNROLLED(i, PER) {
        in[i] = column + i * STEP < s.feat;
        in_out[i] = OTHER ? column + i * STEP < s.feat_out : in[i];
    }

    /* The rows of entry c of the chunk and on. */
    PACK(T, VEC) row[BATCH][PER], sent[OTHER ? BATCH : 1][PER];
    auto gather = [&](int c) INLINED {
        UNROLLED(f, BATCH) {
            const int32_t j = __shfl_sync(ALL, near, c + f, LANES);
            const char *const from = y + uint64_t(uint32_t(j)) * s.y_row;
            const char *const from_z = OTHER ? z + uint64_t(uint32_t(j)) * s.z_row : NULL;
            UNROLLED(i, PER) {
                row[f][i] = load_if<T, VEC>(reads_y && j >= 0 && in[i],
                                            reinterpret_cast<const T *>(from) + i * STEP);
                if (OTHER)
                    sent[OTHER ? f : 0][i] = load_if<T, VEC>(
                        z && j >= 0 && in_out[i], reinterpret_cast<const T *>(from_z) + i * STEP);
            }
        }
    };
    A own[PER][VEC], sum[PER][VEC];
    /* Afterwards dot[0] is the score of entry c + lane / SHARE. */
    auto score = [&](A(&dot)[BATCH]) INLINED {
        constexpr int ONE = FORM == SQDIST_SUB ? FMM_SCORE_SQDIST : FMM_SCORE_DOT;
        for_kind<ANY ? 0 : ONE, ANY ? SCORES : ONE + 1>(s.score, [&](auto kind) {
            UNROLLED(f, BATCH) {
                dot[f] = A(0);
                UNROLLED(i, PER) {
                    A right[VEC];
                    unpack<T, VEC>(row[f][i], right);
                    UNROLLED(v, VEC)
                        dot[f] = score_with<A>(kind.value, dot[f], own[i][v], right[v]);
                }
            }
        });
        transpose_sum<A, LANES, BATCH>(dot, lane);
    };
    /* The weight of that entry; 0 if it is not there, whatever its score came to. */
    auto weigh = [&](int c, A dot) INLINED {
        const A a = __shfl_sync(ALL, value, c + lane / SHARE, LANES);
        const bool there = __shfl_sync(ALL, near, c + lane / SHARE, LANES) >= 0;
        const A of = scored ? dot : A(1);
        A weight = RUN && s.edge.kind == EDGE_PROGRAM ? edge_run(s.edge, of, a).w
                                                      : edge_direct(s.edge, of, a).w;
        if (ANY && s.reduce == FMM_MIN) weight = -weight;
        return there ? weight : A(0);
    };
    auto accumulate = [&](int c, A weight) INLINED {
        A m[BATCH][PER][VEC];
        UNROLLED(f, BATCH)
            UNROLLED(i, PER)
                unpack<T, VEC>(FORM == DOT_OTHER || (ANY && z) ? sent[OTHER ? f : 0][i] : row[f][i],
                               m[f][i]);
        if (ANY)
            messages<A, BATCH * PER * VEC, PER * VEC>(s.message, s.activation, own[0], m[0][0],
                                                      m[0][0], m[0][0]);
        UNROLLED(f, BATCH) {
            const A by = __shfl_sync(ALL, weight, f * SHARE, LANES);
            const bool absent =
                (ANY || FORM == SQDIST_SUB) && __shfl_sync(ALL, near, c + f, LANES) < 0;
            if (ANY && absent) continue;
            UNROLLED(i, PER)
                UNROLLED(v, VEC) {
                    if (FORM == SQDIST_SUB) m[f][i][v] = absent ? A(0) : own[i][v] - m[f][i][v];
                    sum[i][v] = extreme ? reduce_extreme::add(sum[i][v], by, m[f][i][v])
                                        : reduce_sum::add(sum[i][v], by, m[f][i][v]);
                }
        }
    };

    /* The sums of row `to`, which has so many entries. */
    auto write = [&](int32_t to, int64_t terms) {
        T *const at = s.out + to * s.out_row + head * s.out_head + column;
        UNROLLED(i, PER) {
            if (!in_out[i]) continue;
            UNROLLED(v, VEC)
                sum[i][v] = extreme ? reduce_extreme::finish(sum[i][v], terms, s.reduce)
                                    : reduce_sum::finish(sum[i][v], terms, s.reduce);
            store<T, VEC>(at + i * STEP, sum[i]);
        }
    };

    if (t.rows <= 0) return;
    span now = span_of_lane<LANES>(t.mine, 0);
    fetch(now, 0);
    for (int r = 0; r < t.rows; r++) {
        const T *const x = s.x.at(now.row, head, column);
        UNROLLED(i, PER) {
            unpack<T, VEC>(load_if<T, VEC>(reads_y && in[i], x + i * STEP), own[i]);
            if (r && !t.item.count) continue; /* a piece keeps its sums while other groups go on */
            UNROLLED(v, VEC) sum[i][v] = extreme ? -A(INFINITY) : A(0);
        }

        const int longest = max(most_in_warp<LANES>(now.length), 1);
        sums_aside<A, PER * VEC> aside;
        for (int done = 0; done < longest; done += LANES) {
            if (!extreme && done && done % CHAIN == 0) aside.put(sum[0], done == CHAIN);
            arrive(now, done);
            if (done + LANES < longest)
                fetch(now, done + LANES);
            else
                fetch(span_after(r), 0);
#pragma unroll UNROLL
            for (int c = 0; c < LANES; c += BATCH) {
                if (c && done + c >= longest) break;
                A dot[BATCH];
                gather(c);
                score(dot);
                accumulate(c, weigh(c, dot[0]));
            }
        }
        if (!extreme && longest > CHAIN) aside.take(sum[0]);

        if (r < t.item.count) write(now.row, now.length);
        now = span_after(r);
    }
    const int32_t to = __shfl_sync(ALL, t.mine.row, 0, LANES);
    const meeting<A> pieces = {s.partial, s.tickets, s.width, s.feat_out};
    const int64_t terms = extreme ? meet<S, reduce_extreme>(s, pieces, t, to, column, sum)
                                  : meet<S, reduce_sum>(s, pieces, t, to, column, sum);
    if (terms >= 0) write(to, terms);
}
