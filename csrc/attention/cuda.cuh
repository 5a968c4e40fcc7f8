/* Attention `segments`: what its kernels share (fusedmm_attention.h has the formulas).
 *
 * Three walks do the work of all passes: FORWARD, ROWS (WEIGHTS is ROWS without gout) and COLS.
 * Each row of the matrix it is given has an own operand on the side of the score (q, in COLS k) and
 * on that of the values (gout, in COLS v); each entry gathers the far ones (k and v, in COLS q and
 * gout). Scores are symmetric in own and far, hence one kernel text (cuda_walk.cuh).
 *
 * Logits stay as they are until an exponential takes them: times log2 e, equal ones would not stay
 * equal beside a bias of -1e9, and the lowest number would be -infinity. */
#ifndef FMM_CUDA_ATTENTION_CUH
#define FMM_CUDA_ATTENTION_CUH

#include "../core/philox.h"
#include "../cuda/segments.cuh"

enum walk { FORWARD, ROWS, COLS };
/* Of a kernel: nothing of edges; far_s and far_v are one operand, and nothing of edges; all. */
enum kind { PLAIN, SAME_FAR, WITH_EDGES };
/* Threads of a block of FORWARD and of the join: the fewer, the sooner a multiprocessor takes more
 * work at a matrix's end. */
enum { CREW = 128, CREWS = 8 /* of the join in a multiprocessor */ };
static constexpr __host__ __device__ int threads_of(int walk)
{
    return walk == FORWARD ? int(CREW) : int(BLOCK);
}
enum { QUAD = 4 /* columns that one thread of the join adds up; slots are made of them */ };

static constexpr double LOG2_E = 1.4426950408889634;
/* Rounding takes at most 2^-19 from an lse up to this size, no more than from such logits. */
enum { LARGE_LSE = 64 };

template <class T> struct own_side {
    T *data;
    int64_t row, head;
    __device__ __forceinline__ T *at(int64_t r, int64_t h, int64_t c) const
    {
        return data + r * row + h * head + c;
    }
};
template <class T> struct far_side {
    const char *data;
    int64_t head; /* strides in bytes */
    uint32_t row;
};

template <class T> struct attend_args {
    typedef typename sum_of<T>::type A;
    csr_view a;
    plan_view plan;
    edge_view edges; /* eid alone */
    own_side<const T> own_s, own_v, att, bias, weight;
    far_side<T> far_s, far_v;
    own_side<const A> lse, lse_rest, delta; /* ROWS; of COLS lse_rest alone, where lse is large */
    const A *stats;                         /* COLS: stats_of packs them */
    own_side<T> to_s, to_v;                 /* gq; gk and gv; out */
    own_side<A> to_lse, to_rest, to_att;    /* FORWARD; ROWS of GATV2 */
    own_side<A> to_pos, to_pos_w;           /* FORWARD of ADDITIVE that keeps them */
    own_side<T> to_bias, to_weight, to_use; /* gbias, gweight, weights */
    A *partial; /* [segments][heads][width]: width_s sums for to_s, then those for to_v */
    const int64_t *seed;
    uint64_t keep_limit;
    int64_t width, width_s;
    uint64_t per_row, per_head, per_quad; /* reciprocals for the join */
    A scale, slope, keep_scale;           /* keep_scale: 1 / (1 - dropout) */
    int32_t heads, feat, feat_v;
    int32_t lane_bits, group_bits; /* lanes of one head, of one group of heads: powers of two */
    int32_t shift;                 /* bundles of at most 2^shift rows */
    int64_t hub_width;             /* QUADs of a hub's slot that threads of the join divide */
    bool drops;
    bool early; /* COLS: the kernel before is this call's, or its caller's */
};

/* COLS gathers what is one number of a row and head from one place: pairs of lse (of a row that has
 * no weights +infinity) and delta, then in ADDITIVE pairs of q and lse_rest. */
static constexpr __host__ __device__ int planes_of(int score)
{
    return score == FMM_ADDITIVE ? 4 : 2;
}

static __device__ __forceinline__ float exp_of(float v)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * float(LOG2_E)));
    return power;
}
static __device__ __forceinline__ double exp_of(double v) { return exp(v); }
static __device__ __forceinline__ float log_of(float v) { return logf(v); }
static __device__ __forceinline__ double log_of(double v) { return log(v); }
/* Never one operation with what follows: kernels that differ in what they keep agree to the bit. */
static __device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
static __device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
static __device__ __forceinline__ float most(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double most(double a, double b) { return fmax(a, b); }

/* Unpacked numbers that stay so: what then follows under a condition is predicated, where the
 * compiler would unpack behind a branch. */
template <class T, int N> static __device__ __forceinline__ void settle(typename sum_of<T>::type *v)
{
    if constexpr (sizeof(T) == 2)
#pragma unroll
        for (int i = 0; i < N; i++) asm volatile("" : "+f"(v[i]));
}

/* No weight of a row without a logit above -infinity is ever more than 0. */
template <class A> static __device__ __forceinline__ A lse_of_weights(A lse)
{
    return lse == -A(INFINITY) ? A(INFINITY) : lse;
}
/* out's factor of a row with these statistics, and what is kept of them. */
template <class A> static __device__ __forceinline__ A share_of(A sum)
{
    return sum == A(0) ? A(0) : A(1) / sum;
}
/* Not 0 times what infinities made. */
template <class A> static __device__ __forceinline__ A shared_out(A v, A share)
{
    return share == A(0) ? A(0) : v * share;
}
template <class T, class A>
static __device__ __forceinline__ void write_lse(const attend_args<T> &s, int64_t row, int64_t head,
                                                 A high, A sum)
{
    const A logarithm = log_of(sum), lse = sum == A(0) ? -A(INFINITY) : high + logarithm;
    *s.to_lse.at(row, head, 0) = lse;
    if (s.to_rest.data) *s.to_rest.at(row, head, 0) = isinf(lse) ? A(0) : high - lse + logarithm;
}
/* What sums relative to `high` are multiplied by to be relative to the finite part of `higher`. */
template <class A> static __device__ __forceinline__ A bounded(A high)
{
    return high == -A(INFINITY) ? A(0) : high;
}

/* Slots of partial sums, in sums a head: those of to_s, then of to_v; in FORWARD those of to_v, of
 * to_pos where it is kept, then (high, sum, to_pos_w's sum). */
static inline int64_t quads(int64_t feat) { return ceil_div(feat, QUAD) * QUAD; }
static inline int64_t slot_width_s(const fmm_attention *t)
{
    const bool some = t->pass == FMM_ATTENTION_ROWS || t->pass == FMM_ATTENTION_COLS;
    return some ? quads(t->q.feat) : 0;
}
static inline int64_t slot_width(const fmm_attention *t)
{
    if (t->pass == FMM_ATTENTION_FORWARD)
        return quads(t->v.feat > 0 ? t->v.feat : 1) * (t->pos_w.data ? 2 : 1) + QUAD;
    return slot_width_s(t) + (t->pass == FMM_ATTENTION_COLS ? quads(t->v.feat) : 0);
}
static inline int64_t stats_bytes(const fmm_call *call)
{
    const fmm_attention *t = call->attention;
    if (t->pass != FMM_ATTENTION_COLS || t->packed) return 0;
    return call->a->cols * t->q.heads * planes_of(t->score) * (t->q.dtype == FMM_F64 ? 8 : 4);
}

/* Whether 16-byte loads fit every operand; how many columns of a head the kernels then reach. */
static inline bool attention_packs(const fmm_attention *t)
{
    const size_t bytes = t->q.dtype == FMM_F64 ? 8 : t->q.dtype == FMM_F32 ? 4 : 2;
    const fmm_dense *const scores[] = {&t->q, &t->k, &t->gq, &t->gk, &t->att};
    const fmm_dense *const values[] = {&t->v, &t->out, &t->gout, &t->gv};
    bool packs = true;
    for (const fmm_dense *d : scores)
        if (t->score != FMM_ADDITIVE && d->data)
            packs = packs && lies_in_packs(d, bytes, 16 / (int64_t)bytes);
    for (const fmm_dense *d : values)
        if (d->data) packs = packs && lies_in_packs(d, bytes, 16 / (int64_t)bytes);
    const size_t sum_bytes = bytes == 8 ? 8 : 4;
    if (t->pos.data) packs = packs && lies_in_packs(&t->pos, sum_bytes, 16 / (int64_t)sum_bytes);
    return packs;
}
enum { PER_SINGLE = 8 };
static constexpr int per_packs(int64_t pack) { return pack == 8 ? 2 : 4; }
static inline int64_t attention_widest(const fmm_attention *t)
{
    const int64_t pack = t->q.dtype == FMM_F64 ? 2 : t->q.dtype == FMM_F32 ? 4 : 8;
    return WARP * (attention_packs(t) ? per_packs(pack) * pack : PER_SINGLE);
}

#endif
