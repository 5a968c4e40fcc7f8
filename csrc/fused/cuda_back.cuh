/* The gradients of fused `segments`.
 *
 * With m the message, c = < g[i], m[p] >, the derivatives ws, wa of w, and s', m' those of the
 * score and of the message by the side in question,
 *
 *     ROWS on A:              gx[i] = sum_p c ws s' [+ w g[i] m']     gval[p] = c wa
 *     COLS on its transpose:  gy[j] = sum_p c ws s' [+ w g[i] m']     gz[j]   = sum_p w g[i] m'
 *
 * where s' of a dot product is the other side, m' of the message z is 1, and what stands in
 * brackets belongs to messages made of x and y, which have no gz. Both passes are one kernel: a row
 * has an own side, its slices of one operand of the score and of one of the product in registers,
 * and gathers the far side, the other two.
 *
 *                      own side (of the row)      far side (gathered)
 *                      score     message          score     message
 *     ROWS             x[i]      g[i]             y[j]      z[j]
 *     COLS             y[j]      z[j]             x[i]      g[i]
 *
 * Lanes own channels as in cuda.cuh. For each batch of entries they compute both dot products, the
 * score and c, which meet in one butterfly: the lower half of the group ends with the scores, the
 * upper half with the products, and then they swap. The edge function is evaluated side by side in
 * the lanes, and the gathered rows, which are still in registers, are added under c ws and w. The
 * steps are those of cuda.cuh: fetch, arrive, gather, score, weigh and accumulate. Each sum has one
 * owner and pieces of long rows meet in order: no score in memory, the same bits every time.
 *
 * Three forms are compiled. Two are of dot products, the message z and edge functions with direct
 * code: SAME, where z is y, of which ROWS gathers one row for both and COLS holds one; and OTHER.
 * The third, ANY, takes every score, message, activation and program. It branches on them once for
 * each pack of channels, the same way in every lane; a message of x and y has no second operand on
 * the side where z would be. */
#pragma once

#include "cuda.cuh"
#include "cuda_pack.cuh"

enum back_form { BACK_SAME, BACK_OTHER, BACK_ANY };

/* Names that end in _s belong to the score's operand, those that end in _m to the message's. */
template <class T> struct back_args : dealt {
    typedef typename sum_of<T>::type A;
    dense_view<const T> own_s, own_m, far_s, far_m;
    dense_view<T> out_s, out_m, gval;
    meeting<A> pieces_s, pieces_m; /* of out_s and out_m; without columns none meet */
    int64_t feat_s, feat_m;
    uint32_t far_s_row, far_m_row; /* in bytes */
    int score, message, activation;
    edge_program<A> edge;
};

/* Sums both over the group: half of the lanes take the products from the other half and give their
 * scores. Afterwards lane l holds those of entry l % (LANES / 2) / (LANES / 2 / BATCH) in the first
 * elements. */
template <class A, int LANES, int BATCH>
static __device__ __forceinline__ void transpose_sums(A *score, A *product, int lane)
{
    enum { HALF = LANES / 2 };
    const bool upper = lane & HALF;
    UNROLLED(f, BATCH) {
        const A give = upper ? score[f] : product[f], stay = upper ? product[f] : score[f];
        score[f] = stay + __shfl_xor_sync(ALL, give, HALF);
    }
    transpose_sum<A, HALF, BATCH>(score, lane);
    const A own = score[0], other = __shfl_xor_sync(ALL, own, HALF);
    score[0] = upper ? other : own;
    product[0] = upper ? own : other;
}

/* How many blocks a multiprocessor must have registers for. ANY needs more of them, for both kinds
 * of terms and for what lives across a call of the interpreter. */
template <class T> static constexpr int back_blocks(int form, int channels, int blocks)
{
    const int bytes = channels * (int)sizeof(typename sum_of<T>::type);
    return form != BACK_ANY ? blocks : bytes > 32 ? 1 : 2;
}

/* S says how many lanes span a row, and FLY is the size of a batch. */
template <class S, bool COLS, int FORM>
static __global__ void __launch_bounds__(BLOCK, back_blocks<typename S::T>(FORM, S::VEC *S::PER,
                                                                           S::BLOCKS))
    fused_back(const __grid_constant__ back_args<typename S::T> s)
{
    typedef typename S::T T;
    typedef typename S::A A;
    constexpr int VEC = S::VEC, LANES = S::LANES, PER = S::PER, BATCH = S::FLY, STEP = S::STEP;
    constexpr int HALF = LANES / 2, SHARE = HALF / BATCH; /* SHARE lanes have the same score */
    static_assert(HALF >= BATCH, "a lane holds one score of a batch");
    constexpr bool SAME = FORM == BACK_SAME, ANY = FORM == BACK_ANY;
    constexpr bool ONE_FAR = SAME && !COLS, ONE_OWN = SAME && COLS;
    constexpr int UNROLL = ANY ? 1 : LANES / BATCH < 4 ? LANES / BATCH : 4; /* batches */
    const task<LANES> t = find_task<LANES>(s);
    const int lane = t.lane, column = lane * VEC;
    const int32_t head = t.head;
    const char *const far_s = reinterpret_cast<const char *>(s.far_s.at(0, head, column));
    const char *const far_m = reinterpret_cast<const char *>(s.far_m.at(0, head, column));
    const bool scale = !ANY || s.message == FMM_MESSAGE_SCALE;
    const bool scored = !ANY || s.score != FMM_SCORE_NONE;
    const bool reads_s = scored || !scale; /* else neither x nor y has a part in anything */
    const bool has_own_m = scale || !COLS, has_far_m = scale || COLS;
    bool in_s[PER], in_m[PER];
    UNROLLED(i, PER) {
        in_s[i] = column + i * STEP < s.feat_s;
        in_m[i] = SAME ? in_s[i] : column + i * STEP < s.feat_m;
    }
    for_empty_rows(s, t, [&](int32_t row) {
        const A zeros[VEC] = {};
        UNROLLED(i, PER) {
            if (in_s[i] && s.out_s.data)
                store<T, VEC>(s.out_s.at(row, head, column + i * STEP), zeros);
            if (COLS && in_m[i] && s.out_m.data)
                store<T, VEC>(s.out_m.at(row, head, column + i * STEP), zeros);
        }
    });

    /* What comes a chunk ahead is used only where its chunk begins. */
    int32_t near, near_next;
    uint32_t edge_next;
    WORD(A) value;
    cursor<LANES> next = {};
    const bool valued = s.val.data && (s.edge.valued || s.edge.kind == EDGE_PROGRAM);
    const bool reads_edges = valued || (!COLS && s.gval.data);
    auto fetch = [&] {
        near_next = -1, edge_next = 0;
        if (next.left <= 0) return;
        near_next = __ldg(s.a.idx + next.from);
        if (reads_edges) edge_next = edge_asked(s.val, next.from);
    };

    /* The rows of entry c of the chunk and on. */
    PACK(T, VEC) row_s[BATCH][PER], row_m[ONE_FAR ? 1 : BATCH][PER];
    auto gather = [&](int c) INLINED {
        UNROLLED(f, BATCH) {
            const int32_t j = __shfl_sync(ALL, near, c + f, LANES);
            const char *const at_s = far_s + uint64_t(uint32_t(j)) * s.far_s_row;
            const char *const at_m = far_m + uint64_t(uint32_t(j)) * s.far_m_row;
            UNROLLED(i, PER) {
                row_s[f][i] = load_if<T, VEC>(reads_s && j >= 0 && in_s[i],
                                              reinterpret_cast<const T *>(at_s) + i * STEP);
                if (!ONE_FAR)
                    row_m[ONE_FAR ? 0 : f][i] =
                        load_if<T, VEC>(has_far_m && j >= 0 && in_m[i],
                                        reinterpret_cast<const T *>(at_m) + i * STEP);
            }
        }
    };
    auto unpack_far = [&](int f, int i, A *there_s, A *there_m) INLINED {
        unpack<T, VEC>(row_s[f][i], there_s);
        unpack<T, VEC>(ONE_FAR ? row_s[f][i] : row_m[ONE_FAR ? 0 : f][i], there_m);
    };
    /* The own side of the row, and its sums. */
    A own_s[PER][VEC], own_m[ONE_OWN ? 1 : PER][VEC];
    A sums[COLS ? 2 : 1][PER][VEC];
    auto &sum_s = sums[0], &sum_m = sums[COLS];
    /* Afterwards dots[0][0] and dots[1][0] are the score and the product of the lane's entry. */
    auto score = [&](A(&dots)[2][BATCH]) INLINED {
        A *const of = dots[0], *const product = dots[1];
        UNROLLED(f, BATCH) {
            of[f] = product[f] = A(0);
            UNROLLED(i, PER) {
                A there_s[VEC], there_m[VEC];
                unpack_far(f, i, there_s, there_m);
                pack_dots<A, ANY, COLS, VEC>(s, own_s[i], there_s,
                                             ONE_OWN ? own_s[i] : own_m[ONE_OWN ? 0 : i], there_m,
                                             &of[f], &product[f]);
            }
        }
        transpose_sums<A, LANES, BATCH>(of, product, lane);
    };
    /* Turns them into what score and message are multiplied by, and writes the gradient of val. */
    auto weigh = [&](int c, int64_t edge, A(&dots)[2][BATCH]) INLINED {
        const int mine = c + lane % HALF / SHARE;
        const WORD(A) bits = __shfl_sync(ALL, value, mine, LANES);
        const A a = s.val.data ? edge_number<A>(s.val, bits) : A(1);
        const bool there = __shfl_sync(ALL, near, mine, LANES) >= 0;
        const A of = scored ? dots[0][0] : A(1), product = dots[1][0];
        const edge_result<A> found = ANY && s.edge.kind == EDGE_PROGRAM
                                         ? edge_run(s.edge, of, a)
                                         : edge_direct(s.edge, of, a);
        dots[0][0] = there ? product * found.by_s : A(0);
        dots[1][0] = there ? found.w : A(0);
        if (COLS || !s.gval.data) return;
        /* One lane of those with the same entry writes its gradient. */
        const int64_t to = __shfl_sync(ALL, edge, mine, LANES);
        const A da = product * found.by_a;
        if (there && lane < HALF && lane % SHARE == 0 && is_edge(s.val, to))
            store<T, 1>(s.gval.at(to, head, 0), &da);
    };
    auto accumulate = [&](int c, A ds, A w) INLINED {
        UNROLLED(f, BATCH) {
            const A by_s = __shfl_sync(ALL, ds, f * SHARE, LANES);
            const A by_m = COLS || ANY ? __shfl_sync(ALL, w, f * SHARE, LANES) : A(0);
            if (ANY && __shfl_sync(ALL, near, c + f, LANES) < 0) continue;
            UNROLLED(i, PER) {
                A there_s[VEC], there_m[VEC];
                unpack_far(f, i, there_s, there_m);
                pack_add<A, ANY, COLS, VEC>(s, by_s, by_m, own_s[i], there_s,
                                            own_m[ONE_OWN ? 0 : i], there_m, sum_s[i], sum_m[i]);
            }
        }
    };

    /* The sums of a gradient are complete as they are: nothing divides or compares them. */
    auto write = [&](const dense_view<T> &out, const bool(&in)[PER], int32_t row,
                     const A(&sum)[PER][VEC]) {
        UNROLLED(i, PER)
            if (in[i] && out.data) store<T, VEC>(out.at(row, head, column + i * STEP), sum[i]);
    };

    next.go_to(t.mine, 0, lane);
    fetch();
    for (int r = 0; r < t.rows; r++) {
        const int32_t row = __shfl_sync(ALL, t.mine.row, r, LANES);
        const T *const from_s = s.own_s.at(row, head, column);
        const T *const from_m = s.own_m.at(row, head, column);
        UNROLLED(i, PER) {
            unpack<T, VEC>(load_if<T, VEC>(reads_s && in_s[i], from_s + i * STEP), own_s[i]);
            if (!ONE_OWN)
                unpack<T, VEC>(load_if<T, VEC>(has_own_m && in_m[i], from_m + i * STEP),
                               own_m[ONE_OWN ? 0 : i]);
            if (r && !t.item.count) continue; /* a piece keeps its sums while other groups go on */
            UNROLLED(v, VEC) sum_s[i][v] = sum_m[i][v] = A(0);
        }
        const int longest = max(most_in_warp<LANES>(next.left + lane), 1);
        sums_aside<A, (COLS ? 2 : 1) * PER * VEC> aside;
        for (int done = 0; done < longest; done += LANES) {
            if (done && done % CHAIN == 0) aside.put(sums[0][0], done == CHAIN);
            /* arrive: not a lambda like the others, which would cost registers here. */
            int64_t edge = -1;
            value = 0;
            if (next.left > 0 && reads_edges) edge = edge_said(s.val, next.from, edge_next);
            if (next.left > 0 && valued)
                value = edge_bits<WORD(A)>(s.val, clamp(edge, 0, s.val.nnz - 1), head);
            near = (uint32_t)near_next < (uint32_t)s.a.cols ? near_next : -1;
            if (done + LANES < longest)
                next.from += LANES, next.left -= LANES;
            else
                next.go_to(t.mine, r + 1, lane);
            fetch();
#pragma unroll UNROLL
            for (int c = 0; c < LANES; c += BATCH) {
                if (c && done + c >= longest) break;
                A dots[2][BATCH];
                gather(c);
                score(dots);
                weigh(c, edge, dots);
                accumulate(c, dots[0][0], dots[1][0]);
            }
        }
        if (longest > CHAIN) aside.take(sums[0][0]);
        if (r < t.item.count) {
            write(s.out_s, in_s, row, sum_s);
            if (COLS) write(s.out_m, in_m, row, sum_m);
        }
    }
    const int32_t row = __shfl_sync(ALL, t.mine.row, 0, LANES);
    if (s.pieces_s.feat && meet<S, reduce_sum>(s, s.pieces_s, t, row, column, sum_s) >= 0)
        write(s.out_s, in_s, row, sum_s);
    if (COLS && s.pieces_m.feat && meet<S, reduce_sum>(s, s.pieces_m, t, row, column, sum_m) >= 0)
        write(s.out_m, in_m, row, sum_m);
}
