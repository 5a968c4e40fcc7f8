/* Graph attention on the CPU: the specification.
 *
 * The specification computes every number in double as the formulas of attention.c read, with
 * blocked sums, and skips entries out of range, so any index content is safe; it also computes the
 * chunks whose indices are not sane. What it writes to an entry, row or part has one owner. */
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
} walk;

/* Goes to entry p; false where it is outside. */
static bool inside(walk *w, int64_t p)
{
    const bool cols = w->call->pass == FMM_ATTENTION_COLS;
    w->j = column_of(w->a, p);
    w->edge = edge_of(w->a, p);
    w->row = cols ? w->j : w->i;
    w->col = cols ? w->i : w->j;
    return w->j >= 0 && w->edge >= 0;
}

static double leaky(double t, double slope) { return t > 0 ? t : slope * t; }

/* The logit of the entry; turn is its derivative by bias (ADDITIVE: leaky'). */
static double logit(const walk *w, double *turn)
{
    const fmm_attention *c = w->call;
    const double bias = c->bias.data ? get(&c->bias, w->edge, w->h, 0) : 0;
    const int64_t row = w->row, col = w->col;
    *turn = 1;
    if (c->score == FMM_ADDITIVE) {
        const double t = get(&c->q, row, w->h, 0) + get(&c->k, col, w->h, 0) + bias;
        *turn = t > 0 ? 1 : c->slope;
        return leaky(t, c->slope);
    }
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

/* 1 where leaky's argument is above 0. */
static double above(const walk *w)
{
    walk identity = *w;
    fmm_attention call = *w->call;
    double turn;
    call.slope = 1;
    identity.call = &call;
    return logit(&identity, &turn) > 0;
}

static double keep(const walk *w)
{
    const double dropout = w->call->dropout;
    if (!(dropout > 0)) return 1;
    const uint64_t seed = (uint64_t)*w->call->seed, limit = fmm_philox_limit(dropout);
    return fmm_philox_keeps(seed, w->edge, w->h, limit) ? 1 / (1 - dropout) : 0;
}

static double weight(const walk *w)
{
    const fmm_dense *d = &w->call->weight;
    return d->data ? get(d, w->edge, d->heads == 1 ? 0 : w->h, 0) : 1;
}

/* An entry in the passes that know lse. */
typedef struct entry {
    double w, keep, factor, t, glogit;
} entry;

static entry entry_of(const walk *w)
{
    const fmm_attention *c = w->call;
    const int64_t row = w->row, col = w->col;
    double turn;
    const double lse = get(&c->lse, row, w->h, 0);
    const double rest = c->lse_rest.data ? get(&c->lse_rest, row, w->h, 0) : 0;
    entry e = {.w = exp(logit(w, &turn) - (isinf(lse) && lse < 0 ? 0 : lse) - rest),
               .keep = keep(w)};
    e.factor = e.keep * weight(w);
    if (c->pass == FMM_ATTENTION_WEIGHTS) return e;
    blocked_sum sum = {0};
    for (int64_t f = 0; f < c->v.feat; f++)
        add(&sum, get(&c->gout, row, w->h, f) * get(&c->v, col, w->h, f));
    e.t = total(&sum);
    e.glogit = e.w * (e.factor * e.t - get(&c->delta, row, w->h, 0)) * turn;
    return e;
}

static void forward(walk *w)
{
    const fmm_attention *c = w->call;
    const int64_t begin = row_begin(w->a, w->i), end = row_end(w->a, w->i);
    double top = -INFINITY, turn;
    for (int64_t p = begin; p < end; p++)
        if (inside(w, p)) {
            const double l = logit(w, &turn);
            if (l > top) top = l;
        }
    const double zero = isinf(top) && top < 0 ? 0 : top;
    blocked_sum sum = {0};
    for (int64_t p = begin; p < end; p++)
        if (inside(w, p)) add(&sum, exp(logit(w, &turn) - zero));
    const double all = total(&sum);
    put(&c->lse, w->i, w->h, 0, all == 0 ? -INFINITY : top + log(all));
    if (c->lse_rest.data) {
        const double lse = get(&c->lse, w->i, w->h, 0);
        put(&c->lse_rest, w->i, w->h, 0, isinf(lse) ? 0 : top - lse + log(all));
    }
    if (c->pos_w.data) {
        blocked_sum part = {0};
        for (int64_t p = begin; all != 0 && p < end; p++)
            if (inside(w, p)) add(&part, exp(logit(w, &turn) - zero) / all * above(w));
        put(&c->pos_w, w->i, w->h, 0, total(&part));
    }
    for (int64_t f = 0; f < c->v.feat; f++) {
        blocked_sum out = {0}, pos = {0};
        for (int64_t p = begin; all != 0 && p < end; p++)
            if (inside(w, p)) {
                const double u = exp(logit(w, &turn) - zero) / all * keep(w) * weight(w);
                add(&out, u * get(&c->v, w->j, w->h, f));
                if (c->pos.data) add(&pos, u * above(w) * get(&c->v, w->j, w->h, f));
            }
        put(&c->out, w->i, w->h, f, total(&out));
        if (c->pos.data) put(&c->pos, w->i, w->h, f, total(&pos));
    }
}

/* What belongs to entries, for WEIGHTS and ROWS. */
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

/* gq, or gk and gv, of row i; gatt adds the row's sums to a part. */
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

static void reference_rows(const fmm_call *call, int64_t first, int64_t last, int64_t part)
{
    const fmm_attention *c = call->attention;
    const bool rows = c->pass == FMM_ATTENTION_ROWS, weights = c->pass == FMM_ATTENTION_WEIGHTS;
    for (int64_t i = first; i < last; i++)
        for (int64_t h = 0; h < c->q.heads; h++) {
            walk w = {.a = call->a, .call = c, .i = i, .h = h};
            if (c->pass == FMM_ATTENTION_FORWARD) forward(&w);
            if (rows || weights) entries(&w);
            if (rows || c->pass == FMM_ATTENTION_COLS) gradients(&w, part);
        }
}

/* Each part of gatt belongs to as many rows as the others. */
static int64_t part_row(const fmm_call *call, int64_t part)
{
    const int64_t parts = call->attention->gatt.rows, each = call->a->rows / parts;
    return part == parts ? call->a->rows : part * each;
}

void fmm_attention_clear_gatt(const fmm_attention *c)
{
    const fmm_dense *d = &c->gatt;
    for (int64_t r = 0; d->data && r < d->rows; r++)
        for (int64_t h = 0; h < d->heads; h++)
            for (int64_t f = 0; f < d->feat; f++) put(d, r, h, f, 0);
}

void fmm_reference_attention(const fmm_call *call, int64_t first, int64_t last)
{
    /* The part of the chunk that a task gives to its first row, as far as ptr can be believed. */
    const int64_t parts = call->attention->gatt.rows;
    const int64_t each = parts ? (call->a->rows + call->a->nnz + parts - 1) / parts : 1;
    const int64_t part = (row_begin(call->a, first) + first) / (each ? each : 1);
    reference_rows(call, first, last, part < parts ? part : parts - 1);
}

static void reference_parts(int64_t first, int64_t last, void *ctx)
{
    for (int64_t part = first; part < last; part++)
        reference_rows(ctx, part_row(ctx, part), part_row(ctx, part + 1), part);
}

static void reference_range(int64_t first, int64_t last, void *ctx)
{
    reference_rows(ctx, first, last, 0);
}

fmm_status fmm_attention_reference(const fmm_exec *exec, const fmm_call *call)
{
    fmm_call copy = *call;
    fmm_attention_clear_gatt(call->attention);
    if (call->attention->gatt.data)
        fmm_parallel(exec, call->attention->gatt.rows, reference_parts, &copy);
    else
        fmm_parallel(exec, call->a->rows, reference_range, &copy);
    return FMM_OK;
}
