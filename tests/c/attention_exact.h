/* Graph attention by its definition in long double: what test_attention.c holds the kernels
 * against.
 *
 * The numbers of an entry are computed once and kept, since a row's results read them for every
 * channel and every algorithm, and their exponentials are what such a test spends its time on. */
#ifndef FMM_ATTENTION_EXACT_H
#define FMM_ATTENTION_EXACT_H

#include "test.h"

typedef struct setting {
    structure kind;
    fmm_attention_score score;
    fmm_dtype dtype;
    int64_t rows, cols, heads, feat, feat_v, gap;
    bool eid, edges, rest; /* rest: with lse_rest */
    double dropout;
    side where;
} setting;

/* The numbers of entry (i, j) of edge e and one head. */
typedef struct numbers {
    long double logit, w, keep, by, dot, dots, slant, slants, gain;
} numbers;

/* What the checks of one setting share. */
typedef struct subject {
    const setting *set;
    fmm_csr a, t; /* and its transpose */
    fmm_attention call;
    const int64_t *seed;
    const char *name;
    numbers *exact; /* [nnz, heads], by edge; every algorithm and channel is held against them */
} subject;

/* keep / (1 - dropout) by Philox4x32-10, from its definition. */
static inline long double kept(const subject *s, int64_t e, int64_t h)
{
    if (!(s->set->dropout > 0)) return 1;
    uint32_t c[4] = {(uint32_t)e, (uint32_t)((uint64_t)e >> 32), (uint32_t)(h / 4), 0};
    uint32_t k[2] = {(uint32_t)*s->seed, (uint32_t)((uint64_t)*s->seed >> 32)};
    for (int round = 0; round < 10; round++, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
        const uint64_t p0 = (uint64_t)c[0] * 0xD2511F53u, p1 = (uint64_t)c[2] * 0xCD9E8D57u;
        const uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1,
                                  (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0};
        memcpy(c, next, sizeof c);
    }
    return c[h % 4] >= s->set->dropout * 0x1p32 ? 1 / (1 - (long double)s->set->dropout) : 0;
}

static inline long double leaky(long double t) { return t > 0 ? t : 0.2L * t; }

static inline long double logit(const subject *s, int64_t i, int64_t j, int64_t e, int64_t h,
                                long double *gain)
{
    const fmm_attention *c = &s->call;
    const long double bias = c->bias.data ? get(&c->bias, e, h, 0) : 0;
    long double sum = 0;
    *gain = 1;
    if (c->score == FMM_ADDITIVE) {
        sum = (long double)get(&c->q, i, h, 0) + get(&c->k, j, h, 0) + bias;
        *gain = sum > 0 ? 1 : 0.2L;
        return leaky(sum);
    }
    for (int64_t f = 0; f < c->q.feat; f++) {
        const long double q = get(&c->q, i, h, f), k = get(&c->k, j, h, f);
        sum += c->score == FMM_DOT ? c->scale * q * k : get(&c->att, 0, h, f) * leaky(q + k);
    }
    return sum + bias;
}

static inline numbers computed(const subject *s, int64_t i, int64_t j, int64_t e, int64_t h)
{
    const fmm_attention *c = &s->call;
    numbers n = {.keep = kept(s, e, h)};
    const double rest = s->set->rest ? get(&c->lse_rest, i, h, 0) : 0;
    n.w = expl(logit(s, i, j, e, h, &n.gain) - (long double)get(&c->lse, i, h, 0) - rest);
    n.by = n.keep * (c->weight.data ? get(&c->weight, e, c->weight.heads == 1 ? 0 : h, 0) : 1);
    for (int64_t f = 0; f < c->v.feat; f++) {
        const long double term = (long double)get(&c->gout, i, h, f) * get(&c->v, j, h, f);
        n.dot += term;
        n.dots += fabsl(term);
    }
    const long double delta = get(&c->delta, i, h, 0);
    n.slant = n.w * (n.by * n.dot - delta) * n.gain;
    n.slants = n.w * (fabsl(n.by) * n.dots + fabsl(delta));
    return n;
}

static inline numbers *of(const subject *s, int64_t e, int64_t h)
{
    return &s->exact[e * s->call.q.heads + h];
}

static inline bool near(const subject *s, double computed, long double exact, long double magnitude,
                        int64_t entries)
{
    const long double terms = (long double)(s->call.q.feat + s->call.v.feat + 8);
    const long double rel = 8 * unit_sum[s->set->dtype] * (terms + sqrtl((long double)entries));
    return isfinite(computed) &&
           fabsl(computed - exact) <= rel * magnitude +
                                          unit_out[s->set->dtype] * 1.01L * fabsl(exact) +
                                          (s->set->dtype == FMM_F16 ? 0x1p-24L : 0x1p-120L);
}

/* d logit / d of what its row or column gave, channel f. */
static inline long double toward(const subject *s, int64_t i, int64_t j, int64_t h, int64_t f,
                                 bool of_q)
{
    const fmm_attention *c = &s->call;
    if (c->score == FMM_ADDITIVE) return 1; /* the gain is in slant */
    const long double q = get(&c->q, i, h, f), k = get(&c->k, j, h, f);
    if (c->score == FMM_DOT) return c->scale * (of_q ? k : q);
    return get(&c->att, 0, h, f) * (q + k > 0 ? 1 : 0.2L);
}

/* The numbers of a row, from the lse and the delta that are known by then. */
static inline void row_of(const subject *s, int64_t i, int64_t h)
{
    for (int64_t p = s->a.ptr[i]; p < s->a.ptr[i + 1]; p++) {
        const int64_t e = edge(&s->a, p);
        *of(s, e, h) = computed(s, i, s->a.idx[p], e, h);
    }
}

#endif
