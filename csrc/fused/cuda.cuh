/* fused `segments`: scores, edge function and weighted sum in one pass, for one element type T.
 *
 * Work is dealt as for SpMM (spmm/cuda.cuh): a piece of a long row, or a bundle of short ones, and
 * a head go to a group of LANES lanes, which span all channels. The group keeps its slices of x's
 * row and of the sums in registers and gathers BATCH rows of y, and of z where that is another
 * matrix. Each lane multiplies its channels, a transposing butterfly (sddmm/cuda.cuh) leaves the
 * scores of the batch spread over the lanes, which turn them into weights side by side and hand
 * them round; the rows are still in registers and are added under their weights. So y is gathered
 * once for both uses and no score reaches memory.
 *
 * Whole rows are written once, pieces of long rows go to slots of the workspace that SpMM's second
 * kernel adds in order: no atomics, the same bits every time, no accumulator of more than 512
 * terms.
 *
 * Five forms are compiled: the dot product with the message y or z and the squared distance with
 * x - y for edge functions that have direct code; RUN, the dot product with y for those that are
 * interpreted; and ANY, which branches on everything, the same way in every lane. */
#ifndef FMM_CUDA_FUSED_CUH
#define FMM_CUDA_FUSED_CUH

#include "cuda_edge.cuh"
#include "../sddmm/cuda.cuh"
#include "../spmm/cuda.cuh"

enum fused_form { DOT_SAME, DOT_OTHER, DOT_RUN, SQDIST_SUB, ANY_FORM };

template <class T> struct fused_args {
    typedef typename sum_of<T>::type A;
    csr_view a;
    edge_view val;
    plan_view plan;
    const T *x, *y, *z; /* z NULL: the message is made of x and y */
    T *out;
    A *partial; /* [segments][heads][width] */
    int64_t x_row, x_head, y_head, z_head, out_row, out_head, feat, feat_out, width;
    uint64_t per_head;
    uint32_t y_row, z_row; /* in bytes */
    int32_t heads, shift;
    int score, message, activation, reduce;
    edge_program<A> edge;
};

/* What one channel adds to a score. */
template <int FORM, class A>
static __device__ __forceinline__ A score_term(int score, A sum, A x, A y)
{
    if (FORM == DOT_SAME || FORM == DOT_OTHER || FORM == DOT_RUN) return sum + x * y;
    const A d = x - y;
    if (FORM == SQDIST_SUB) return sum + d * d;
    switch (score) {
    case FMM_SCORE_DOT:
        return sum + x * y;
    case FMM_SCORE_SQDIST:
        return sum + d * d;
    case FMM_SCORE_L1:
        return sum + absolute(d);
    default:
        return sum + (x + y);
    }
}

/* Rows of z take registers beside those of y, and so does what lives across the interpreter. */
static constexpr int blocks_of_form(int form, int per, int blocks)
{
    return form == DOT_SAME || form == SQDIST_SUB ? blocks : per > 2 ? 1 : 2;
}

template <class T, int FORM, int VEC, int LANES, int PER, int BATCH, int BLOCKS>
static __global__ void __launch_bounds__(BLOCK, blocks_of_form(FORM, PER, BLOCKS))
    fused_segments(const __grid_constant__ fused_args<T> s)
{
    typedef typename sum_of<T>::type A;
    enum { SHARE = LANES / BATCH, STEP = LANES * VEC }; /* lanes with the same score */
    static_assert(LANES >= BATCH, "a lane holds one score of a batch");
    constexpr int UNROLL = FORM == DOT_RUN || FORM == ANY_FORM ? 1
                           : SHARE < 4                         ? SHARE
                                                               : 4; /* batches */
    constexpr bool ANY = FORM == ANY_FORM, OTHER = FORM == DOT_OTHER || ANY;
    constexpr bool RUN = FORM == DOT_RUN || ANY;
    let_next_start();
    const int lane = threadIdx.x % LANES;
    const int column = lane * VEC;
    const int64_t group = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES;

    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t k = item_of(group, s.heads, s.per_head);
    const int32_t head = int32_t(group - k * s.heads);
    const item_view item = find_item(counts, k, s.shift);
    const span mine = find_span(s.a, s.plan, item, lane);
    const int rows = most_in_warp<LANES>(max(item.count, item.count == 0));
    const char *const y = reinterpret_cast<const char *>(s.y + head * s.y_head + column);
    const char *const z =
        OTHER && s.z ? reinterpret_cast<const char *>(s.z + head * s.z_head + column) : NULL;
    const bool extreme = ANY && s.reduce >= FMM_MAX;
    const bool scored = !ANY || s.score != FMM_SCORE_NONE;
    const bool reads_y = !ANY || scored || !s.z;

    /* Empty rows: as many to each item. */
    for (int64_t e = k, items = count_items(counts, s.shift); e < s.a.rows - counts.ends[BUNDLES];
         e += max(items, int64_t(1))) {
        if (k >= items && k) break;
        const int32_t row =
            (int32_t)clamp(__ldg(s.plan.order + counts.ends[BUNDLES] + e), 0, s.a.rows - 1);
        const A zeros[VEC] = {};
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (column + i * STEP < s.feat_out)
                store<T, VEC>(s.out + row * s.out_row + head * s.out_head + column + i * STEP,
                              zeros);
    }

    /* Columns, and values or where they lie, come a chunk ahead, and are looked at only where their
     * chunk begins: a warp issues in order and would wait. */
    int32_t near, near_next;
    WORD(A) ahead;
    A value;
    const bool valued = s.val.data && (s.edge.valued || s.edge.kind == EDGE_PROGRAM);
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
        span next = span_of_lane<LANES>(mine, (r + 1) % LANES);
        if (r + 1 == LANES) next.length = 0;
        return next;
    };
    /* Whether channel column + i * STEP of a row of y, or of z and out, is there. */
    bool in[PER], in_out[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        in[i] = column + i * STEP < s.feat;
        in_out[i] = OTHER ? column + i * STEP < s.feat_out : in[i];
    }

    /* Entries `at` and on of those whose columns the lanes hold. */
    PACK(T, VEC) row[BATCH][PER], sent[OTHER ? BATCH : 1][PER];
    auto gather = [&](int at) __attribute__((always_inline))
    {
#pragma unroll
        for (int f = 0; f < BATCH; f++) {
            const int32_t j = __shfl_sync(ALL, near, at + f, LANES);
            const char *const from = y + uint64_t(uint32_t(j)) * s.y_row;
            const char *const from_z = OTHER ? z + uint64_t(uint32_t(j)) * s.z_row : NULL;
#pragma unroll
            for (int i = 0; i < PER; i++) {
                row[f][i] = load_if<T, VEC>(reads_y && j >= 0 && in[i],
                                            reinterpret_cast<const T *>(from) + i * STEP);
                if (OTHER)
                    sent[OTHER ? f : 0][i] = load_if<T, VEC>(
                        z && j >= 0 && in_out[i], reinterpret_cast<const T *>(from_z) + i * STEP);
            }
        }
    };
    if (rows <= 0) return;
    span now = span_of_lane<LANES>(mine, 0);
    fetch(now, 0);
    for (int r = 0; r < rows; r++) {
        A left[PER][VEC], sum[PER][VEC];
        const T *const x = s.x + now.row * s.x_row + head * s.x_head + column;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            unpack<T, VEC>(load_if<T, VEC>(reads_y && in[i], x + i * STEP), left[i]);
#pragma unroll
            for (int v = 0; v < VEC; v++) sum[i][v] = extreme ? -A(INFINITY) : A(0);
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
                gather(c);

                A dot[BATCH];
#pragma unroll
                for (int f = 0; f < BATCH; f++) {
                    dot[f] = A(0);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        A right[VEC];
                        unpack<T, VEC>(row[f][i], right);
                        if (!scored || (ANY && !in[i])) continue;
#pragma unroll
                        for (int v = 0; v < VEC; v++)
                            dot[f] = score_term<FORM, A>(s.score, dot[f], left[i][v], right[v]);
                    }
                }
                transpose_sum<A, LANES, BATCH>(dot, lane);

                /* Entry c + lane / SHARE is this lane's. */
                const A a = __shfl_sync(ALL, value, c + lane / SHARE, LANES);
                const bool there = __shfl_sync(ALL, near, c + lane / SHARE, LANES) >= 0;
                const A score = scored ? dot[0] : A(1);
                A weight = RUN && s.edge.kind == EDGE_PROGRAM ? edge_run(s.edge, score, a).w
                                                              : edge_direct(s.edge, score, a).w;
                if (ANY && s.reduce == FMM_MIN) weight = -weight;
                if (!there) weight = A(0);

#pragma unroll
                for (int f = 0; f < BATCH; f++) {
                    const A by = __shfl_sync(ALL, weight, f * SHARE, LANES);
                    const bool absent =
                        (ANY || FORM == SQDIST_SUB) && __shfl_sync(ALL, near, c + f, LANES) < 0;
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        A right[VEC];
                        unpack<T, VEC>(FORM == DOT_OTHER || (ANY && z) ? sent[OTHER ? f : 0][i]
                                                                       : row[f][i],
                                       right);
#pragma unroll
                        for (int v = 0; v < VEC; v++) {
                            A m = right[v];
                            if (FORM == SQDIST_SUB) m = absent ? A(0) : left[i][v] - m;
                            if (ANY) {
                                m = activated<A>(s.activation,
                                                 message_raw<A>(s.message, left[i][v], m));
                                if (extreme) {
                                    const A term = absent ? -A(INFINITY) : by * m;
                                    sum[i][v] = reduce_extreme::join(sum[i][v], term);
                                    continue;
                                }
                                if (absent) m = A(0);
                            }
                            sum[i][v] = reduce_sum::add(sum[i][v], by, m);
                        }
                    }
                }
            }
        }
        if (!extreme && longest > CHAIN) aside.take(sum[0]);

        const int32_t row_of = __shfl_sync(ALL, mine.row, r, LANES);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (!in_out[i]) continue;
            if (item.count == 0 && r == 0) {
                keep<A, VEC>(s.partial + (int64_t(item.from) * s.heads + head) * s.width + column +
                                 i * STEP,
                             sum[i]);
            } else if (r < item.count) {
#pragma unroll
                for (int v = 0; v < VEC; v++)
                    sum[i][v] = extreme ? reduce_extreme::finish(sum[i][v], now.length, s.reduce)
                                        : reduce_sum::finish(sum[i][v], now.length, s.reduce);
                store<T, VEC>(s.out + row_of * s.out_row + head * s.out_head + column + i * STEP,
                              sum[i]);
            }
        }
        now = span_after(r);
    }
}

/* The slots of long rows are SpMM's: its second kernel adds them. */
template <class T> static void join_slots_of(const fmm_exec *exec, const fused_args<T> &s)
{
    spmm_args<T> j = {};
    j.a = s.a;
    j.plan = s.plan;
    j.y = s.out;
    j.partial = s.partial;
    j.y_row = s.out_row;
    j.y_head = s.out_head;
    j.feat = s.feat_out;
    j.width = s.width;
    j.heads = s.heads;
    j.reduce = s.reduce;
    if (s.reduce == FMM_SUM || s.reduce == FMM_MEAN)
        launch_join<T, reduce_sum>(exec, j);
    else
        launch_join<T, reduce_extreme>(exec, j);
}

template <class T, int VEC, int LANES, int PER, int BATCH, int BLOCKS>
static void launch_fused(const fmm_exec *exec, fused_args<T> s)
{
    const cudaStream_t stream = stream_of(exec);
    s.shift = bundle_shift(s.a.rows);
    while (1 << s.shift > LANES) s.shift--;
    const int64_t items = items_max(s.plan, s.a.rows, s.a.nnz, s.shift) * int64_t(s.heads);
    const unsigned grid = blocks_for(items * LANES);
    const bool plain = s.activation == FMM_ACT_NONE && s.reduce <= FMM_MEAN;
    const bool run = s.edge.kind == EDGE_PROGRAM;
    const bool dot = plain && s.score == FMM_SCORE_DOT && s.message == FMM_MESSAGE_SCALE;
    const bool sqdist = plain && s.score == FMM_SCORE_SQDIST && s.message == FMM_MESSAGE_SUB;
    const bool same =
        s.z == s.y && s.z_row == s.y_row && s.z_head == s.y_head && s.feat == s.feat_out;
    if (same) s.z = NULL;
    auto kernel = fused_segments<T, ANY_FORM, VEC, LANES, PER, BATCH, BLOCKS>;
    if (dot && same)
        kernel = run ? fused_segments<T, DOT_RUN, VEC, LANES, PER, BATCH, BLOCKS>
                     : fused_segments<T, DOT_SAME, VEC, LANES, PER, BATCH, BLOCKS>;
    else if (dot && !run)
        kernel = fused_segments<T, DOT_OTHER, VEC, LANES, PER, BATCH, BLOCKS>;
    else if (sqdist && !run)
        kernel = fused_segments<T, SQDIST_SUB, VEC, LANES, PER, BATCH, BLOCKS>;
    kernel<<<grid, BLOCK, 0, stream>>>(s);
    if (s.plan.long_rows_max) join_slots_of(exec, s);
}

/* The fewest lanes that span a row with up to 2 loads each, at last 4, and as many rows in flight
 * as the registers of 3 blocks hold: a pack of 2-byte elements takes twice as many once unpacked.
 */
template <class T> static void choose_group(const fmm_exec *exec, const fused_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T), WIDE = V < 8 ? 8 : 4, FEW = V < 8 ? 3 : 2 };
    const int64_t n = ceil_div(s.feat > s.feat_out ? s.feat : s.feat_out, vec);
    if (vec == V && n <= 4) return launch_fused<T, V, 4, 1, 4, 3>(exec, s);
    if (vec == V && n <= 8) return launch_fused<T, V, 8, 1, WIDE, 3>(exec, s);
    if (vec == V && n <= 16) return launch_fused<T, V, 16, 1, WIDE, 3>(exec, s);
    if (vec == V && n <= 32) return launch_fused<T, V, 16, 2, 4, FEW>(exec, s);
    if (vec == V && n <= 64) return launch_fused<T, V, 32, 2, 4, FEW>(exec, s);
    if (vec == V) return launch_fused<T, V, 32, 4, 2, 2>(exec, s);
    if (n <= 8) return launch_fused<T, 1, 8, 1, 8, 4>(exec, s);
    if (n <= 32) return launch_fused<T, 1, 32, 1, 8, 4>(exec, s);
    return launch_fused<T, 1, 32, 8, 2, 2>(exec, s);
}

/* How many elements move at once: 16 bytes where all operands lie so, else one. */
static inline int fused_vec(const fmm_fusion *f)
{
    const int full = 16 / (int)fmm_dtype_bytes(f->x->dtype);
    const size_t bytes = fmm_dtype_bytes(f->x->dtype);
    const fmm_dense *const all[] = {f->x, f->y,   f->z,
                                    f->g, f->out, f->pass == FMM_ROWS ? NULL : f->out2};
    for (const fmm_dense *d : all)
        if (d && !lies_in_packs(d, bytes, full)) return 1;
    return full;
}

template <class T> static fmm_status fused_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_fusion *f = fmm_fusion_of(call);
    int before;
    TRY(cuda_enter("fused", exec, &before));

    fused_args<T> s;
    s.a = view_csr(a);
    s.val = view_edges(a, call->val);
    s.plan = plan_for_call(exec, a);
    s.x = static_cast<const T *>(f->x->data);
    s.y = static_cast<const T *>(f->y->data);
    s.z = f->z ? static_cast<const T *>(f->z->data) : NULL;
    s.out = static_cast<T *>(f->out->data);
    s.partial = reinterpret_cast<typename sum_of<T>::type *>(static_cast<char *>(exec->workspace) +
                                                             plan_workspace(a));
    s.x_row = f->x->row_stride;
    s.x_head = f->x->head_stride;
    s.y_row = uint32_t(f->y->row_stride * int64_t(sizeof(T)));
    s.y_head = f->y->head_stride;
    s.z_row = f->z ? uint32_t(f->z->row_stride * int64_t(sizeof(T))) : 0;
    s.z_head = f->z ? f->z->head_stride : 0;
    s.out_row = f->out->row_stride;
    s.out_head = f->out->head_stride;
    s.feat = f->x->feat;
    s.feat_out = f->out->feat;
    s.width = partial_width(s.feat_out);
    s.heads = (int32_t)f->x->heads;
    s.per_head = reciprocal(f->x->heads);
    s.score = f->score;
    s.message = f->message;
    s.activation = f->activation;
    s.reduce = f->reduce;
    s.edge = edge_of_fusion<typename sum_of<T>::type>(f);
    choose_group(exec, s, fused_vec(f));
    return cuda_leave("fused", exec, before);
}

#endif
