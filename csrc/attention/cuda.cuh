/* Attention on CUDA, algorithm `segments`: the arguments and small functions of all its kernels.
 * fusedmm_attention.h has the formulas, docs/attention.md the whole picture.
 *
 * One kernel text walks over the entries of a matrix for every pass. Its three walks differ in
 * which operands belong to the row walked over (own) and which are gathered from row j = idx[p] of
 * another tensor for each entry p (far). Each side has an operand that makes scores and one that
 * holds values:
 *
 *     walk       of matrix    own_s   own_v   far_s   far_v   results
 *     FORWARD    A            q       -       k       v       out, lse (pos, pos_w)
 *     ROWS       A            q       gout    k       v       gq, gatt; gbias, gweight, weights
 *     COLS       A transposed k       v       q       gout    gk, gv
 *
 *     file                     step
 *     cuda_launch.cuh          operands' shape -> kernel's shape, launches
 *     cuda_walk.cuh            the kernel: items, rows, batches of entries
 *       cuda_fetch.cuh         1 fetch: indices, edges, dropout
 *       cuda_gather.cuh        2 gather: own and far operands
 *       cuda_score.cuh         3 score: logits
 *       cuda_accumulate.cuh    4 accumulate: a row's sums
 *       cuda_finish.cuh        5 finish: results, or slots of the workspace
 *     cuda_join.cuh            6 join: the slots of a long row, in order
 *
 * The pass WEIGHTS is ROWS without gout. Each result has one owner, so every run gives the same
 * bits. */
#pragma once

#include "attention.h"
#include "../core/philox.h"
#include "../cuda/device.h"
#include "../cuda/join.cuh"

enum walk { FORWARD, ROWS, COLS };
/* What a kernel reads: PLAIN nothing of edges; SAME_FAR nothing of edges either, and far_s and
 * far_v are one operand, which it gathers once; WITH_EDGES all that a call can have. */
enum kind { PLAIN, SAME_FAR, WITH_EDGES };
/* FORWARD and the join have blocks of CREW threads. The smaller a block is, the sooner a
 * multiprocessor takes up the next one, which counts at the end of a matrix. A multiprocessor has
 * registers for CREWS blocks of the join. */
enum { CREW = 128, CREWS = 8 };
static constexpr __host__ __device__ int threads_of(int walk)
{
    return walk == FORWARD ? int(CREW) : int(BLOCK);
}

static constexpr double LOG2_E = 1.4426950408889634;
/* An lse up to this size loses at most 2^-19 by rounding, which is no more than logits of that size
 * lose themselves. Only beyond it do the walks read lse_rest. */
enum { LARGE_LSE = 64 };

/* A tensor whose rows are gathered. Strides are in bytes, and that of a row has 32 bits, so that an
 * address is one multiply-add. */
template <class T> struct far_side {
    const char *data;
    int64_t head;
    uint32_t row;
};

/* What a kernel is called with. An operand whose data is NULL is absent. */
template <class T> struct attend_args {
    typedef typename sum_of<T>::type A;
    csr_view a;
    plan_view plan;
    edge_view edges; /* eid alone */
    dense_view<const T> own_s, own_v, att, bias, weight;
    far_side<T> far_s, far_v;
    dense_view<const A> lse, lse_rest, delta; /* for ROWS; COLS reads lse_rest where lse is large */
    const A *stats;                           /* for COLS: what stats_of packs */
    dense_view<T> to_v;                       /* out of FORWARD, gv of COLS */
    dense_view<T> to_s;                       /* gq of ROWS, gk of COLS */
    dense_view<A> to_lse, to_rest;            /* of FORWARD */
    dense_view<A> to_att;                     /* gatt: of ROWS with GATV2 */
    dense_view<A> to_pos, to_pos_w; /* of FORWARD with ADDITIVE, if the caller wants them */
    dense_view<T> to_bias, to_weight, to_use; /* gbias, gweight and weights, of ROWS */
    A *partial; /* slots: [segments][heads][width], width_s sums for to_s, then those for to_v */
    const int64_t *seed, *keys; /* keys: of dropout, or NULL */
    uint64_t keep_limit;        /* dropout keeps what draws at least this */
    int64_t width, width_s;
    join_shape join; /* of launch_join */
    A scale, slope;
    A keep_scale; /* 1 / (1 - dropout) */
    int32_t heads, feat, feat_v;
    int32_t lane_bits, group_bits; /* logarithms of the lanes of a head and of a group of heads */
    int32_t shift;                 /* a bundle has at most 2^shift rows */
    int32_t few;                   /* the matrix has few entries, in long rows: takes_eights */
    int32_t narrow;                /* groups gather at most 256 bytes of a row, if a head fits */
    bool drops;                    /* dropout is above 0 */
    bool early;                    /* COLS may start while the kernel before it still runs */
};

/* COLS gathers what is one number of a row and head from one place: lse and delta side by side, and
 * in ADDITIVE q and lse_rest behind them, so that they are one load. A row without weights has lse
 * +infinity there, which makes its weights 0. This is how many numbers a head has. */
static constexpr __host__ __device__ int planes_of(int score)
{
    return score == FMM_ADDITIVE ? 4 : 2;
}

/* Logits stay natural logarithms until this function multiplies them by log2(e). If they were
 * multiplied before, logits that are equal would not stay equal beside a bias of -1e9, and the
 * lowest finite number would become -infinity. */
static __device__ __forceinline__ float exp_of(float v)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * float(LOG2_E)));
    return power;
}
static __device__ __forceinline__ double exp_of(double v) { return exp(v); }
static __device__ __forceinline__ float log_of(float v) { return logf(v); }
static __device__ __forceinline__ double log_of(double v) { return log(v); }
/* A product that the compiler never fuses with an addition that follows. Whether it fuses one
 * depends on the rest of a kernel, and kernels with and without POS must agree to the bit. */
static __device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
static __device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
static __device__ __forceinline__ float most(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double most(double a, double b) { return fmax(a, b); }

/* Makes the compiler unpack these numbers here. What follows under a condition is then predicated;
 * otherwise the unpacking would go behind a branch as well. */
template <class T, int N> static __device__ __forceinline__ void settle(typename sum_of<T>::type *v)
{
    if constexpr (sizeof(T) == 2)
        UNROLLED(i, N) asm volatile("" : "+f"(v[i]));
}

/* The lse to subtract from logits. A row whose logits are all -infinity has lse -infinity, from
 * which its weights would be NaN; with +infinity they are 0. */
template <class A> static __device__ __forceinline__ A lse_of_weights(A lse)
{
    return lse == -A(INFINITY) ? A(INFINITY) : lse;
}
/* The factor that turns a row's sums into weighted means: 0 for a row without weights. */
template <class A> static __device__ __forceinline__ A share_of(A sum)
{
    return sum == A(0) ? A(0) : A(1) / sum;
}
/* A row without weights gives 0 even where its sum is infinite or NaN. */
template <class A> static __device__ __forceinline__ A shared_out(A v, A share)
{
    return share == A(0) ? A(0) : v * share;
}
/* lse = high + log(sum), and in lse_rest what rounding to one number takes from it: beside a `high`
 * of 1e9 the logarithm of a count is lost entirely. */
template <class T, class A>
static __device__ __forceinline__ void write_lse(const attend_args<T> &s, int64_t row, int64_t head,
                                                 A high, A sum)
{
    const A logarithm = log_of(sum), lse = sum == A(0) ? -A(INFINITY) : high + logarithm;
    *s.to_lse.at(row, head, 0) = lse;
    if (s.to_rest.data) *s.to_rest.at(row, head, 0) = isinf(lse) ? A(0) : high - lse + logarithm;
}
/* What to subtract from logits whose largest is `high`: a finite number, since -infinity less
 * -infinity would be NaN. */
template <class A> static __device__ __forceinline__ A bounded(A high)
{
    return high == -A(INFINITY) ? A(0) : high;
}

/* How many sums a head has in a slot. A slot of ROWS or COLS holds the sums of to_s, then those of
 * to_v. A slot of FORWARD holds those of to_v, those of to_pos if it is written, then a QUAD with
 * high, sum and the sum of to_pos_w. */
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
/* The workspace of what stats_of packs, if the caller has not packed it already. */
static inline int64_t stats_bytes(const fmm_call *call)
{
    const fmm_attention *t = fmm_attention_of(call);
    if (t->pass != FMM_ATTENTION_COLS || fmm_packed_attention_of(call)->packed) return 0;
    return call->a->cols * t->q.heads * planes_of(t->score) * (t->q.dtype == FMM_F64 ? 8 : 4);
}

/* Whether every operand can be read and written in packs of 16 bytes. */
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

/* How many rows FORWARD gathers of an entry's column: v's, and for dot scores k's, which mostly are
 * as long. */
static inline int gathered_rows(int score) { return score == FMM_DOT ? 2 : 1; }

/* Whether fewer columns at a time pay, of the rows that are gathered. */
static inline bool is_narrow(const fmm_call *call)
{
    const fmm_dense *far = call->x;
    const int rows = gathered_rows((int)fmm_attention_of(call)->score);
    const int64_t row = rows * far->heads * far->feat * (int64_t)fmm_dtype_bytes(far->dtype);
    return few_columns_pay(call->index, call->a->nnz, far->rows, row);
}
/* The call with its one head of 128 columns as two heads of 64, which have the same scores and
 * write the same lse: blocks of one run before those of the other. */
static inline fmm_attention in_passes(const fmm_call *call)
{
    fmm_attention t = *fmm_attention_of(call);
    const bool plain = !t.bias.data && !t.weight.data && !(t.dropout > 0);
    if (t.pass != FMM_ATTENTION_FORWARD || t.score != FMM_ADDITIVE || t.q.heads != 1 ||
        t.v.feat != 128 || !plain || !is_narrow(call))
        return t;
    for (fmm_dense *d : {&t.v, &t.out, &t.pos}) d->heads = 2, d->feat = d->head_stride = 64;
    for (fmm_dense *d : {&t.q, &t.k, &t.lse, &t.lse_rest, &t.pos_w})
        d->heads = 2, d->head_stride = 0;
    return t;
}

/* How many columns of a head a warp reaches: PER_SINGLE single elements a lane, or per_packs packs
 * of `pack` elements. Wider heads have more sums than a lane has registers. */
enum { PER_SINGLE = 8 };
static constexpr int per_packs(int64_t pack) { return pack == 8 ? 2 : 4; }
static inline int64_t attention_widest(const fmm_attention *t)
{
    const int64_t pack = t->q.dtype == FMM_F64 ? 2 : t->q.dtype == FMM_F32 ? 4 : 8;
    return WARP * (attention_packs(t) ? per_packs(pack) * pack : PER_SINGLE);
}
