/* SDDMM on the CPU: every algorithm x dtype x shape against one long double per entry. */
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

static bool entry_right(const fmm_csr *s, const fmm_dense *val, const fmm_dense *a,
                        const fmm_dense *b, const fmm_dense *e, int64_t i, int64_t p, int64_t h,
                        content data)
{
    long double sum = 0, magnitude = 0;
    for (int64_t c = 0; c < a->feat; c++) {
        const long double term = (long double)get(a, i, h, c) * get(b, s->idx[p], h, c);
        sum += term;
        magnitude += fabsl(term);
    }
    const double w = val->data ? get(val, edge(s, p), val->heads == 1 ? 0 : h, 0) : 1;
    const double computed = get(e, edge(s, p), h, 0);
    if (data == POWERS && e->dtype < FMM_F16) return (long double)computed == w * sum;
    /* One more rounding than the sum has: the product with the value. */
    return within(computed, w * sum, fabsl((long double)w) * magnitude, a->feat + 1, e->dtype);
}

static void run(const setting *t)
{
    const fmm_csr s = matrix(t->kind, t->rows, t->cols, t->eid, t->where);
    const fmm_dense a = view(t->dtype, t->rows, t->heads, t->feat, t->gap, t->where);
    const fmm_dense b = view(t->dtype, t->cols, t->heads, t->feat, 2 * t->gap, t->where);
    const fmm_dense e = view(t->dtype, s.nnz, t->heads, 1, t->gap, t->where);
    fmm_dense val = {.heads = 1, .feat = 1};
    if (t->val_heads && s.nnz) val = view(t->val_dtype, s.nnz, t->val_heads, 1, t->gap, t->where);
    fill(&a, t->data);
    fill(&b, t->data);
    if (val.data) fill(&val, t->data);
    fmm_exec exec = {.device = FMM_CPU};
    const fmm_call call = {.a = &s, .val = &val, .x = &a, .b = &b, .y = &e, .reduce = FMM_SUM};
    const fmm_algorithm *algorithm;
    for (int k = 0; (algorithm = next_algorithm(FMM_SDDMM, &k, &call));) {
        char text[256];
        snprintf(text, sizeof text,
                 "%s %s: structure %d [%" PRId64 ", %" PRId64 "] heads %" PRId64 " feat %" PRId64
                 " gap %" PRId64 " eid %d values %d x %s data %d",
                 algorithm->name, dtype_of[t->dtype], (int)t->kind, t->rows, t->cols, t->heads,
                 t->feat, t->gap, t->eid, t->val_heads, dtype_of[t->val_dtype], (int)t->data);
        poison(&e);
        fmm_sddmm_workspace(&exec, &s, &val, &a, &b, &e, algorithm->number, &exec.workspace_bytes);
        exec.workspace = malloc(exec.workspace_bytes + 1);
        const fmm_status status = fmm_sddmm(&exec, &s, &val, &a, &b, &e, algorithm->number);
        free(exec.workspace);
        CHECK(status == FMM_OK, "%s: %s", text, fmm_last_error());
        int64_t wrong = 0;
        for (int64_t i = 0; i < s.rows; i++)
            for (int64_t p = s.ptr[i]; p < s.ptr[i + 1]; p++)
                for (int64_t h = 0; h < t->heads; h++)
                    if (!entry_right(&s, &val, &a, &b, &e, i, p, h, t->data)) wrong++;
        CHECK(wrong == 0, "%s: %" PRId64 " entries", text, wrong);
        CHECK(gaps_kept(&e), "%s: wrote between entries", text);
    }
    release_all();
}

int main(void)
{
    static const int64_t feats[] = {0,  1,  2,  3,  4,   5,   7,   8,   9,   15,  16,   17,
                                    31, 32, 33, 64, 100, 127, 128, 257, 300, 513, 2050, 9001};
    int turn = 0;
    for (size_t f = 0; f < sizeof feats / sizeof *feats; f++)
        for (int dtype = 0; dtype < FMM_DTYPES; dtype++)
            for (int kind = EMPTY_ROWS; kind <= DENSE_ROWS; kind++, turn++) {
                if (kind == HUB || (feats[f] > 500 && kind != EMPTY_ROWS)) continue;
                const int64_t heads = 1 + turn % (feats[f] > 64 ? 2 : 4);
                setting t = {.kind = (structure)kind,
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
                if (dtype == FMM_F16 && t.data == POWERS) t.data = RANDOM; /* leaves its range */
                run(&t);
            }
    setting t = {
        .kind = HUB, .rows = 3, .cols = 50, .heads = 1, .feat = 5, .eid = true, .val_heads = 1};
    run(&t);
    t.kind = LONG_ROWS;
    run(&t);
    t.rows = 0;
    run(&t);
    t.rows = 3;
    t.cols = 0;
    run(&t);
    t.heads = t.val_heads = 0;
    run(&t);
    return finish();
}
