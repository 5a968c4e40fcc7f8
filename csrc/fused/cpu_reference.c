/* fused as the formula reads.
 *
 * The reference is the specification that everything else is tested against: plain loops in double,
 * entry by entry, with no care for speed. A row's channels pass in panels of PANEL blocked sums,
 * and scores are computed anew for each panel:
 *
 *     for each row i, head h, panel of channels
 *         for each entry p = (i, j)      score -> edge function -> weight -> term of each channel
 *         out[i, h, panel] = the sums
 *
 * What an operation computes stands in formulas.def; here are the order and the sums. Entries out
 * of range are skipped, so that rows which fail their check come here, too. */
#include "../cpu/exp.h"
#include "../cpu/reference.h"
#include "cpu.h"

#define ACC double
#define EDGE(name) FMM_JOIN(name, f64)
#define SUMS(name) FMM_JOIN(f64, name)
#include "cpu_edge.inc"
/* Activations take the C library's exp, so that the kernels' own is tested against another. */
#undef exp_of
#define exp_of(v) exp(v)

typedef double A;
#define FORMULA static double
#include "formulas.inc"

enum { PANEL = 128 };

/* The score of x[i] and y[j]; 1 where there is none, so that the edge function is one of a alone.
 */
static double score(const fmm_fusion *f, int64_t i, int64_t j, int64_t h)
{
    blocked_sum sum = {0};
    if (f->score == FMM_SCORE_NONE) return 1;
    for (int64_t c = 0; c < f->x->feat; c++)
        add(&sum, score_with((int)f->score, 0, get(f->x, i, h, c), get(f->y, j, h, c)));
    return total(&sum);
}

/* The message before its activation. */
static double raw(const fmm_fusion *f, int64_t i, int64_t j, int64_t h, int64_t c)
{
    const double x = f->z ? 0 : get(f->x, i, h, c), y = get(f->z ? f->z : f->y, j, h, c);
    return message_raw((int)f->message, x, y);
}

/* What entry (i, j) adds to out (or to out2, the gradient of z) in one channel, from the weight w
 * and ds = dL/ds. Forward that is w times the activated message. In gradients it is what flows back
 * through the message, w g, and what flows back through the score, ds. */
static double term(const fmm_fusion *f, bool second, int64_t i, int64_t j, int64_t h, int64_t c,
                   double w, double ds)
{
    const bool by_y = f->pass == FMM_COLS, scale = f->message == FMM_MESSAGE_SCALE;
    if (f->pass == FMM_FORWARD) return w * activated((int)f->activation, raw(f, i, j, h, c));
    if (f->pass == FMM_MIRRORED) return w * get(f->g, j, h, c) + ds * get(f->x, j, h, c);
    /* x and y have other channels than z, so where z is the message they take the score's part. */
    const bool both = f->out == f->out2;
    double sum = 0;
    if (!scale || second || both) {
        const double m = activated((int)f->activation, raw(f, i, j, h, c));
        sum = activation_slope((int)f->activation, w * get(f->g, i, h, c), m);
    }
    if (second) return sum;
    const double x = get(f->x, i, h, c), y = get(f->y, j, h, c);
    const double own = by_y ? y : x, other = by_y ? x : y;
    if (!scale) sum = message_slope((int)f->message, by_y, sum, own, other);
    return f->score == FMM_SCORE_NONE ? sum : sum + score_slope((int)f->score, ds, own, other);
}

/* A row's panel: each channel's sum and extreme, of which the reduction takes one. */
typedef struct row_sums {
    int64_t entries;
    double extreme[PANEL];
    blocked_sum sum[PANEL];
} row_sums;

/* What the edge function makes of one entry: its weight, and in a gradient the derivatives of that
 * by score and value. The program runs on a tile of one. */
static void weigh(const fmm_fusion *f, double s, double a, double w[3])
{
    edge_program_f64 program;
    edge_space_f64 t;
    const double *result[3];
    edge_prepare_f64(f, &program);
    t.space[0][0] = s;
    t.space[1][0] = a;
    edge_run_f64(&program, 1, &t, result);
    for (int k = 0; k < (f->g ? 3 : 1); k++) w[k] = result[k][0];
}

/* Entry p of row `row` of the matrix at hand, channels [c, c + n) of out or out2. What belongs to
 * the entry itself, the gradient of its value and what COLS takes from `kept`, is written by the
 * first panel. The matrix at hand is the transpose in COLS, so row and column change places there.
 */
static void entry(const fmm_call *call, bool second, int64_t row, int64_t p, int64_t h, int64_t c,
                  int64_t n, row_sums *sums)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    const bool gval = f->pass == FMM_ROWS && f->out2 && c == 0;
    const bool keep = f->pass == FMM_ROWS && f->kept && c == 0;
    const int64_t edge = call->val->data || gval || keep ? edge_of(call->a, p) : 0,
                  col = column_of(call->a, p);
    if (col < 0 || edge < 0) return;
    const int64_t i = f->pass == FMM_COLS ? col : row, j = f->pass == FMM_COLS ? row : col;
    const double s = score(f, i, j, h);
    double w[3] = {0}, ds = 0;
    weigh(f, s, value_of(call->val, edge, h), w);
    if (f->pass == FMM_MIRRORED) { /* both directions of a pair of neighbours, see cpu_mirror.inc */
        blocked_sum here = {0}, there = {0};
        for (int64_t k = 0; k < f->g->feat; k++) {
            add(&here, get(f->g, i, h, k) * get(f->x, j, h, k));
            add(&there, get(f->g, j, h, k) * get(f->x, i, h, k));
        }
        ds = total(&here) * w[1];
        if (call->val->data) weigh(f, s, value_of(f->val_t, p, h), w);
        ds += total(&there) * w[1];
    } else if (f->g && !(second && f->pass == FMM_COLS)) {
        blocked_sum product = {0}; /* dL/dw */
        for (int64_t k = 0; k < f->g->feat; k++)
            add(&product, get(f->g, i, h, k) * activated((int)f->activation, raw(f, i, j, h, k)));
        ds = total(&product) * w[1];
        if (gval) put(f->out2, edge, h, 0, total(&product) * w[2]);
        if (keep) {
            put(f->kept, edge, h, 0, w[0]);
            put(f->kept, edge, h, 1, ds);
        }
    }
    for (int64_t k = 0; k < n; k++) {
        const double t = term(f, second, i, j, h, c + k, w[0], ds);
        /* NaN replaces whatever was there, and no comparison replaces a NaN. */
        const bool beyond = f->reduce == FMM_MAX ? t > sums->extreme[k] : t < sums->extreme[k];
        if (sums->entries == 0 || beyond || isnan(t)) sums->extreme[k] = t;
        add(&sums->sum[k], t);
    }
    sums->entries++;
}

/* Row `row` of out, or of out2, in panels of channels. */
static void output(const fmm_call *call, bool second, int64_t row, int64_t h)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    const fmm_dense *out = second ? f->out2 : f->out;
    const int64_t feat = out ? out->feat : 0; /* 0: the gradient of val alone, one round */
    for (int64_t c = 0; c == 0 || c < feat; c += PANEL) {
        const int64_t left = feat - c, n = left < PANEL ? left : PANEL;
        row_sums sums;
        memset(&sums, 0, sizeof sums);
        for (int64_t p = row_begin(call->a, row); p < row_end(call->a, row); p++)
            entry(call, second, row, p, h, c, n, &sums);
        for (int64_t k = 0; k < n; k++) {
            double value = f->reduce >= FMM_MAX ? sums.extreme[k] : total(&sums.sum[k]);
            if (f->reduce == FMM_MEAN && sums.entries) value /= (double)sums.entries;
            put(out, row, h, c + k, value);
        }
    }
}

/* Rows [first, last) of all that the call wants. */
void fmm_fused_plain_rows(const fmm_call *call, int64_t first, int64_t last)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    for (int64_t row = first; row < last; row++)
        for (int64_t h = 0; h < f->x->heads; h++) {
            if (f->out || f->pass == FMM_ROWS) output(call, false, row, h);
            if (f->out2 && f->out2 != f->out && f->pass == FMM_COLS) output(call, true, row, h);
        }
}

fmm_status fmm_fused_reference(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_reference(exec, call, fmm_fused_plain_rows);
}
