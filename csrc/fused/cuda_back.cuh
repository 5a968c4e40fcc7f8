/* The gradients of fused `segments`.
 *
 * With m the message, c = < g[i], m[p] >, the derivatives ws, wa of w, and s', m' those of the
 * score and of the message by the side in question,
 *
 *     ROWS on A:              gx[i] = sum_p c ws s' [+ w g[i] m']     gval[p] = c wa
 *     COLS on its transpose:  gy[j] = sum_p c ws s' [+ w g[i] m']     gz[j]   = sum_p w g[i] m'
 *
 * where s' of a dot product is the other side, m' of the message z is 1, and what stands in
 * brackets belongs to messages made of x and y, which have no gz, so both passes are one: a row has
 * an own side, its slices of one operand of the score and of one of the product in registers, and
 * gathers the other two, the far side: x, g and y, z in ROWS, y, z and x, g in COLS. Per batch of
 * entries the two dot products of each meet in one butterfly, the edge function is evaluated side
 * by side in the lanes, and the gathered rows, still in registers, are added under c ws and w.
 * Otherwise as cuda.cuh: one owner for each sum, pieces of long rows joined in order, no score in
 * memory, the same bits every time.
 *
 * Three forms are compiled. Two are of dot products, the message z and edge functions with direct
 * code: SAME, where z is y, of which ROWS gathers one row for both and COLS keeps one; and OTHER.
 * The third, ANY, takes every score, message, activation and program. It branches on them once for
 * each pack of channels, the same way in every lane; a message of x and y has no second operand on
 * the side where z would be. */
#ifndef FMM_CUDA_FUSED_BACK_CUH
#define FMM_CUDA_FUSED_BACK_CUH

#include "cuda.cuh"
#include "cuda_pack.cuh"

enum back_form { BACK_SAME, BACK_OTHER, BACK_ANY };
/* One operand: rows, or a gradient of them. data NULL: not wanted. */
template <class P> struct fused_side {
    P data;
    int64_t row, head;
};

template <class T> struct back_args {
    typedef typename sum_of<T>::type A;
    csr_view a;
    edge_view val;
    plan_view plan;
    fused_side<const T *> own_s, own_m, far_s, far_m; /* of the score, of the message */
    fused_side<T *> out_s, out_m, gval;
    A *partial_s, *partial_m; /* [segments][heads][width] */
    int64_t feat_s, feat_m, width_s, width_m;
    uint64_t per_head;
    uint32_t far_s_row, far_m_row; /* in bytes */
    int32_t heads, shift;
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
#pragma unroll
    for (int f = 0; f < BATCH; f++) {
        const A give = upper ? score[f] : product[f], keep = upper ? product[f] : score[f];
        score[f] = keep + __shfl_xor_sync(ALL, give, HALF);
    }
    transpose_sum<A, HALF, BATCH>(score, lane);
    const A own = score[0], other = __shfl_xor_sync(ALL, own, HALF);
    score[0] = upper ? other : own;
    product[0] = upper ? own : other;
}

/* Blocks whose registers a processor must hold. */
template <class T> static constexpr int back_blocks(int form, int channels, int blocks)
{
    const int bytes = channels * (int)sizeof(typename sum_of<T>::type);
    return form != BACK_ANY ? blocks : bytes > 32 ? 1 : 2;
}

template <class T, bool COLS, int FORM, int VEC, int LANES, int PER, int BATCH, int BLOCKS>
static __global__ void __launch_bounds__(BLOCK, back_blocks<T>(FORM, VEC *PER, BLOCKS))
    fused_back(const __grid_constant__ back_args<T> s)
{
    typedef typename sum_of<T>::type A;
    enum {
        HALF = LANES / 2,
        SHARE = HALF / BATCH, /* lanes with the same score */
        STEP = LANES * VEC,
        UNROLL = FORM == BACK_ANY    ? 1
                 : LANES / BATCH < 4 ? LANES / BATCH
                                     : 4,
    };
    static_assert(HALF >= BATCH, "a lane holds one score of a batch");
    constexpr bool SAME = FORM == BACK_SAME, ANY = FORM == BACK_ANY;
    constexpr bool ONE_FAR = SAME && !COLS, ONE_OWN = SAME && COLS;
    let_next_start();
    const int lane = threadIdx.x % LANES, column = lane * VEC;
    const int64_t group = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES;

    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t k = item_of(group, s.heads, s.per_head);
    const int32_t head = int32_t(group - k * s.heads);
    const item_view item = find_item(counts, k, s.shift);
    const span mine = find_span(s.a, s.plan, item, lane);
    const int rows = most_in_warp<LANES>(max(item.count, item.count == 0));
    const char *const far_s =
        reinterpret_cast<const char *>(s.far_s.data + head * s.far_s.head + column);
    const char *const far_m =
        reinterpret_cast<const char *>(s.far_m.data + head * s.far_m.head + column);
    const bool scale = !ANY || s.message == FMM_MESSAGE_SCALE;
    const bool scored = !ANY || s.score != FMM_SCORE_NONE;
    const bool reads_s = scored || !scale; /* else neither x nor y has a part in anything */
    const bool has_own_m = scale || !COLS, has_far_m = scale || COLS;
    bool in_s[PER], in_m[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        in_s[i] = column + i * STEP < s.feat_s;
        in_m[i] = SAME ? in_s[i] : column + i * STEP < s.feat_m;
    }
    auto write = [&](const fused_side<T *> &to, int64_t row, int i, const A *sums) {
        if (to.data)
            store<T, VEC>(to.data + row * to.row + head * to.head + column + i * STEP, sums);
    };

    /* Empty rows: as many to each item. */
    for (int64_t e = k, items = count_items(counts, s.shift); e < s.a.rows - counts.ends[BUNDLES];
         e += max(items, int64_t(1))) {
        if (k >= items && k) break;
        const int32_t row =
            (int32_t)clamp(__ldg(s.plan.order + counts.ends[BUNDLES] + e), 0, s.a.rows - 1);
        const A zeros[VEC] = {};
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (in_s[i]) write(s.out_s, row, i, zeros);
            if (COLS && in_m[i]) write(s.out_m, row, i, zeros);
        }
    }
    /* As in cuda.cuh: what comes a chunk ahead is looked at only where its chunk begins. */
    int32_t near, near_next, rest;
    uint32_t edge_next;
    WORD(A) value;
    int64_t from;
    const bool valued = s.val.data && (s.edge.valued || s.edge.kind == EDGE_PROGRAM);
    const bool reads_edges = valued || (!COLS && s.gval.data);
    auto go_to = [&](int r) {
        from = __shfl_sync(ALL, mine.begin, r, LANES) + lane;
        rest = __shfl_sync(ALL, mine.length, r, LANES);
        rest = (r < LANES ? rest : 0) - lane; /* lanes are counted modulo LANES */
    };
    auto fetch = [&] {
        near_next = -1, edge_next = 0;
        if (rest <= 0) return;
        near_next = __ldg(s.a.idx + from);
        if (reads_edges) edge_next = edge_asked(s.val, from);
    };
    go_to(0), fetch();
    for (int r = 0; r < rows; r++) {
        A own_s[PER][VEC], own_m[ONE_OWN ? 1 : PER][VEC];
        A sums[COLS ? 2 : 1][PER][VEC];
        auto &sum_s = sums[0], &sum_m = sums[COLS];
        const int32_t row = __shfl_sync(ALL, mine.row, r, LANES);
        const T *const from_s = s.own_s.data + row * s.own_s.row + head * s.own_s.head + column;
        const T *const from_m = s.own_m.data + row * s.own_m.row + head * s.own_m.head + column;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            unpack<T, VEC>(load_if<T, VEC>(reads_s && in_s[i], from_s + i * STEP), own_s[i]);
            if (!ONE_OWN)
                unpack<T, VEC>(load_if<T, VEC>(has_own_m && in_m[i], from_m + i * STEP),
                               own_m[ONE_OWN ? 0 : i]);
#pragma unroll
            for (int v = 0; v < VEC; v++) sum_s[i][v] = sum_m[i][v] = A(0);
        }
        const int longest = max(most_in_warp<LANES>(rest + lane), 1);
        sums_aside<A, (COLS ? 2 : 1) * PER * VEC> aside;
        for (int done = 0; done < longest; done += LANES) {
            if (done && done % CHAIN == 0) aside.put(sums[0][0], done == CHAIN);
            int64_t edge = -1;
            value = 0;
            if (rest > 0 && reads_edges) edge = edge_said(s.val, from, edge_next);
            if (rest > 0 && valued)
                value = edge_bits<WORD(A)>(s.val, clamp(edge, 0, s.val.nnz - 1), head);
            near = (uint32_t)near_next < (uint32_t)s.a.cols ? near_next : -1;
            if (done + LANES < longest)
                from += LANES, rest -= LANES;
            else
                go_to(r + 1);
            fetch();
#pragma unroll UNROLL
            for (int c = 0; c < LANES; c += BATCH) {
                if (c && done + c >= longest) break;
                PACK(T, VEC) row_s[BATCH][PER], row_m[ONE_FAR ? 1 : BATCH][PER];
                A score[BATCH], product[BATCH];
#pragma unroll
                for (int f = 0; f < BATCH; f++) {
                    const int32_t j = __shfl_sync(ALL, near, c + f, LANES);
                    const char *const at_s = far_s + uint64_t(uint32_t(j)) * s.far_s_row;
                    const char *const at_m = far_m + uint64_t(uint32_t(j)) * s.far_m_row;
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        row_s[f][i] = load_if<T, VEC>(reads_s && j >= 0 && in_s[i],
                                                      reinterpret_cast<const T *>(at_s) + i * STEP);
                        if (!ONE_FAR)
                            row_m[ONE_FAR ? 0 : f][i] =
                                load_if<T, VEC>(has_far_m && j >= 0 && in_m[i],
                                                reinterpret_cast<const T *>(at_m) + i * STEP);
                    }
                }
#pragma unroll
                for (int f = 0; f < BATCH; f++) {
                    score[f] = product[f] = A(0);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        A there_s[VEC], there_m[VEC];
                        unpack<T, VEC>(row_s[f][i], there_s);
                        unpack<T, VEC>(ONE_FAR ? row_s[f][i] : row_m[ONE_FAR ? 0 : f][i], there_m);
                        const A *const own = ONE_OWN ? own_s[i] : own_m[ONE_OWN ? 0 : i];
                        A m[VEC];
                        if (ANY) {
                            if (scored)
                                score[f] = pack_score<A, VEC>(s.score, score[f], own_s[i], there_s);
                            pack_messages<A, VEC>(
                                s.message, s.activation, COLS ? there_s : own_s[i],
                                COLS ? own_s[i] : there_s, COLS ? own : there_m, m);
                        }
#pragma unroll
                        for (int v = 0; v < VEC; v++) {
                            if (!ANY) score[f] += own_s[i][v] * there_s[v];
                            product[f] +=
                                (ANY && COLS ? m[v] : own[v]) * (ANY && !COLS ? m[v] : there_m[v]);
                        }
                    }
                }
                transpose_sums<A, LANES, BATCH>(score, product, lane);
                const int mine_is = c + lane % HALF / SHARE;
                const WORD(A) bits = __shfl_sync(ALL, value, mine_is, LANES);
                const A a = s.val.data ? edge_number<A>(s.val, bits) : A(1);
                const bool there = __shfl_sync(ALL, near, mine_is, LANES) >= 0;
                const A of = scored ? score[0] : A(1);
                const edge_result<A> found = ANY && s.edge.kind == EDGE_PROGRAM
                                                 ? edge_run(s.edge, of, a)
                                                 : edge_direct(s.edge, of, a);
                const A ds = there ? product[0] * found.by_s : A(0);
                const A w = there ? found.w : A(0);
                if (!COLS && s.gval.data) {
                    const int64_t to = __shfl_sync(ALL, edge, mine_is, LANES);
                    const A da = product[0] * found.by_a;
                    if (there && lane < HALF && lane % SHARE == 0 && is_edge(s.val, to))
                        store<T, 1>(s.gval.data + to * s.gval.row + head * s.gval.head, &da);
                }
#pragma unroll
                for (int f = 0; f < BATCH; f++) {
                    const A by_s = __shfl_sync(ALL, ds, f * SHARE, LANES);
                    const A by_m = COLS || ANY ? __shfl_sync(ALL, w, f * SHARE, LANES) : A(0);
                    if (ANY && __shfl_sync(ALL, near, c + f, LANES) < 0) continue;
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        A there_s[VEC], there_m[VEC];
                        unpack<T, VEC>(row_s[f][i], there_s);
                        unpack<T, VEC>(ONE_FAR ? row_s[f][i] : row_m[ONE_FAR ? 0 : f][i], there_m);
                        if constexpr (ANY) {
                            pack_add<A, COLS, VEC>(s, by_s, by_m, own_s[i], there_s, own_m[i],
                                                   there_m, sum_s[i], sum_m[i]);
                        } else {
#pragma unroll
                            for (int v = 0; v < VEC; v++) {
                                sum_s[i][v] = reduce_sum::add(sum_s[i][v], by_s, there_s[v]);
                                if (COLS)
                                    sum_m[i][v] = reduce_sum::add(sum_m[i][v], by_m, there_m[v]);
                            }
                        }
                    }
                }
            }
        }
        if (longest > CHAIN) aside.take(sums[0][0]);
        const bool piece = item.count == 0 && r == 0;
        const int64_t slot = int64_t(item.from) * s.heads + head;
        const int32_t to = __shfl_sync(ALL, mine.row, r, LANES);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int at = column + i * STEP;
            if (in_s[i] && piece && s.out_s.data)
                keep<A, VEC>(s.partial_s + slot * s.width_s + at, sum_s[i]);
            else if (in_s[i] && r < item.count)
                write(s.out_s, to, i, sum_s[i]);
            if (!COLS) continue;
            if (in_m[i] && piece && s.out_m.data)
                keep<A, VEC>(s.partial_m + slot * s.width_m + at, sum_m[i]);
            else if (in_m[i] && r < item.count)
                write(s.out_m, to, i, sum_m[i]);
        }
    }
}

template <class T>
static void join_back(const fmm_exec *exec, const back_args<T> &s, const fused_side<T *> &out,
                      typename sum_of<T>::type *partial, int64_t feat, int64_t width)
{
    if (!out.data || !feat || !s.plan.long_rows_max) return;
    spmm_args<T> j = {};
    j.a = s.a;
    j.plan = s.plan;
    j.y = out.data;
    j.partial = partial;
    j.y_row = out.row;
    j.y_head = out.head;
    j.feat = feat;
    j.width = width;
    j.heads = s.heads;
    j.reduce = FMM_SUM;
    launch_join<T, reduce_sum>(exec, j);
}

/* BATCH is SAME's; others gather two rows for an entry in ROWS, too, and ANY is half as long where
 * a pack unpacks into twice the registers. */
template <class T, bool COLS, int VEC, int LANES, int PER, int BATCH, int BLOCKS>
static void launch_back(const fmm_exec *exec, back_args<T> s)
{
    enum {
        BOTH = COLS || BATCH < 8 ? BATCH : BATCH / 2,
        FEW = BOTH > 4 || (VEC > 4 && BOTH > 2) ? BOTH / 2 : BOTH
    };
    const cudaStream_t stream = stream_of(exec);
    s.shift = bundle_shift(s.a.rows);
    while (1 << s.shift > LANES) s.shift--;
    const int64_t items = items_max(s.plan, s.a.rows, s.a.nnz, s.shift) * int64_t(s.heads);
    const unsigned grid = blocks_for(items * LANES);
    const auto alike = [](const auto &l, const auto &r) {
        return l.data == r.data && l.row == r.row && l.head == r.head;
    };
    const bool same =
        s.feat_s == s.feat_m && (COLS ? alike(s.own_s, s.own_m) : alike(s.far_s, s.far_m));
    const bool any = s.edge.kind == EDGE_PROGRAM || s.score != FMM_SCORE_DOT ||
                     s.message != FMM_MESSAGE_SCALE || s.activation != FMM_ACT_NONE;
    const auto kernel = any    ? fused_back<T, COLS, BACK_ANY, VEC, LANES, PER, FEW, BLOCKS>
                        : same ? fused_back<T, COLS, BACK_SAME, VEC, LANES, PER, BATCH, BLOCKS>
                               : fused_back<T, COLS, BACK_OTHER, VEC, LANES, PER, BOTH, BLOCKS>;
    kernel<<<grid, BLOCK, 0, stream>>>(s);
    join_back(exec, s, s.out_s, s.partial_s, s.feat_s, s.width_s);
    if (COLS) join_back(exec, s, s.out_m, s.partial_m, s.feat_m, s.width_m);
}

template <class T, bool COLS>
static void choose_back(const fmm_exec *exec, const back_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T) };
    const int64_t n = ceil_div(s.feat_s > s.feat_m ? s.feat_s : s.feat_m, vec);
    if (vec == V && n <= 4) return launch_back<T, COLS, V, 4, 1, 2, 3>(exec, s);
    if (vec == V && n <= 8) return launch_back<T, COLS, V, 8, 1, 4, 3>(exec, s);
    if (vec == V && n <= 16) return launch_back<T, COLS, V, 16, 1, 4, 3>(exec, s);
    if (vec == V && n <= 32) return launch_back<T, COLS, V, 32, 1, 4, 3>(exec, s);
    if (vec == V) return launch_back<T, COLS, V, 32, 2, 2, 2>(exec, s);
    if (n <= 32) return launch_back<T, COLS, 1, 32, 1, 8, 3>(exec, s);
    return launch_back<T, COLS, 1, 32, 4, 4, 2>(exec, s);
}

template <class P> static fused_side<P> side_of(const fmm_dense *d)
{
    return d ? fused_side<P>{static_cast<P>(d->data), d->row_stride, d->head_stride}
             : fused_side<P>{NULL, 0, 0};
}

template <class T> static fmm_status back_run(const fmm_exec *exec, const fmm_call *call)
{
    typedef typename sum_of<T>::type A;
    const fmm_csr *a = call->a;
    const fmm_fusion *f = fmm_fusion_of(call);
    const bool cols = f->pass == FMM_COLS;
    int before;
    TRY(cuda_enter("fused", exec, &before));
    back_args<T> s;
    s.a = view_csr(a);
    s.val = view_edges(a, call->val);
    s.plan = plan_for_call(exec, a);
    s.own_s = side_of<const T *>(cols ? f->y : f->x);
    s.own_m = side_of<const T *>(cols ? f->z : f->g);
    s.far_s = side_of<const T *>(cols ? f->x : f->y);
    s.far_m = side_of<const T *>(cols ? f->g : f->z);
    s.far_s_row = uint32_t(s.far_s.row * int64_t(sizeof(T)));
    s.far_m_row = uint32_t(s.far_m.row * int64_t(sizeof(T)));
    s.out_s = side_of<T *>(f->out);
    s.out_m = side_of<T *>(cols ? f->out2 : NULL);
    s.gval = side_of<T *>(cols ? NULL : f->out2);
    s.feat_s = f->x->feat, s.feat_m = f->g->feat;
    s.width_s = partial_width(s.feat_s), s.width_m = partial_width(s.feat_m);
    const int64_t slots = plan_slots(a) * f->x->heads;
    s.partial_s = reinterpret_cast<A *>(static_cast<char *>(exec->workspace) + plan_workspace(a));
    s.partial_m = s.partial_s + slots * s.width_s;
    s.heads = (int32_t)f->x->heads;
    s.per_head = reciprocal(f->x->heads);
    s.score = f->score;
    s.message = f->message;
    s.activation = f->activation;
    s.edge = edge_of_fusion<A>(f);
    if (cols)
        choose_back<T, true>(exec, s, fused_vec(f));
    else
        choose_back<T, false>(exec, s, fused_vec(f));
    return cuda_leave("fused", exec, before);
}

#endif
