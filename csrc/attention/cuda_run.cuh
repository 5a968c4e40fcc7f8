/* A call of attention `segments` for one element type: operands to sides, shape to kernel. */
#ifndef FMM_CUDA_ATTENTION_RUN_CUH
#define FMM_CUDA_ATTENTION_RUN_CUH

#include "cuda_join.cuh"
#include "cuda_walk.cuh"
#include "cuda.h"

template <class T> static own_side<T> own_of(const fmm_dense *d)
{
    return own_side<T>{static_cast<T *>(d->data), d->row_stride, d->heads > 1 ? d->head_stride : 0};
}
template <class T> static far_side<T> far_of(const fmm_dense *d)
{
    return far_side<T>{static_cast<const char *>(d->data),
                       d->heads > 1 ? d->head_stride * (int64_t)sizeof(T) : 0,
                       d->rows > 1 ? (uint32_t)(d->row_stride * (int64_t)sizeof(T)) : 0};
}

/* Lanes of a head: enough for its columns, and more, each with fewer loads, while a warp still
 * holds every head; or as BITS says. Lanes of a group: all heads, or as many as a warp holds. */
template <class T, int VEC, int PER, int FLY, int BITS>
static void deal_lanes(attend_args<T> *s, int score)
{
    const int64_t feat = s->feat_v > s->feat || score == FMM_ADDITIVE ? s->feat_v : s->feat;
    const int32_t most = BITS >= 0 && PER == 2 ? 4 : 5;
    int32_t heads = 0, bits = 0;
    while (heads < 5 && 1 << heads < s->heads) heads++;
    while (bits < 5 && (int64_t)VEC * PER << bits < feat) bits++;
    while (BITS < 0 && bits + heads < 5 && (int64_t)VEC << bits < feat) bits++;
    s->lane_bits = bits;
    s->group_bits = bits + heads < most ? bits + heads : most;
    while (1 << s->group_bits < FLY) s->group_bits++;
    s->shift = bundle_shift(s->a.rows);
    if (s->shift > s->group_bits) s->shift = s->group_bits;
}

template <class T, int WALK, int SCORE, int VEC, int PER, int FLY, int BLOCKS, int KIND, bool POS,
          int BITS>
static void launch_lanes(const fmm_exec *exec, attend_args<T> s, int64_t parts)
{
    constexpr int THREADS = threads_of(WALK);
    enum { CARD = 132, JOIN_MOST = CARD * (sizeof(T) == 8 ? CREWS / 2 : CREWS) };
    deal_lanes<T, VEC, PER, FLY, BITS>(&s, SCORE);
    const int64_t items = items_max(s.plan, s.a.rows, s.a.nnz, s.shift);
    const bool collects = WALK == ROWS && SCORE == FMM_GATV2 && s.to_att.data;
    const int64_t blocks = smaller(ceil_div(items << s.group_bits, THREADS), INT32_MAX);
    const dim3 grid((unsigned)(collects ? parts : blocks),
                    (unsigned)ceil_div(s.heads, 1 << (s.group_bits - s.lane_bits)));
    const auto walk = attend_segments<T, WALK, SCORE, VEC, PER, FLY, BLOCKS, KIND, POS, BITS>;
    if (WALK == COLS && s.early)
        launch_early(exec->index, stream_of(exec), walk, grid, s, THREADS);
    else
        walk<<<grid, THREADS, 0, stream_of(exec)>>>(s);
    if (!s.plan.long_rows_max || !s.partial) return;
    const int64_t across = s.width / QUAD - (WALK == FORWARD);
    const int64_t threads = s.plan.long_rows_max * s.heads * across;
    if (!threads) return;
    /* FORWARD of ADDITIVE adds up in one order, with POS's columns or without. */
    s.hub_width = WALK == FORWARD && SCORE == FMM_ADDITIVE && !POS ? 2 * across : across;
    s.per_row = reciprocal(s.heads * across);
    s.per_head = reciprocal(s.heads);
    s.per_quad = reciprocal(across);
    /* As many blocks as run at once: others would look up their rows after the walk's end. */
    launch_early(exec->index, stream_of(exec), attend_join<T, WALK, POS>,
                 dim3((unsigned)smaller(ceil_div(threads, CREW), JOIN_MOST)), s, CREW);
}

/* Whether heads of q, k and v have just as many columns. */
template <class T> static bool fills(const attend_args<T> &s, int score, int32_t feat)
{
    return (score == FMM_ADDITIVE || s.feat == feat) && s.feat_v == feat;
}

/* Heads of 8 columns, the commonest, have kernels of their own where lanes of a head add up. */
template <class T, int WALK, int SCORE, int VEC, int PER, int FLY, int BLOCKS, int KIND, bool POS>
static void launch_walk(const fmm_exec *exec, const attend_args<T> &s, int64_t parts)
{
    enum { EIGHT = VEC == 8 ? 0 : 1 };
    if constexpr (KIND != WITH_EDGES && (WALK != FORWARD || SCORE != FMM_ADDITIVE))
        if (fills(s, SCORE, 8))
            return launch_lanes<T, WALK, SCORE, VEC, PER, FLY, BLOCKS, KIND, POS, EIGHT>(exec, s,
                                                                                         parts);
    launch_lanes<T, WALK, SCORE, VEC, PER, FLY, BLOCKS, KIND, POS, -1>(exec, s, parts);
}

/* The same with 8 columns a lane, and in groups of 16 lanes at most, whose rows are 512 bytes: what
 * the lanes of a head do alike, and the sums over them, is half as much. Groups are half as many,
 * too few for a small matrix of long rows where k and v are read (ogbl-ddi, 2 M entries: 6 to 20 %
 * slower; 115 M entries of rows as long: 1 to 20 % faster). */
template <class T> static bool takes_eights(const attend_args<T> &s, int score, kind kind)
{
    enum { LONG_ROWS = 256, FEW = 1 << 23 };
    const bool few = s.a.nnz < FEW && s.a.nnz >= LONG_ROWS * s.a.rows;
    return ((fills(s, score, 8) && s.heads > 2) || fills(s, score, 64) || fills(s, score, 128)) &&
           (kind == SAME_FAR || (kind == PLAIN && !few));
}
template <class T, int WALK, int SCORE, int KIND, bool POS>
static void launch_eights(const fmm_exec *exec, const attend_args<T> &s, int64_t parts)
{
    constexpr bool SCALAR = SCORE == FMM_ADDITIVE, BACK = WALK != FORWARD;
    constexpr int FLY = SCALAR || (KIND == SAME_FAR && !BACK) ? 4 : 2;
    constexpr int BLOCKS = BACK ? 2 : SCALAR ? 4 : KIND == SAME_FAR ? 5 : 6;
    if (s.feat_v == 8)
        return launch_lanes<T, WALK, SCORE, 4, 2, FLY, BLOCKS, KIND, POS, 0>(exec, s, parts);
    constexpr int MORE = BACK && SCALAR ? BLOCKS + 1 : BLOCKS;
    if (s.feat_v == 64)
        launch_lanes<T, WALK, SCORE, 4, 2, FLY, MORE, KIND, POS, 3>(exec, s, parts);
    else
        launch_lanes<T, WALK, SCORE, 4, 2, FLY, MORE, KIND, POS, 4>(exec, s, parts);
}

/* How many blocks (FORWARD's are half as large) a multiprocessor holds, so that a walk's registers
 * hardly spill and that loads of a batch are all under way before the first is waited for, which
 * shows in the SASS of sm_90: a block more, with too few registers, waits two or three times for
 * what one wait would bring. The backward of additive scores has a third block although it spills:
 * not in its innermost loop. */
template <class T, int WALK, int SCORE, bool POS> static constexpr int blocks_of(bool edges)
{
    if (WALK != FORWARD) {
        if (sizeof(T) == 8 || SCORE != FMM_ADDITIVE) return 2;
        return sizeof(T) == 4 || !edges ? 3 : 2;
    }
    if (sizeof(T) == 8) return 4;
    if (SCORE == FMM_ADDITIVE) return edges || POS || sizeof(T) == 2 ? 6 : 8;
    return edges || sizeof(T) == 2 ? 4 : 6;
}

/* The variants: 16 bytes a load where all operands lie so, one load a lane and row up to 512 bytes
 * of a head, else four; any other layout in single elements. */
template <class T, int WALK, int SCORE, bool POS>
static void choose_walk(const fmm_exec *exec, const attend_args<T> &s, bool packs, kind kind,
                        int64_t parts)
{
    enum { V = 16 / sizeof(T), MANY = per_packs(V), ONE = BLOCK / threads_of(WALK) };
    constexpr bool BACK = WALK != FORWARD;
    const int64_t feat = s.feat > s.feat_v ? s.feat : s.feat_v;
    if constexpr (sizeof(T) == 4 && (WALK != ROWS || SCORE != FMM_ADDITIVE))
        if (packs && takes_eights(s, SCORE, kind)) {
            if constexpr (SCORE == FMM_GATV2 && WALK != COLS)
                if (kind == SAME_FAR)
                    return launch_eights<T, WALK, SCORE, SAME_FAR, POS>(exec, s, parts);
            return launch_eights<T, WALK, SCORE, PLAIN, POS>(exec, s, parts);
        }
    if (packs && feat <= WARP * V) {
        constexpr int FLY = BACK && SCORE == FMM_GATV2 && sizeof(T) == 2 ? 2 : 4;
        constexpr int BLOCKS = blocks_of<T, WALK, SCORE, POS>(false);
        if constexpr (SCORE == FMM_GATV2 && WALK != COLS && sizeof(T) < 8)
            if (kind == SAME_FAR)
                return launch_walk<T, WALK, SCORE, V, 1, FLY, BLOCKS, SAME_FAR, POS>(exec, s,
                                                                                     parts);
        if constexpr (sizeof(T) < 8)
            if (kind != WITH_EDGES)
                return launch_walk<T, WALK, SCORE, V, 1, FLY, BLOCKS, PLAIN, POS>(exec, s, parts);
        return launch_walk<T, WALK, SCORE, V, 1, 2, blocks_of<T, WALK, SCORE, POS>(true),
                           WITH_EDGES, POS>(exec, s, parts);
    }
    if (packs && feat <= WARP * V * MANY)
        return launch_walk<T, WALK, SCORE, V, MANY, 1, ONE, WITH_EDGES, POS>(exec, s, parts);
    launch_walk<T, WALK, SCORE, 1, PER_SINGLE, 1, BACK || sizeof(T) == 8 ? ONE : 4, WITH_EDGES,
                POS>(exec, s, parts);
}
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

template <class T> static fmm_status attend_run(const fmm_exec *exec, const fmm_call *call)
{
    typedef typename sum_of<T>::type A;
    const fmm_csr *a = call->a;
    const fmm_attention *t = call->attention;
    const bool cols = t->pass == FMM_ATTENTION_COLS, forward = t->pass == FMM_ATTENTION_FORWARD;
    const bool weights = t->pass == FMM_ATTENTION_WEIGHTS;
    int before;
    if (!a->rows) return fmm_attention_reference_cuda(exec, call); /* zeros in gatt */
    TRY(cuda_enter("attention", exec, &before));

    attend_args<T> s = {};
    s.a = view_csr(a);
    s.plan = plan_for_call(exec, a);
    s.edges = view_edges(a, NULL);
    s.own_s = own_of<const T>(cols ? &t->k : &t->q);
    s.far_s = far_of<T>(cols ? &t->q : &t->k);
    if (!forward && !weights) s.own_v = own_of<const T>(cols ? &t->v : &t->gout);
    s.far_v = far_of<T>(cols ? &t->gout : &t->v);
    s.att = own_of<const T>(&t->att);
    s.bias = own_of<const T>(&t->bias);
    s.weight = own_of<const T>(&t->weight);
    s.lse = own_of<const A>(&t->lse);
    s.lse_rest = own_of<const A>(&t->lse_rest);
    s.delta = own_of<const A>(&t->delta);
    if (forward) {
        s.to_v = own_of<T>(&t->out);
        s.to_lse = own_of<A>(&t->lse), s.to_rest = own_of<A>(&t->lse_rest);
        s.to_pos = own_of<A>(&t->pos), s.to_pos_w = own_of<A>(&t->pos_w);
    }
    if (cols) s.to_s = own_of<T>(&t->gk), s.to_v = own_of<T>(&t->gv);
    if (t->pass == FMM_ATTENTION_ROWS) {
        s.to_s = own_of<T>(&t->gq);
        s.to_att = own_of<A>(&t->gatt);
        s.to_bias = own_of<T>(&t->gbias);
        s.to_weight = own_of<T>(&t->gweight);
    }
    if (!cols && !forward) s.to_use = own_of<T>(&t->weights);
    s.seed = t->seed;
    s.drops = t->dropout > 0;
    s.keep_limit = fmm_philox_limit(t->dropout);
    s.kept = t->dropout < 1 ? A(1 / (1 - t->dropout)) : A(0);
    s.scale = A(t->scale);
    s.slope = A(t->slope);
    s.heads = (int32_t)t->q.heads;
    s.feat = (int32_t)t->q.feat;
    s.feat_v = weights ? 0 : (int32_t)t->v.feat;
    /* Reads that count for nothing still need an address. */
    if (!s.feat) s.far_s = far_side<T>{reinterpret_cast<const char *>(s.plan.header), 0, 0};
    if (!s.feat_v) s.far_v = far_side<T>{reinterpret_cast<const char *>(s.plan.header), 0, 0};
    const bool same = s.far_s.data == s.far_v.data && s.feat == s.feat_v &&
                      s.far_s.row == s.far_v.row && s.far_s.head == s.far_v.head;
    s.width_s = slot_width_s(t);
    s.width = slot_width(t);
    char *at = static_cast<char *>(exec->workspace) + plan_workspace(a);
    s.stats = static_cast<const A *>(t->packed ? t->packed : at);
    /* Before it waits COLS reads the matrix and its plan, and writes rows without entries. So the
     * kernel before must be stats_of, or cuda_node_sums.cu's DELTA of the same operator: one of
     * another may have made the matrix, or read what has been freed since and lies where results do
     * now. */
    s.early = a->cols && s.plan.header != exec->workspace && (!t->packed || t->packed_before);
    at += plan_padded(stats_bytes(call));
    if (s.to_s.data || s.to_v.data || forward) s.partial = reinterpret_cast<A *>(at);

    if (cols && !t->packed) {
        const stats_args<T> stats = {
            s.lse,   s.lse_rest,          s.delta, own_of<const T>(&t->q), const_cast<A *>(s.stats),
            a->cols, reciprocal(s.heads), s.heads, planes_of(t->score)};
        const int64_t count = a->cols * int64_t(s.heads);
        if (count)
            stats_of<T>
                <<<(unsigned)smaller(blocks_for(count), 1 << 16), BLOCK, 0, stream_of(exec)>>>(
                    stats);
    }
    const bool packs = attention_packs(t);
    const bool edges = s.bias.data || s.weight.data || s.drops || s.to_use.data || s.to_bias.data ||
                       s.to_weight.data;
    const kind kind = edges ? WITH_EDGES : same ? SAME_FAR : PLAIN;
    const int64_t parts = t->gatt.rows;
    if (forward) choose_score<T, FORWARD>(exec, s, t->score, packs, kind, parts);
    if (cols) choose_score<T, COLS>(exec, s, t->score, packs, kind, parts);
    if (!forward && !cols) choose_score<T, ROWS>(exec, s, t->score, packs, kind, parts);
    return cuda_leave("attention", exec, before);
}

#endif
