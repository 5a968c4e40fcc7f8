/* How a call of messages becomes launches: the operands as kernels see them, and the choice of
 * packs and of lanes. This is host code, for one element type T.
 *
 *     messages_run      what the call asks for, in a kernel's words
 *       packs_of        may lanes load packs of 16 bytes, and of which operands?
 *       sum_features    out lacks axes: a lane or more for each entry      messages_summed
 *       choose_lanes    the fewest lanes that span the features
 *         launch        messages stay with entries                         messages_kept
 *                       messages go to rows, and the join behind them      messages_rows
 *
 * A kernel is compiled for each width of a pack, number of lanes and kind of call, and for no op:
 * the op is a number in its arguments, which all lanes read alike. */
#pragma once

#include "cuda_entries.cuh"
#include "cuda_rows.cuh"

/* What a call's kernel is compiled for beside its lanes: one operand, two, two of which rhs is one
 * number for a whole pack of lhs, and any call with a mask. */
enum kind { COPIED, PAIRED, WITH_ONE, MASKED };

/* An operand. A step of 0 along an axis repeats what is there: the operand is broadcast. */
static inline side side_of(const fmm_edge_message *m, const fmm_term *t)
{
    side s = {};
    if (!t->data) return s;
    s.data = static_cast<const char *>(t->data->data);
    s.row = uint32_t(t->data->row_stride * int64_t(fmm_dtype_bytes(t->data->dtype)));
    s.at = t->at;
    const fmm_steps steps = fmm_steps_of(m, t);
    for (int d = 0; d < FMM_AXES; d++) s.step[d] = int32_t(steps.by[d]);
    return s;
}

/* Which indices a kernel fetches with an entry. A copy reads one number for each entry, other
 * messages its column and its edge. */
template <class T> static void index_by(messages_args<T> *s, bool copied)
{
    bool edges = false;
    s->rows = s->cols = false;
    for (const side &k : s->of) {
        s->rows = s->rows || (k.data && k.at == FMM_AT_ROW);
        s->cols = s->cols || (k.data && k.at == FMM_AT_COL);
        edges = edges || (k.data && k.at == FMM_AT_EDGE);
    }
    const index_view none = {NULL, 0, 1};
    const index_view columns = {s->a.idx, 0, s->a.cols};
    const index_view entries = {static_cast<const int32_t *>(s->val.eid), -1, int32_t(s->a.nnz)};
    s->by[0] = s->cols ? columns : none;
    s->by[1] = edges ? entries : none;
    if (copied && edges) s->by[0] = entries;
}

/* Where the last axis is packs in all that have it, and at most one operand of two lacks it. That
 * one becomes rhs. */
template <class T> static int packs_of(const fmm_edge_message *m, messages_args<T> *s, kind *of)
{
    constexpr int V = 16 / sizeof(T), LAST = FMM_AXES - 1;
    if (*of == MASKED || m->axis[LAST] % V || !lies_in_packs(m->out.data, sizeof(T), V)) return 1;
    const bool two = *of != COPIED;
    bool has[2];
    for (int k = 0; k <= two; k++) {
        const fmm_term *const t = k ? &m->rhs : &m->lhs;
        has[k] = t->has >> LAST & 1;
        if (has[k] && !lies_in_packs(t->data, sizeof(T), V)) return 1;
    }
    if (!has[0] && (!two || !has[1])) return 1;
    if (two && has[0] != has[1]) *of = WITH_ONE;
    if (!has[0]) { /* the sides change places, and so op says which of them comes first */
        const side lhs = s->of[LHS];
        s->of[LHS] = s->of[RHS];
        s->of[RHS] = lhs;
        if (s->op == FMM_COMBINE_SUB || s->op == FMM_COMBINE_DIV)
            s->op = s->op == FMM_COMBINE_SUB ? SUB_FROM : DIV_INTO;
    }
    return V;
}

/* One launch where messages stay with their entries, and the join behind it where a row may be
 * long. Counts are summed and joined in the type of sums, whatever the operands' is. */
template <class T, int VEC, int COLS, int N, int VEC_RHS>
static void launch(const fmm_exec *exec, messages_args<T> s, bool kept)
{
    typedef rows_shape<T, VEC, COLS> S;
    /* To entries: there is nothing to join. */
    if (kept) {
        constexpr int LANES = COLS == 2 ? 4 : COLS == 16 ? 32 : COLS; /* fewer kernels */
        messages_kept<T, VEC, LANES, N, VEC_RHS>
            <<<blocks_for(s.a.nnz), BLOCK, 0, stream_of(exec)>>>(s);
        return;
    }
    const int64_t tiles = ceil_div(s.feat_out, COLS * VEC);
    const dim3 grid(deal_blocks(exec, &s, S::LANES, tiles), (unsigned)tiles);
    /* To rows: extremes of masked calls are not asked for, so no kernel is compiled for them. */
    const bool adds = s.reduce == FMM_SUM || s.reduce == FMM_MEAN;
    if constexpr (N < SIDES)
        if (!adds) {
            messages_rows<S, N, VEC_RHS, reduce_extreme><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
            if (s.plan.long_rows_max) launch_join<T, reduce_extreme>(exec, s);
            return;
        }
    messages_rows<S, N, VEC_RHS, reduce_sum><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
    if (!s.plan.long_rows_max) return;
    if (s.op != FMM_COMBINE_ONE) return launch_join<T, reduce_sum>(exec, s);
    /* Counts: the join is that of another element type, and gets the same places. */
    join_args<typename S::A> counts;
    static_cast<dealt &>(counts) = s;
    counts.out = reinterpret_cast<typename S::A *>(s.out);
    counts.partial = s.partial;
    counts.out_row = s.out_row, counts.out_head = 0;
    counts.feat_out = s.feat_out, counts.width = s.width, counts.reduce = s.reduce;
    launch_join<typename S::A, reduce_sum>(exec, counts);
}

/* The fewest lanes that span the features, of those that are compiled. Calls with a mask are rare,
 * and have fewer of them. */
template <class T, int VEC, int N, int VEC_RHS>
static void choose_lanes(const fmm_exec *exec, const messages_args<T> &s, bool kept)
{
    const int64_t n = ceil_div(s.features, VEC);
    if (n <= 1) return launch<T, VEC, 1, N, VEC_RHS>(exec, s, kept);
    if constexpr (N < SIDES)
        if (n <= 2) return launch<T, VEC, 2, N, VEC_RHS>(exec, s, kept);
    if (n <= 4) return launch<T, VEC, 4, N, VEC_RHS>(exec, s, kept);
    if (n <= 8) return launch<T, VEC, 8, N, VEC_RHS>(exec, s, kept);
    if constexpr (N < SIDES)
        if (n <= 16) return launch<T, VEC, 16, N, VEC_RHS>(exec, s, kept);
    launch<T, VEC, 32, N, VEC_RHS>(exec, s, kept);
}

/* Sums over axes that out lacks: at most 4 terms a lane at once, fewer lanes for fewer terms. With
 * all lanes of a warp, a lane has more terms, one after the other. */
template <class T> static void sum_features(const fmm_exec *exec, messages_args<T> s, bool masked)
{
    for (s.lanes = 1; s.lanes < WARP && s.lanes * 4 < s.sums;) s.lanes *= 2;
    /* The kernel loads two operands; what it loads beside a copy's is not read. */
    if (!masked && !s.of[RHS].data) s.of[RHS] = s.of[LHS];
    const auto kernel = masked ? messages_summed<T, SIDES> : messages_summed<T, 2>;
    kernel<<<blocks_for(s.a.nnz), BLOCK, 0, stream_of(exec)>>>(s);
}

/* The plan is made or taken where sums go over rows; kernels of entries need none. */
template <class T> static fmm_status messages_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_edge_message *m = fmm_messages_of(call);
    const fmm_csr *a = call->a;
    const bool kept = m->out.at == FMM_AT_EDGE;
    int before;
    TRY(cuda_enter("messages", exec, &before));

    messages_args<T> s = {};
    if (kept)
        s.a = view_csr(a), s.val = view_edges(a, NULL);
    else
        static_cast<dealt &>(s) = deal(exec, a, NULL, 1);
    /* The result and, of sums over rows, the slots behind the plan. */
    s.out = static_cast<T *>(m->out.data->data);
    s.out_row = m->out.data->row_stride;
    s.partial = reinterpret_cast<typename sum_of<T>::type *>(static_cast<char *>(exec->workspace) +
                                                             (kept ? 0 : plan_workspace(a)));
    s.feat_out = m->out.data->feat;
    s.width = quads(s.feat_out);
    s.reduce = m->reduce;
    s.op = m->op, s.mask_op = m->mask_op;
    const bool masked = m->mask_y.data != NULL, one = m->op == FMM_COMBINE_ONE;
    kind of = masked ? MASKED : m->op == FMM_COMBINE_COPY ? COPIED : PAIRED;
    const bool mask_pair = masked && m->mask_op != FMM_COMBINE_COPY;
    /* features: numbers of a row of out. sums: terms that one of them adds up for an entry. */
    s.features = s.sums = 1;
    for (int d = 0; d < FMM_AXES; d++) {
        const int32_t size = s.axis[d] = int32_t(m->axis[d]);
        const bool has = m->out.has >> d & 1;
        s.features *= s.kept[d] = has ? size : 1;
        s.sums *= s.lost[d] = has ? 1 : size;
    }
    if (!one) s.of[LHS] = side_of(m, &m->lhs);
    if (!one && m->op != FMM_COMBINE_COPY) s.of[RHS] = side_of(m, &m->rhs);
    if (masked) s.of[MASK_LHS] = side_of(m, &m->mask_lhs), s.of[MASK_Y] = side_of(m, &m->mask_y);
    if (mask_pair) s.of[MASK_RHS] = side_of(m, &m->mask_rhs);
    /* Terms of one sum lie at any distance from each other, so they are loaded one by one. */
    const bool summed = s.sums > 1;
    const int vec = summed ? 1 : packs_of(m, &s, &of);
    index_by(&s, of == COPIED);

    constexpr int V = 16 / sizeof(T);
    if (summed)
        sum_features(exec, s, masked);
    else if (of == MASKED)
        choose_lanes<T, 1, SIDES, 1>(exec, s, kept);
    else if (of == WITH_ONE)
        choose_lanes<T, V, 2, 1>(exec, s, kept);
    else if (of == PAIRED)
        vec > 1 ? choose_lanes<T, V, 2, V>(exec, s, kept) : choose_lanes<T, 1, 2, 1>(exec, s, kept);
    else
        vec > 1 ? choose_lanes<T, V, 1, V>(exec, s, kept) : choose_lanes<T, 1, 1, 1>(exec, s, kept);
    return cuda_leave("messages", exec, before);
}
