/* Graph attention on the CPU: every pass, algorithm, dtype and score against long double.
 *
 * Weights of a row are off by a factor of at most 1 + rel, rel = 8 u (terms of a logit + 8 +
 * sqrt(entries)); what is made of them by as much of the sum of its terms' absolute values. The
 * backward passes are given lse, its rest and delta as rounded from the exact ones. */
#include "attention_exact.h"

/* Exact lse and delta, which every pass then reads; out is checked against what they come from. */
static void statistics(subject *s, fmm_dense *out, fmm_dense *outs)
{
    const fmm_attention *c = &s->call;
    for (int64_t i = 0; i < s->a.rows; i++)
        for (int64_t h = 0; h < c->q.heads; h++) {
            long double sum = 0, delta = 0, gain;
            const int64_t begin = s->a.ptr[i], end = s->a.ptr[i + 1];
            for (int64_t p = begin; p < end; p++)
                sum += expl(logit(s, i, s->a.idx[p], edge(&s->a, p), h, &gain));
            set(&c->lse, i, h, 0, begin == end ? -INFINITY : (double)logl(sum));
            if (s->set->rest)
                set(&c->lse_rest, i, h, 0,
                    begin == end ? 0 : (double)(logl(sum) - (long double)get(&c->lse, i, h, 0)));
            set(&c->delta, i, h, 0, 0);
            row_of(s, i, h);
            for (int64_t f = 0; f < c->v.feat; f++) {
                long double value = 0, size = 0;
                for (int64_t p = begin; p < end; p++) {
                    const numbers *n = of(s, edge(&s->a, p), h);
                    const long double term = n->w * n->by * get(&c->v, s->a.idx[p], h, f);
                    value += term;
                    size += fabsl(term);
                }
                set(out, i, h, f, (double)value);
                set(outs, i, h, f, (double)size);
                delta += value * get(&c->gout, i, h, f);
            }
            set(&c->delta, i, h, 0, (double)delta);
            row_of(s, i, h);
        }
}

static int64_t wrong_outputs(const subject *s, const fmm_dense *out, const fmm_dense *outs,
                             const fmm_dense *lse, const fmm_dense *rest)
{
    const fmm_attention *c = &s->call;
    int64_t wrong = 0;
    for (int64_t i = 0; i < s->a.rows; i++)
        for (int64_t h = 0; h < c->q.heads; h++) {
            const int64_t n = s->a.ptr[i + 1] - s->a.ptr[i];
            const double exact = get(&c->lse, i, h, 0), got = get(lse, i, h, 0);
            const double left = s->set->rest ? fabs(get(rest, i, h, 0)) : 0,
                         rounded = n ? left : left != 0;
            wrong += n ? !near(s, got, exact, 1 + fabs(exact), n) : got != -INFINITY;
            wrong += !(rounded <= 4 * unit_sum[s->set->dtype] * (1 + fabs(exact)));
            for (int64_t f = 0; f < c->v.feat; f++)
                wrong += !near(s, get(&c->out, i, h, f), get(out, i, h, f), get(outs, i, h, f), n);
        }
    return wrong;
}

/* Of what forward keeps for gq: the parts of out and of the weights' sum whose gain is 1. */
static int64_t wrong_pos(const subject *s)
{
    const fmm_attention *c = &s->call;
    int64_t wrong = 0;
    for (int64_t i = 0; i < s->a.rows; i++)
        for (int64_t h = 0; h < c->q.heads; h++)
            for (int64_t f = -1; f < c->v.feat; f++) { /* -1: pos_w */
                const int64_t begin = s->a.ptr[i], end = s->a.ptr[i + 1];
                long double exact = 0, size = 0;
                for (int64_t p = begin; p < end; p++) {
                    const numbers *n = of(s, edge(&s->a, p), h);
                    const long double by = f < 0 ? 1 : n->by * get(&c->v, s->a.idx[p], h, f);
                    const long double term = n->w * by;
                    exact += n->gain == 1 ? term : 0;
                    size += fabsl(term);
                }
                const double got = f < 0 ? get(&c->pos_w, i, h, 0) : get(&c->pos, i, h, f);
                wrong += !near(s, got, exact, size, end - begin);
            }
    return wrong;
}

static int64_t wrong_edges(const subject *s)
{
    const fmm_attention *c = &s->call;
    int64_t wrong = 0;
    for (int64_t i = 0; i < s->a.rows; i++)
        for (int64_t p = s->a.ptr[i]; p < s->a.ptr[i + 1]; p++)
            for (int64_t h = 0; h < c->q.heads; h++) {
                const int64_t e = edge(&s->a, p), m = s->a.ptr[i + 1] - s->a.ptr[i];
                const numbers n = *of(s, e, h);
                const long double u = n.w * n.by, g = n.keep * n.w * n.dot;
                wrong += !near(s, get(&c->weights, e, h, 0), u, fabsl(u), m);
                if (c->pass == FMM_ATTENTION_WEIGHTS) continue;
                wrong += !near(s, get(&c->gbias, e, h, 0), n.slant, n.slants, m);
                wrong += !near(s, get(&c->gweight, e, h, 0), g, n.keep * n.w * n.dots, m);
            }
    return wrong;
}

/* gq of the matrix's rows; gk and gv of the transpose's. */
static int64_t wrong_sides(const subject *s)
{
    const fmm_attention *c = &s->call;
    const bool cols = c->pass == FMM_ATTENTION_COLS;
    const fmm_csr *a = cols ? &s->t : &s->a;
    const fmm_dense *of_score = cols ? &c->gk : &c->gq;
    int64_t wrong = 0;
    for (int64_t own = 0; own < a->rows; own++)
        for (int64_t h = 0; h < c->q.heads; h++)
            for (int64_t f = 0; f < c->q.feat + (cols ? c->v.feat : 0); f++) {
                const bool score = f < c->q.feat;
                long double exact = 0, size = 0;
                for (int64_t p = a->ptr[own]; p < a->ptr[own + 1]; p++) {
                    const int64_t i = cols ? a->idx[p] : own, j = cols ? own : a->idx[p];
                    const numbers *n = of(s, edge(a, p), h);
                    const long double by =
                        score ? toward(s, i, j, h, f, !cols) : get(&c->gout, i, h, f - c->q.feat);
                    exact += (score ? n->slant : n->w * n->by) * by;
                    size += (score ? n->slants : fabsl(n->w * n->by)) * fabsl(by);
                }
                const double got =
                    score ? get(of_score, own, h, f) : get(&c->gv, own, h, f - c->q.feat);
                wrong += !near(s, got, exact, size, a->ptr[own + 1] - a->ptr[own]);
            }
    return wrong;
}

static int64_t wrong_att(const subject *s)
{
    const fmm_attention *c = &s->call;
    int64_t wrong = 0;
    for (int64_t h = 0; h < c->q.heads; h++)
        for (int64_t f = 0; f < c->q.feat; f++) {
            long double exact = 0, size = 0, got = 0;
            for (int64_t part = 0; part < c->gatt.rows; part++) got += get(&c->gatt, part, h, f);
            for (int64_t i = 0; i < s->a.rows; i++)
                for (int64_t p = s->a.ptr[i]; p < s->a.ptr[i + 1]; p++) {
                    const int64_t j = s->a.idx[p];
                    const numbers *n = of(s, edge(&s->a, p), h);
                    const long double over =
                        leaky((long double)get(&c->q, i, h, f) + (long double)get(&c->k, j, h, f));
                    exact += n->slant * over;
                    size += n->slants * fabsl(over);
                }
            wrong += !near(s, (double)got, exact, size, s->a.nnz);
        }
    return wrong;
}

static bool run_pass(subject *s, fmm_attention_pass pass, int algorithm)
{
    const fmm_csr *a = pass == FMM_ATTENTION_COLS ? &s->t : &s->a;
    fmm_exec exec = {.device = FMM_CPU};
    s->call.pass = pass;
    fmm_status status = fmm_attend_workspace(&exec, a, &s->call, algorithm, &exec.workspace_bytes);
    exec.workspace = malloc(exec.workspace_bytes + 1);
    if (status == FMM_OK) status = fmm_attend(&exec, a, &s->call, algorithm);
    free(exec.workspace);
    CHECK(status == FMM_OK, "%s: %s", s->name, fmm_last_error());
    return status == FMM_OK;
}

static void expect_none(const subject *s, int64_t wrong, const char *results)
{
    CHECK(wrong == 0, "%s: %" PRId64 " of %s", s->name, wrong, results);
}

static void run_all(subject *s)
{
    const setting *t = s->set;
    fmm_attention *c = &s->call;
    const fmm_dtype sums = t->dtype == FMM_F64 ? FMM_F64 : FMM_F32;
    const fmm_dense lse = c->lse, written = view(sums, t->rows, t->heads, 1, t->gap, t->where);
    const fmm_dense rest = c->lse_rest, left = view(sums, t->rows, t->heads, 1, t->gap, t->where);
    fmm_dense out = view(FMM_F64, t->rows, t->heads, t->feat_v, 0, t->where);
    fmm_dense outs = view(FMM_F64, t->rows, t->heads, t->feat_v, 0, t->where);
    const fmm_call asked = {.a = &s->a, .x = &c->v, .own = c};
    const fmm_algorithm *algorithm;
    statistics(s, &out, &outs);
    for (int k = 0; (algorithm = next_algorithm(FMM_ATTENTION, &k, &asked));) {
        char text[256];
        s->name = text;
        snprintf(text, sizeof text,
                 "%s %s: score %d structure %d [%" PRId64 ", %" PRId64 "] heads %" PRId64
                 " feat %" PRId64 " and %" PRId64 " gap %" PRId64 " eid %d edges %d dropout %g",
                 algorithm->name, dtype_of[t->dtype], (int)t->score, (int)t->kind, t->rows, t->cols,
                 t->heads, t->feat, t->feat_v, t->gap, t->eid, t->edges, t->dropout);
        fmm_dense *const results[] = {&c->out,   &c->gq,      &c->gk,      &c->gv,  &c->gatt,
                                      &c->gbias, &c->gweight, &c->weights, &c->pos, &c->pos_w};
        for (size_t r = 0; r < sizeof results / sizeof *results; r++) poison(results[r]);
        c->lse = written;
        poison(&c->lse);
        if (t->rest) c->lse_rest = left;
        if (t->rest) poison(&c->lse_rest);
        const bool ran = run_pass(s, FMM_ATTENTION_FORWARD, algorithm->number);
        c->lse = lse;
        c->lse_rest = rest;
        if (!ran) continue;
        expect_none(s, wrong_outputs(s, &out, &outs, &written, &left), "out and lse");
        if (t->score == FMM_ADDITIVE) expect_none(s, wrong_pos(s), "pos and pos_w");
        if (run_pass(s, FMM_ATTENTION_WEIGHTS, algorithm->number))
            expect_none(s, wrong_edges(s), "weights");
        if (!run_pass(s, FMM_ATTENTION_ROWS, algorithm->number)) continue;
        expect_none(s, wrong_edges(s), "gbias, gweight and weights");
        expect_none(s, wrong_sides(s), "gq");
        if (t->score == FMM_GATV2) expect_none(s, wrong_att(s), "gatt");
        if (!run_pass(s, FMM_ATTENTION_COLS, algorithm->number)) continue;
        expect_none(s, wrong_sides(s), "gk and gv");
        for (size_t r = 0; r < sizeof results / sizeof *results; r++)
            CHECK(gaps_kept(results[r]), "%s: wrote between elements of result %zu", text, r);
    }
}

/* The transpose, which shares the edges. */
static fmm_csr transposed(const fmm_csr *a, side where)
{
    int64_t *ptr = guarded((size_t)(a->cols + 1) * sizeof *ptr, where), at = 0;
    int32_t *idx = guarded((size_t)a->nnz * sizeof *idx, where);
    int32_t *eid = guarded((size_t)a->nnz * sizeof *eid, where);
    for (int64_t j = 0; j < a->cols; j++) {
        for (int64_t i = 0; i < a->rows; i++)
            for (int64_t p = a->ptr[i]; p < a->ptr[i + 1]; p++)
                if (a->idx[p] == j) idx[at] = (int32_t)i, eid[at++] = (int32_t)edge(a, p);
        ptr[j + 1] = at;
    }
    return (fmm_csr){
        .rows = a->cols, .cols = a->rows, .nnz = a->nnz, .ptr = ptr, .idx = idx, .eid = eid};
}

static void run(const setting *t)
{
    static const int64_t seed = 0x123456789abcdef;
    const fmm_dtype sums = t->dtype == FMM_F64 ? FMM_F64 : FMM_F32;
    subject s = {.set = t, .seed = &seed};
    s.a = matrix(t->kind, t->rows, t->cols, t->eid, t->where);
    s.t = transposed(&s.a, t->where);
    const int64_t h = t->heads, nnz = s.a.nnz;
#define VIEW(type, n, heads, feat) view(type, n, heads, feat, t->gap, t->where)
    s.call = (fmm_attention){.score = t->score,
                             .scale = 0.5,
                             .slope = 0.2,
                             .dropout = t->dropout,
                             .seed = &seed,
                             .q = VIEW(t->dtype, t->rows, h, t->feat),
                             .k = VIEW(t->dtype, t->cols, h, t->feat),
                             .v = VIEW(t->dtype, t->cols, h, t->feat_v),
                             .out = VIEW(t->dtype, t->rows, h, t->feat_v),
                             .lse = VIEW(sums, t->rows, h, 1),
                             .gout = VIEW(t->dtype, t->rows, h, t->feat_v),
                             .delta = VIEW(sums, t->rows, h, 1),
                             .gq = VIEW(t->dtype, t->rows, h, t->feat),
                             .gk = VIEW(t->dtype, t->cols, h, t->feat),
                             .gv = VIEW(t->dtype, t->cols, h, t->feat_v),
                             .gbias = VIEW(t->dtype, nnz, h, 1),
                             .gweight = VIEW(t->dtype, nnz, h, 1),
                             .weights = VIEW(t->dtype, nnz, h, 1)};
    fmm_attention *c = &s.call;
    if (t->rest) c->lse_rest = VIEW(sums, t->rows, h, 1);
    if (t->score == FMM_GATV2) c->att = VIEW(t->dtype, 1, h, t->feat);
    if (t->score == FMM_ADDITIVE) {
        c->pos = VIEW(sums, t->rows, h, t->feat_v);
        c->pos_w = VIEW(sums, t->rows, h, 1);
    }
    if (t->score == FMM_GATV2) c->gatt = VIEW(sums, 3, h, t->feat);
    if (t->edges && nnz) c->bias = VIEW(t->dtype, nnz, h, 1);
    if (t->edges && nnz) c->weight = VIEW(t->dtype, nnz, t->gap ? h : 1, 1);
#undef VIEW
    const fmm_dense *const given[] = {&c->q, &c->k, &c->v, &c->gout, &c->att, &c->bias, &c->weight};
    for (size_t k = 0; k < sizeof given / sizeof *given; k++)
        if (given[k]->data) fill(given[k], RANDOM);
    s.exact = malloc((size_t)(nnz * h) * sizeof *s.exact + 1);
    run_all(&s);
    free(s.exact);
    release_all();
}

int main(void)
{
    static const int64_t feats[] = {1, 2, 3, 4, 7, 8, 9, 16, 17, 33, 64, 520};
    int turn = 0;
    for (size_t f = 0; f < sizeof feats / sizeof *feats; f++)
        for (int dtype = 0; dtype < FMM_DTYPES; dtype++)
            for (int score = FMM_DOT; score <= FMM_GATV2; score++, turn++) {
                const bool wide = feats[f] > 100, hub = turn % 7 == 3 && feats[f] < 10;
                const setting t = {.kind = hub              ? LONG_ROWS
                                           : turn % 11 == 0 ? ALL_EMPTY
                                           : turn % 3       ? EMPTY_ROWS
                                                            : DENSE_ROWS,
                                   .score = (fmm_attention_score)score,
                                   .dtype = (fmm_dtype)dtype,
                                   .rows = wide ? 2 : 1 + turn % 5,
                                   .cols = turn % 13 == 12 ? 0 : 1 + turn % 9,
                                   .heads = wide ? 1 : 1 + turn % 5,
                                   .feat = score == FMM_ADDITIVE ? 1 : feats[f],
                                   .feat_v = wide ? feats[f] : feats[(f * 5 + 3) % 11],
                                   .gap = turn % 3,
                                   .eid = turn / 2 % 2,
                                   .edges = turn / 3 % 2,
                                   .rest = turn % 4 > 0,
                                   .dropout = turn / 5 % 2 ? 0.4 : 0,
                                   .where = (side)(turn / 4 % 2)};
                run(&t);
            }
    return finish();
}
