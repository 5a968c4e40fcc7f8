/* SpMM on the CPU: every algorithm x dtype x reduction x shape against one long double per output.
 */
#include "test.h"

typedef struct setting {
    structure kind;
    int64_t rows, cols, heads, feat, gap;
    bool eid;
    int val_heads; /* 0: no values, else 1 or heads */
    fmm_dtype dtype, val_dtype;
    content data;
    side where;
} setting;

static const char *const reductions[] = {"sum", "mean", "max", "min"};

static void describe(char *text, size_t size, const setting *s, const char *algorithm, int reduce)
{
    snprintf(text, size,
             "%s %s %s: structure %d [%" PRId64 ", %" PRId64 "] heads %" PRId64 " feat %" PRId64
             " gap %" PRId64 " eid %d values %d x %s data %d",
             algorithm, dtype_of[s->dtype], reductions[reduce], (int)s->kind, s->rows, s->cols,
             s->heads, s->feat, s->gap, s->eid, s->val_heads, dtype_of[s->val_dtype], (int)s->data);
}

/* Checks one output element. */
static bool output_right(const fmm_csr *a, const fmm_dense *val, const fmm_dense *x,
                         const fmm_dense *y, int reduce, int64_t i, int64_t h, int64_t c,
                         content data)
{
    long double sum = 0, magnitude = 0, high = -INFINITY, low = INFINITY;
    for (int64_t p = a->ptr[i]; p < a->ptr[i + 1]; p++) {
        const double w = val->data ? get(val, edge(a, p), val->heads == 1 ? 0 : h, 0) : 1;
        const long double term = (long double)w * get(x, a->idx[p], h, c);
        sum += term;
        magnitude += fabsl(term);
        high = term > high ? term : high;
        low = term < low ? term : low;
    }
    const int64_t n = a->ptr[i + 1] - a->ptr[i];
    const double computed = get(y, i, h, c);
    if (n == 0) return computed == 0;
    if (reduce == FMM_SUM)
        return data == POWERS && y->dtype < FMM_F16 ? (long double)computed == sum
                                                    : within(computed, sum, magnitude, n, y->dtype);
    if (reduce == FMM_MEAN)
        return within(computed, sum / (long double)n, magnitude / (long double)n, n, y->dtype);
    const long double extreme = reduce == FMM_MAX ? high : low;
    return within(computed, extreme, fabsl(extreme), 1, y->dtype);
}

static void run(const setting *s)
{
    const fmm_csr a = matrix(s->kind, s->rows, s->cols, s->eid, s->where);
    const fmm_dense x = view(s->dtype, s->cols, s->heads, s->feat, s->gap, s->where);
    const fmm_dense y = view(s->dtype, s->rows, s->heads, s->feat, s->gap, s->where);
    fmm_dense val = {.heads = 1, .feat = 1};
    if (s->val_heads && a.nnz) val = view(s->val_dtype, a.nnz, s->val_heads, 1, s->gap, s->where);
    fill(&x, s->data);
    if (val.data) fill(&val, s->data);
    fmm_exec exec = {.device = FMM_CPU};
    for (int reduce = FMM_SUM; reduce <= FMM_MIN; reduce++) {
        const fmm_call call = {
            .a = &a, .val = &val, .x = &x, .y = &y, .reduce = (fmm_reduce)reduce};
        const fmm_algorithm *algorithm;
        for (int k = 0; (algorithm = next_algorithm(FMM_SPMM, &k, &call));) {
            char text[256];
            describe(text, sizeof text, s, algorithm->name, reduce);
            poison(&y);
            fmm_spmm_workspace(&exec, &a, &val, &x, &y, (fmm_reduce)reduce, algorithm->number,
                               &exec.workspace_bytes);
            exec.workspace = malloc(exec.workspace_bytes + 1);
            const fmm_status status =
                fmm_spmm(&exec, &a, &val, &x, &y, (fmm_reduce)reduce, algorithm->number);
            free(exec.workspace);
            CHECK(status == FMM_OK, "%s: %s", text, fmm_last_error());
            int64_t wrong = 0;
            for (int64_t i = 0; i < s->rows; i++)
                for (int64_t h = 0; h < s->heads; h++)
                    for (int64_t c = 0; c < s->feat; c++)
                        if (!output_right(&a, &val, &x, &y, reduce, i, h, c, s->data)) wrong++;
            CHECK(wrong == 0, "%s: %" PRId64 " outputs", text, wrong);
            CHECK(gaps_kept(&y), "%s: wrote between rows", text);
        }
    }
    release_all();
}

static void shapes(void)
{
    static const int64_t feats[] = {0,   1,   2,   3,   4,   5,   6,   7,  8,   9,
                                    15,  16,  17,  31,  32,  33,  48,  64, 100, 127,
                                    128, 144, 192, 200, 257, 272, 300, 320};
    int turn = 0;
    for (size_t f = 0; f < sizeof feats / sizeof *feats; f++)
        for (int dtype = 0; dtype < FMM_DTYPES; dtype++)
            for (int kind = EMPTY_ROWS; kind <= DENSE_ROWS; kind++, turn++) {
                if (kind == HUB) continue;
                const int64_t heads = feats[f] > 64 ? 1 + turn % 2 : 1 + turn % 4;
                const setting s = {.kind = (structure)kind,
                                   .rows = 1 + turn % 7,
                                   .cols = 1 + turn % 11,
                                   .heads = heads,
                                   .feat = feats[f],
                                   .gap = turn % 3 == 0 ? 0 : turn % 5,
                                   .eid = turn / 2 % 2,
                                   .val_heads = turn % 3 == 1   ? 0
                                                : turn % 3 == 2 ? 1
                                                                : (int)heads,
                                   .dtype = (fmm_dtype)dtype,
                                   .val_dtype = (fmm_dtype)(turn / 3 % FMM_DTYPES),
                                   .data = (content)(turn / 5 % CONTENTS),
                                   .where = (side)(turn / 4 % 2)};
                run(&s);
            }
}

static void long_rows(void)
{
    for (int dtype = 0; dtype < FMM_DTYPES; dtype++)
        for (int data = 0; data < CONTENTS; data++) {
            setting s = {.kind = LONG_ROWS,
                         .rows = 3,
                         .cols = 40,
                         .heads = 1,
                         .feat = 20,
                         .eid = data == 1,
                         .val_heads = data != 2,
                         .dtype = (fmm_dtype)dtype,
                         .val_dtype = (fmm_dtype)dtype,
                         .data = (content)data};
            if (data == POWERS && dtype >= FMM_F16) continue;
            run(&s);
            s.kind = HUB;
            s.feat = data == CONSTANT ? 1 : 3;
            if (dtype == FMM_F16) s.data = RANDOM; /* 10^5 equal terms leave its range */
            run(&s);
        }
}

static void no_rows_or_columns(void)
{
    setting s = {.kind = EMPTY_ROWS, .rows = 0, .cols = 5, .heads = 2, .feat = 9, .val_heads = 1};
    run(&s);
    s.rows = 5;
    s.cols = 0;
    run(&s);
    s.heads = 0;
    s.val_heads = 0;
    run(&s);
    s.rows = s.cols = 0;
    run(&s);
}

/* NaN and infinity reach the outputs that they belong to, and no others. */
static void not_finite(void)
{
    static const int64_t ptr[] = {0, 2, 4, 6, 8};
    static const int32_t idx[] = {0, 1, 1, 0, 2, 2, 3, 2};
    enum { ROWS = 4, COLS = 4 };
    const fmm_csr a = {.rows = ROWS, .cols = COLS, .nnz = 8, .ptr = ptr, .idx = idx};
    const fmm_dense none = {.heads = 1, .feat = 1};
    const fmm_exec exec = {.device = FMM_CPU};
    for (int64_t feat = 1; feat < 40; feat += 19)
        for (int dtype = 0; dtype < FMM_DTYPES; dtype++) {
            const fmm_dense x = view((fmm_dtype)dtype, COLS, 1, feat, 0, AT_END);
            const fmm_dense y = view((fmm_dtype)dtype, ROWS, 1, feat, 0, AT_END);
            fill(&x, RANDOM);
            set(&x, 0, 0, feat - 1, (double)NAN);
            set(&x, 3, 0, feat - 1, (double)INFINITY);
            for (int reduce = FMM_SUM; reduce <= FMM_MIN; reduce++) {
                const fmm_algorithm *algorithm;
                const fmm_call call = {
                    .a = &a, .val = &none, .x = &x, .y = &y, .reduce = (fmm_reduce)reduce};
                for (int k = 0; (algorithm = next_algorithm(FMM_SPMM, &k, &call));) {
                    poison(&y);
                    fmm_spmm(&exec, &a, &none, &x, &y, (fmm_reduce)reduce, algorithm->number);
                    for (int64_t i = 0; i < ROWS; i++)
                        for (int64_t c = 0; c < feat; c++) {
                            const double out = get(&y, i, 0, c);
                            const bool last = c == feat - 1;
                            const bool nan = last && i < 2;
                            const bool inf = last && i == 3 && reduce != FMM_MIN;
                            CHECK(nan   ? isnan(out)
                                  : inf ? isinf(out)
                                        : isfinite(out),
                                  "%s %s %s row %" PRId64 " column %" PRId64 ": %g",
                                  algorithm->name, dtype_of[dtype], reductions[reduce], i, c, out);
                        }
                }
            }
            release_all();
        }
}

/* Rounding to 16 bits in every kernel: y = val * 1, over patterns of f32 from denormal to NaN. */
static void rounding(void)
{
    enum { ROWS = 40000, FEAT = 19 };
    int64_t *ptr = guarded((ROWS + 1) * sizeof *ptr, AT_END);
    int32_t *idx = guarded(ROWS * sizeof *idx, AT_END);
    for (int64_t i = 0; i <= ROWS; i++) ptr[i] = i;
    const fmm_csr a = {.rows = ROWS, .cols = 1, .nnz = ROWS, .ptr = ptr, .idx = idx};
    const fmm_dense val = view(FMM_F32, ROWS, 1, 1, 0, AT_END);
    for (int64_t i = 0; i < ROWS; i++) {
        const uint32_t high = (uint32_t)random_bits() & 0xfffff000, tie = i % 2 ? 0 : 0x800;
        const uint32_t near16 = (uint32_t)(0x33000000 + random_below(0x48000000 - 0x33000000));
        ((uint32_t *)val.data)[i] = i % 3 ? high | tie : near16 & ~(i % 4 ? 0xfffu : 0x1fffu);
    }
    const fmm_exec exec = {.device = FMM_CPU};
    for (int dtype = FMM_F16; dtype <= FMM_BF16; dtype++) {
        const fmm_dense x = view((fmm_dtype)dtype, 1, 1, FEAT, 0, AT_END);
        const fmm_dense y = view((fmm_dtype)dtype, ROWS, 1, FEAT, 0, AT_END);
        for (int64_t c = 0; c < FEAT; c++) set(&x, 0, 0, c, 1);
        const fmm_call call = {.a = &a, .val = &val, .x = &x, .y = &y, .reduce = FMM_SUM};
        const fmm_algorithm *algorithm;
        for (int k = 0; (algorithm = next_algorithm(FMM_SPMM, &k, &call));) {
            poison(&y);
            fmm_spmm(&exec, &a, &val, &x, &y, FMM_SUM, algorithm->number);
            int64_t wrong = 0;
            for (int64_t i = 0; i < ROWS; i++) {
                const float v = ((const float *)val.data)[i];
                const uint16_t want = dtype == FMM_F16 ? f16_of(v) : bf16_of(v);
                for (int64_t c = 0; c < FEAT; c++) {
                    const uint16_t got = ((const uint16_t *)y.data)[i * FEAT + c];
                    wrong += isnan(v)          ? !isnan(get(&y, i, 0, c))
                             : (want & 0x7fff) ? got != want
                                               : (got & 0x7fff) != 0;
                }
            }
            CHECK(wrong == 0, "%s %s: %" PRId64 " roundings", algorithm->name, dtype_of[dtype],
                  wrong);
        }
    }
    release_all();
}

int main(void)
{
    shapes();
    long_rows();
    no_rows_or_columns();
    not_finite();
    rounding();
    return finish();
}
