/* Graph attention on the CPU: the specification.
 *
 * Every number is computed in double as the formulas of attention.c read, with blocked sums, and
 * with no care for speed: what needs an entry's logit computes it again.
 *
 *     forward, row i     1. top = the largest logit       2. all = sum of exp(logit - top)
 *                        3. out[f] = sum of weights times v[j, f], a walk for each channel f
 *     gradients, row i   for each channel, a walk over the row's entries
 *
 * A walk over a row skips entries out of range, so any index content is safe; rows that fail their
 * check in the kernels come here, too. What is written to an entry, row or part has one owner. */
#include "../cpu/reference.h"
#include "cpu.h"
#include "../core/philox.h"

#include <stdlib.h>

/* One pass over the entries p = (i, j) of row i of the matrix given, which is the transpose in the
 * column pass: there i is a row of k and v, j one of q. */
typedef struct walk {
    const fmm_csr *a;
    const fmm_attention *call;
    int64_t i, h;
    int64_t row, col, j, edge; /* of the entry: rows of q and of k, column, position of its edge */
    double turn,
        above; /* ADDITIVE, of logit's last call: leaky', and 1 where its argument is > 0 */
} walk;

/* Goes to entry p; false where its column or edge is outside. In the column pass the matrix is the
 * transpose, so q and k change places. */
static bool inside(walk *w, int64_t p)
{
    const bool cols = w->call->pass == FMM_ATTENTION_COLS;
    w->j = column_of(w->a, p);
    w->edge = edge_of(w->a, p);
    w->row = cols ? w->j : w->i;
    w->col = cols ? w->i : w->j;
    return w->j >= 0 && w->edge >= 0;
}

/* max(t, 0) + slope min(t, 0) */
static double leaky(double t, double slope) { return t > 0 ? t : slope * t; }

/* The logit of the entry; turn becomes its derivative by bias. */
static double logit(walk *w)
{
    const fmm_attention *c = w->call;
    const double bias = c->bias.data ? get(&c->bias, w->edge, w->h, 0) : 0;
    const int64_t row = w->row, col = w->col;
    w->turn = 1;
    if (c->score == FMM_ADDITIVE) {
        const double t = get(&c->q, row, w->h, 0) + get(&c->k, col, w->h, 0) + bias;
        w->turn = t > 0 ? 1 : c->slope;
        w->above = t > 0;
        return leaky(t, c->slope);
    }
    /* DOT multiplies channels, GATV2 adds them before leaky and weighs each by att. */
    blocked_sum sum = {0};
    for (int64_t f = 0; f < c->q.feat; f++) {
        const double q = get(&c->q, row, w->h, f), k = get(&c->k, col, w->h, f);
        if (c->score == FMM_DOT)
            add(&sum, q * k);
        else
            add(&sum, get(&c->att, 0, w->h, f) * leaky(q + k, c->slope));
    }
    return total(&sum) * (c->score == FMM_DOT ? c->scale : 1) + bias;
}

/* 0 where dropout drops the entry, else what makes up for those that it drops. */
static double keep(const walk *w)
{
    const double dropout = w->call->dropout;
    if (!(dropout > 0)) return 1;
    const uint64_t seed = (uint64_t)*w->call->seed, limit = fmm_philox_limit(dropout);
    const int64_t key = w->call->keys ? w->call->keys[w->edge] : w->edge;
    return fmm_philox_keeps(seed, key, w->h, limit) ? 1 / (1 - dropout) : 0;
}

/* The caller's own factor of the entry's weight. */
static double weight(const walk *w)
{
    const fmm_dense *d = &w->call->weight;
    return d->data ? get(d, w->edge, d->heads == 1 ? 0 : w->h, 0) : 1;
}

/* An entry in the passes that know lse: its weight before dropout, dropout's keep, all that
 * multiplies the weight, < gout, v >, and dL / d logit. */
typedef struct entry {
    double w, keep, factor, t, glogit;
} entry;

/* A row without finite logits has lse = -inf and weights of 0: 0 is taken off instead, since -inf
 * less -inf is NaN. */
static entry entry_of(walk *w)
{
    const fmm_attention *c = w->call;
    const int64_t row = w->row, col = w->col;
    const double lse = get(&c->lse, row, w->h, 0);
    const double rest = c->lse_rest.data ? get(&c->lse_rest, row, w->h, 0) : 0;
    entry e = {.w = exp(logit(w) - (isinf(lse) && lse < 0 ? 0 : lse) - rest), .keep = keep(w)};
    e.factor = e.keep * weight(w);
    if (c->pass == FMM_ATTENTION_WEIGHTS) return e;
    /* dL / d weight, as out is the sum of weights times rows of v. */
    blocked_sum sum = {0};
    for (int64_t f = 0; f < c->v.feat; f++)
        add(&sum, get(&c->gout, row, w->h, f) * get(&c->v, col, w->h, f));
    e.t = total(&sum);
    e.glogit = e.w * (e.factor * e.t - get(&c->delta, row, w->h, 0)) * w->turn;
    return e;
}

/* Row i of out, lse and, where they are wanted, what lse's rounding took off, pos and pos_w. */
static void forward(walk *w)
{
    const fmm_attention *c = w->call;
    const int64_t begin = row_begin(w->a, w->i), end = row_end(w->a, w->i);
    /* The largest logit is taken off before exp, so that none of them overflows. */
    double top = -INFINITY;
    for (int64_t p = begin; p < end; p++)
        if (inside(w, p)) {
            const double l = logit(w);
            if (l > top) top = l;
        }
    /* Of a row whose logits are all -inf the weights are 0, not NaN. */
    const double zero = isinf(top) && top < 0 ? 0 : top;
    blocked_sum sum = {0};
    for (int64_t p = begin; p < end; p++)
        if (inside(w, p)) add(&sum, exp(logit(w) - zero));
    const double all = total(&sum);
    put(&c->lse, w->i, w->h, 0, all == 0 ? -INFINITY : top + log(all));
    /* lse as it was stored, in the type of sums, and what is missing from it. */
    if (c->lse_rest.data) {
        const double lse = get(&c->lse, w->i, w->h, 0);
        put(&c->lse_rest, w->i, w->h, 0, isinf(lse) ? 0 : top - lse + log(all));
    }
    if (c->pos_w.data) {
        blocked_sum part = {0};
        for (int64_t p = begin; all != 0 && p < end; p++)
            if (inside(w, p)) {
                const double e = exp(logit(w) - zero);
                add(&part, e / all * w->above);
            }
        put(&c->pos_w, w->i, w->h, 0, total(&part));
    }
    for (int64_t f = 0; f < c->v.feat; f++) {
        blocked_sum out = {0}, pos = {0};
        for (int64_t p = begin; all != 0 && p < end; p++)
            if (inside(w, p)) {
                const double u = exp(logit(w) - zero) / all * keep(w) * weight(w);
                add(&out, u * get(&c->v, w->j, w->h, f));
                if (c->pos.data) add(&pos, u * w->above * get(&c->v, w->j, w->h, f));
            }
        put(&c->out, w->i, w->h, f, total(&out));
        if (c->pos.data) put(&c->pos, w->i, w->h, f, total(&pos));
    }
}

/* What belongs to entries, for WEIGHTS and ROWS. An entry whose column is out of range has an edge
 * all the same, and gets zeros: nothing that memory held before may show. */
static void entries(walk *w)
{
    const fmm_attention *c = w->call;
    for (int64_t p = row_begin(w->a, w->i); p < row_end(w->a, w->i); p++) {
        const entry e = inside(w, p) ? entry_of(w) : (entry){0};
        const int64_t edge = w->edge;
        if (edge < 0) continue;
        if (c->weights.data) put(&c->weights, edge, w->h, 0, e.factor * e.w);
        if (c->gbias.data) put(&c->gbias, edge, w->h, 0, e.glogit);
        if (c->gweight.data) put(&c->gweight, edge, w->h, 0, e.keep * e.w * e.t);
    }
}

/* d logit / d own[f] where own is q in ROWS and k in COLS; over: d logit / d att[f]. */
static double derivative(const walk *w, int64_t f, double *over)
{
    const fmm_attention *c = w->call;
    const int64_t row = w->row, col = w->col;
    *over = 0;
    if (c->score == FMM_ADDITIVE) return 1; /* leaky' is in glogit */
    const double q = get(&c->q, row, w->h, f), k = get(&c->k, col, w->h, f);
    if (c->score == FMM_DOT) return c->scale * (c->pass == FMM_ATTENTION_COLS ? q : k);
    *over = leaky(q + k, c->slope);
    return get(&c->att, 0, w->h, f) * (q + k > 0 ? 1 : c->slope);
}

/* gq, or gk and gv, of row i of the matrix given; gatt adds the row's sums to a part. A channel is
 * one walk over the row, and each of its entries is computed anew. */
static void gradients(walk *w, int64_t part)
{
    const fmm_attention *c = w->call;
    const bool cols = c->pass == FMM_ATTENTION_COLS;
    const fmm_dense *gown = cols ? &c->gk : &c->gq;
    const int64_t begin = row_begin(w->a, w->i), end = row_end(w->a, w->i);
    for (int64_t f = 0; f < c->q.feat && (gown->data || c->gatt.data); f++) {
        blocked_sum sum = {0}, gatt = {0};
        double over;
        for (int64_t p = begin; p < end; p++)
            if (inside(w, p)) {
                const double g = entry_of(w).glogit;
                add(&sum, g * derivative(w, f, &over));
                add(&gatt, g * over);
            }
        if (gown->data) put(gown, w->i, w->h, f, total(&sum));
        if (c->gatt.data && !cols)
            put(&c->gatt, part, w->h, f, get(&c->gatt, part, w->h, f) + total(&gatt));
    }
    /* v gets the sum of the gradients of out under the weights that it was multiplied by. */
    for (int64_t f = 0; f < c->v.feat && c->gv.data && cols; f++) {
        blocked_sum sum = {0};
        for (int64_t p = begin; p < end; p++)
            if (inside(w, p)) {
                const entry e = entry_of(w);
                add(&sum, e.factor * e.w * get(&c->gout, w->j, w->h, f));
            }
        put(&c->gv, w->i, w->h, f, total(&sum));
    }
}

/* Rows [first, last) in the pass that is called; part: whose sums of gatt they belong to. */
static void reference_rows(const fmm_call *call, int64_t first, int64_t last, int64_t part)
{
    const fmm_attention *c = fmm_attention_of(call);
    /* The passes share no work: each computes what it writes from the operands. */
    const bool rows = c->pass == FMM_ATTENTION_ROWS, weights = c->pass == FMM_ATTENTION_WEIGHTS;
    for (int64_t i = first; i < last; i++)
        for (int64_t h = 0; h < c->q.heads; h++) {
            walk w = {.a = call->a, .call = c, .i = i, .h = h};
            if (c->pass == FMM_ATTENTION_FORWARD) forward(&w);
            if (rows || weights) entries(&w);
            if (rows || c->pass == FMM_ATTENTION_COLS) gradients(&w, part);
        }
}

/* The first row of a part. Each part of gatt belongs to as many rows as the others, but for the
 * last one, which has the rest. */
static int64_t part_row(const fmm_call *call, int64_t part)
{
    const int64_t parts = fmm_attention_of(call)->gatt.rows, each = call->a->rows / parts;
    return part == parts ? call->a->rows : part * each;
}

/* Parts are added to, by whoever owns them, so they start at 0. */
void fmm_attention_clear_gatt(const fmm_attention *c)
{
    const fmm_dense *d = &c->gatt;
    for (int64_t r = 0; d->data && r < d->rows; r++)
        for (int64_t h = 0; h < d->heads; h++)
            for (int64_t f = 0; f < d->feat; f++) put(d, r, h, f, 0);
}

/* Rows [first, last) that a kernel could not take. */
void fmm_attention_plain_rows(const fmm_call *call, int64_t first, int64_t last)
{
    /* The part of the chunk that a task gives to its first row, as far as ptr can be believed. */
    const int64_t parts = fmm_attention_of(call)->gatt.rows;
    const int64_t each = parts ? (call->a->rows + call->a->nnz + parts - 1) / parts : 1;
    const int64_t part = (row_begin(call->a, first) + first) / (each ? each : 1);
    reference_rows(call, first, last, part < parts ? part : parts - 1);
}

/* Parts [first, last) of gatt. */
static void reference_parts(int64_t first, int64_t last, void *ctx)
{
    for (int64_t part = first; part < last; part++)
        reference_rows(ctx, part_row(ctx, part), part_row(ctx, part + 1), part);
}

/* An owner has whole parts where gatt is wanted, else rows. */
fmm_status fmm_attention_reference(const fmm_exec *exec, const fmm_call *call)
{
    fmm_call copy = *call;
    const fmm_dense *gatt = &fmm_attention_of(call)->gatt;
    if (!gatt->data) return fmm_rows_reference(exec, call, fmm_attention_plain_rows);
    fmm_attention_clear_gatt(fmm_attention_of(call));
    fmm_parallel(exec, gatt->rows, reference_parts, &copy);
    return FMM_OK;
}
