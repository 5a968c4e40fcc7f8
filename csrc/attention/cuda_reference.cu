/* Attention as fusedmm_attention.h defines it, in plain loops: algorithm `reference`.
 *
 * One thread owns one output element and adds its terms in the order of storage. Any shape, stride
 * and type will do; there is no plan, no workspace and no shuffle. Each thread computes the logits
 * of its entries anew, so this is slow and hard to get wrong.
 *
 *     kernel               a thread owns              it loops over
 *     forward_reference    out[i,h,c] (c = 0: lse)    the entries of row i, twice
 *     sums_reference       gq[i,h,c], or gk and gv    the entries of a row of A, or its transpose
 *                          gatt[part,h,c]             a part of the rows, their entries
 *     edges_reference      an entry p and head h      nothing
 *
 * It follows the formulas in this order: the logit from score, bias and leaky; the softmax w from
 * the row's statistics; u from w, dropout and the edge's weight; in the backward <gout, v>, then
 * the logit's gradient w (u / w <gout, v> - delta), then its factors. Sums are long_sums, whose
 * accumulators add at most CHAIN terms in a row. */
#include "../core/philox.h"
#include "../cuda/reference.cuh"

/* The call as the kernels get it, and what they need beside it, numbers in the type of sums. */
template <class T> struct plain_args : fmm_attention {
    typedef typename sum_of<T>::type A;
    csr_view a;
    edge_view edges; /* eid alone */
    uint64_t keep_limit;
    A scale, slope;
    A keep_scale; /* 1 / (1 - dropout) */
    int64_t heads, feat, feat_v, parts;
    bool drops; /* dropout is above 0 */
    bool cols;  /* the matrix is the transpose: its rows have k and v, its columns q and gout */
};

template <class A> static __device__ A leaky(A t, A slope) { return t > A(0) ? t : t * slope; }

/* All about an entry of A in row i and column j, which is edge e, at head h. The steps are those of
 * the fast kernels: find has the logit, use has u / w, back has the gradient of the logit. */
template <class T> struct plain_entry {
    typedef typename sum_of<T>::type A;
    int64_t i, j, e, h;
    bool there; /* column and edge are inside: else the entry counts for nothing */
    A logit;
    A gain;  /* ADDITIVE: the slope of leaky at its argument */
    A above; /* ADDITIVE: 1 where that argument is above 0, else 0 */
    A w;     /* the softmax */
    A drop;  /* 0 or 1 / (1 - dropout) */
    A by;    /* u / w: drop times the edge's weight */
    A dot;   /* <gout, v> */
    A slant; /* the gradient of the logit */

    /* The operands of the score as numbers. */
    __device__ A q(const plain_args<T> &s, int64_t c) const
    {
        return widen(*element<T>(s.q, i, h, c));
    }
    __device__ A k(const plain_args<T> &s, int64_t c) const
    {
        return widen(*element<T>(s.k, j, h, c));
    }
    /* Entry p of row `row` of the matrix walked over, which is A or its transpose. What idx and eid
     * hold is read once and checked before it is used. */
    __device__ void find(const plain_args<T> &s, int64_t row, int64_t p, int64_t head)
    {
        const int32_t column = s.a.idx[p];
        e = edge_at(s.edges, p);
        there = (uint32_t)column < (uint32_t)s.a.cols && is_edge(s.edges, e);
        if (!there) return;
        i = s.cols ? column : row, j = s.cols ? row : column, h = head;
        const A bias = s.bias.data ? widen(*element<T>(s.bias, e, h, 0)) : A(0);
        /* ADDITIVE has the bias inside leaky, the other scores behind their sum. */
        gain = above = A(1);
        if (s.score == FMM_ADDITIVE) {
            const A t = q(s, 0) + k(s, 0) + bias;
            logit = leaky(t, s.slope), gain = t > A(0) ? A(1) : s.slope;
            above = t > A(0) ? A(1) : A(0);
            return;
        }
        long_sum<A> sum;
        sum.start();
        for (int64_t c = 0; c < s.feat; c++)
            if (s.score == FMM_DOT)
                sum.add(q(s, c), k(s, c));
            else
                sum.add(widen(*element<T>(s.att, 0, h, c)), leaky(q(s, c) + k(s, c), s.slope));
        logit = (s.score == FMM_DOT ? s.scale * sum.total() : sum.total()) + bias;
    }
    /* Dropout's decision comes from a counter-based generator, so that every pass makes the same
     * one from seed, edge and head. */
    __device__ void use(const plain_args<T> &s)
    {
        const bool keeps = !s.drops || fmm_philox_keeps((uint64_t)*s.seed, s.keys ? s.keys[e] : e,
                                                        h, s.keep_limit);
        drop = !s.drops ? A(1) : keeps ? s.keep_scale : A(0);
        const int64_t head = s.weight.heads == 1 ? 0 : h; /* heads may share their weights */
        by = s.weight.data ? drop * widen(*element<T>(s.weight, e, head, 0)) : drop;
    }
    /* The softmax again, from the statistics that FORWARD left. A row without weights has lse
     * -infinity, from which exp would make NaN. */
    __device__ void back(const plain_args<T> &s)
    {
        use(s);
        const A lse = *element<A>(s.lse, i, h, 0);
        const A rest = s.lse_rest.data ? *element<A>(s.lse_rest, i, h, 0) : A(0);
        /* In this order lse cancels the large part of the logit before its rest is taken off. */
        w = lse == -A(INFINITY) ? A(0) : exp(logit - lse - rest);
        long_sum<A> sum;
        sum.start();
        if (s.gout.data)
            for (int64_t c = 0; c < s.feat_v; c++)
                sum.add(widen(*element<T>(s.gout, i, h, c)), widen(*element<T>(s.v, j, h, c)));
        dot = sum.total();
        slant = s.delta.data ? w * (by * dot - *element<A>(s.delta, i, h, 0)) : A(0);
    }
    /* The factor of slant in the gradient of q or k, column c. */
    __device__ A share(const plain_args<T> &s, int64_t c, bool to_q) const
    {
        if (s.score == FMM_ADDITIVE) return gain;
        if (s.score == FMM_DOT) return s.scale * (to_q ? k(s, c) : q(s, c));
        return widen(*element<T>(s.att, 0, h, c)) * (q(s, c) + k(s, c) > A(0) ? A(1) : s.slope);
    }
};

/* The first loop finds the row's largest logit, the second adds up relative to it, so that no
 * exponential is above 1. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    forward_reference(const __grid_constant__ plain_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int64_t across = s.feat_v > 0 ? s.feat_v : 1, count = s.a.rows * s.heads * across;
    for (int64_t t = this_thread(); t < count; t += all_threads()) {
        const int64_t c = t % across, h = t / across % s.heads, i = t / across / s.heads;
        int64_t begin;
        const int64_t terms = row_range(s.a, i, &begin);
        plain_entry<T> entry;
        A high = -A(INFINITY);
        for (int64_t p = begin; p < begin + terms; p++) {
            entry.find(s, i, p, h);
            if (entry.there) high = fmax(high, entry.logit);
        }
        /* -infinity less -infinity would be NaN. */
        const A zero = high == -A(INFINITY) ? A(0) : high;
        long_sum<A> sum, values, pos, pos_w;
        sum.start(), values.start(), pos.start(), pos_w.start();
        for (int64_t p = begin; p < begin + terms; p++) {
            entry.find(s, i, p, h);
            if (!entry.there) continue;
            entry.use(s);
            const A w = exp(entry.logit - zero);
            /* The denominator counts w alone: dropout and weights act on the softmax's result. */
            sum.add(w, A(1));
            pos_w.add(w, entry.above);
            if (s.feat_v <= 0) continue;
            const A value = widen(*element<T>(s.v, entry.j, h, c));
            values.add(w * entry.by, value);
            pos.add(w * entry.by * entry.above, value);
        }
        /* A row without weights gives zeros and lse -infinity. */
        const A all = sum.total();
        if (s.feat_v > 0)
            *element<T>(s.out, i, h, c) = narrow<T>(all == A(0) ? A(0) : values.total() / all);
        if (s.feat_v > 0 && s.pos.data)
            *element<A>(s.pos, i, h, c) = all == A(0) ? A(0) : pos.total() / all;
        if (c == 0 && s.pos_w.data)
            *element<A>(s.pos_w, i, h, 0) = all == A(0) ? A(0) : pos_w.total() / all;
        if (c) continue; /* what is one number a head belongs to the thread of column 0 */
        const A lse = all == A(0) ? -A(INFINITY) : high + log(all);
        *element<A>(s.lse, i, h, 0) = lse;
        if (s.lse_rest.data)
            *element<A>(s.lse_rest, i, h, 0) = isinf(lse) ? A(0) : high - lse + log(all);
    }
}

/* Sums over the entries of rows: gq of a row of A, or gk and gv of a row of its transpose, where
 * columns c below feat belong to gq or gk, those from feat on to gv. Of gatt, which sums over all
 * entries of A, an owner has a part: an equal stretch of rows. The caller adds the parts up. */
template <class T, bool ATT>
static __global__ void __launch_bounds__(BLOCK)
    sums_reference(const __grid_constant__ plain_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int64_t across = s.feat + (s.cols ? s.feat_v : 0), owners = ATT ? s.parts : s.a.rows;
    const int64_t count = owners * s.heads * across, each = ATT ? ceil_div(s.a.rows, owners) : 1;
    for (int64_t t = this_thread(); t < count; t += all_threads()) {
        const int64_t c = t % across, h = t / across % s.heads, owner = t / across / s.heads;
        /* A caller that needs no gradient has given no tensor for it. */
        const fmm_dense &to = ATT ? s.gatt : c >= s.feat ? s.gv : s.cols ? s.gk : s.gq;
        if (!to.data) continue;
        long_sum<A> sum;
        sum.start();
        for (int64_t row = owner * each; row < min((owner + 1) * each, s.a.rows); row++) {
            int64_t begin;
            const int64_t terms = row_range(s.a, row, &begin);
            for (int64_t p = begin; p < begin + terms; p++) {
                plain_entry<T> entry;
                entry.find(s, row, p, h);
                if (!entry.there) continue;
                entry.back(s);
                if (ATT)
                    sum.add(entry.slant, leaky(entry.q(s, c) + entry.k(s, c), s.slope));
                else if (c < s.feat)
                    sum.add(entry.slant, entry.share(s, c, !s.cols));
                else
                    sum.add(entry.by * entry.w, widen(*element<T>(s.gout, entry.i, h, c - s.feat)));
            }
        }
        if (ATT)
            *element<A>(to, owner, h, c) = sum.total();
        else
            *element<T>(to, owner, h, c < s.feat ? c : c - s.feat) = narrow<T>(sum.total());
    }
}

/* weights, gweight and gbias. Each belongs to one entry and head. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    edges_reference(const __grid_constant__ plain_args<T> s)
{
    const int64_t count = s.a.rows ? s.a.nnz * s.heads : 0;
    for (int64_t t = this_thread(); t < count; t += all_threads()) {
        const int64_t p = t / s.heads, h = t % s.heads;
        plain_entry<T> entry;
        entry.find(s, row_of(s.a, p), p, h);
        if (!entry.there) continue;
        entry.back(s);
        if (s.weights.data) *element<T>(s.weights, entry.e, h, 0) = narrow<T>(entry.by * entry.w);
        if (s.gweight.data)
            *element<T>(s.gweight, entry.e, h, 0) = narrow<T>(entry.drop * entry.w * entry.dot);
        if (s.gbias.data) *element<T>(s.gbias, entry.e, h, 0) = narrow<T>(entry.slant * entry.gain);
    }
}

template <class T> static void launch_plain(cudaStream_t stream, const fmm_call *call)
{
    typedef typename sum_of<T>::type A;
    const fmm_attention *t = fmm_attention_of(call);
    const int64_t rows = call->a->rows, nnz = call->a->nnz, heads = t->q.heads;
    const bool cols = t->pass == FMM_ATTENTION_COLS, rows_pass = t->pass == FMM_ATTENTION_ROWS;
    plain_args<T> s = {};
    static_cast<fmm_attention &>(s) = *t;
    s.a = view_csr(call->a), s.edges = view_edges(call->a, NULL);
    s.keep_limit = fmm_philox_limit(t->dropout);
    s.drops = t->dropout > 0, s.keep_scale = t->dropout < 1 ? A(1 / (1 - t->dropout)) : A(0);
    s.scale = A(t->scale), s.slope = A(t->slope);
    s.heads = heads, s.feat = t->q.feat, s.feat_v = t->v.feat, s.parts = t->gatt.rows;
    s.cols = cols;
    /* The pass WEIGHTS writes nothing but u, whatever else the caller has. */
    if (t->pass == FMM_ATTENTION_WEIGHTS)
        s.gout.data = s.delta.data = s.gbias.data = s.gweight.data = NULL;
    /* A kernel is launched only where it has elements to own: a grid of no blocks is an error. */
    auto grid = [](int64_t count) {
        return (unsigned)smaller(blocks_for(count), REFERENCE_BLOCKS);
    };
    if (t->pass == FMM_ATTENTION_FORWARD && rows)
        forward_reference<T><<<grid(rows * heads * (s.feat_v + 1)), BLOCK, 0, stream>>>(s);
    /* ROWS writes what belongs to rows and entries, COLS what belongs to columns. */
    if (((rows_pass && s.gq.data) || (cols && (s.gk.data || s.gv.data))) && rows &&
        s.feat + s.feat_v)
        sums_reference<T, false><<<grid(rows * heads * (s.feat + s.feat_v)), BLOCK, 0, stream>>>(s);
    if (!cols && t->pass != FMM_ATTENTION_FORWARD && nnz &&
        (s.weights.data || s.gweight.data || s.gbias.data))
        edges_reference<T><<<grid(nnz * heads), BLOCK, 0, stream>>>(s);
    if (rows_pass && s.gatt.data && s.parts * s.feat)
        sums_reference<T, true><<<grid(s.parts * heads * s.feat), BLOCK, 0, stream>>>(s);
}

/* The element type of q decides on the kernels; all operands but the sums have it. */
extern "C" fmm_status fmm_attention_reference_cuda(const fmm_exec *exec, const fmm_call *call)
{
    return on_device_as("attention", exec, fmm_attention_of(call)->q.dtype, [&](auto element_of) {
        launch_plain<decltype(element_of)>(stream_of(exec), call);
    });
}
