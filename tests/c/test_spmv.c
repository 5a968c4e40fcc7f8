/* SpMV on the CPU: every format x algorithm x dtype against one long double per row, each array
 * against a page that may not be touched. */
#include "test.h"

typedef struct setting {
    structure kind;
    int64_t rows, cols, gap;
    bool eid;
    int val_heads; /* 0: no values */
    fmm_dtype dtype, val_dtype;
    double alpha, beta;
    side where;
} setting;

static int64_t longest(const fmm_csr *a)
{
    int64_t most = 0;
    for (int64_t i = 0; i < a->rows; i++)
        if (a->ptr[i + 1] - a->ptr[i] > most) most = a->ptr[i + 1] - a->ptr[i];
    return most;
}

static void *numbers(int64_t count, size_t each, side where)
{
    return guarded((size_t)count * each, where);
}

/* Places for `count` elements, padding first: columns of -1 and values of NaN, which nobody may
 * use. */
static fmm_dense *padding(fmm_spmv_matrix *m, int64_t count, fmm_dtype dtype, side where)
{
    fmm_dense *val = guarded(sizeof *val, where);
    int32_t *idx = numbers(count, 4, where);
    *val = (fmm_dense){.data = numbers(count, width_of[dtype], where),
                       .dtype = dtype,
                       .rows = count,
                       .heads = 1,
                       .feat = 1,
                       .row_stride = 1,
                       .head_stride = 1};
    poison(val);
    for (int64_t k = 0; k < count; k++) idx[k] = -1;
    m->stored = count;
    m->padded_idx = idx;
    m->padded_val = val;
    return val;
}

static double value(const fmm_csr *a, const fmm_dense *val, int64_t p)
{
    return val->data ? get(val, edge(a, p), 0, 0) : 1;
}

/* `a` in a format. What each holds stands in fusedmm_spmv.h. */
static fmm_spmv_matrix made(fmm_format format, const fmm_csr *a, const fmm_dense *val, side where)
{
    enum { SLICE = 4, KEPT = 3 };
    fmm_spmv_matrix m = {.format = format, .csr = *a, .val = val};
    const fmm_dtype dtype = val->data ? val->dtype : FMM_F32;
    if (format == FMM_FORMAT_CSR) return m;
    m.csr.ptr = NULL;
    if (format == FMM_FORMAT_COO || format == FMM_FORMAT_HYB) {
        int32_t *row = numbers(a->nnz, 4, where), *idx = numbers(a->nnz, 4, where);
        int32_t *eid = numbers(a->nnz, 4, where);
        int64_t n = 0;
        for (int64_t i = 0; i < a->rows; i++)
            for (int64_t p = a->ptr[i] + (format == FMM_FORMAT_HYB ? KEPT : 0); p < a->ptr[i + 1];
                 p++) {
                row[n] = (int32_t)i;
                idx[n] = a->idx[p];
                eid[n++] = (int32_t)edge(a, p);
            }
        m.csr.idx = idx;
        m.row = row;
        m.csr.eid = eid;
        if (format == FMM_FORMAT_COO) return m;
        /* The tail has fewer entries, and so fewer values: copied in its own order. */
        fmm_dense *tail = guarded(sizeof *tail, where);
        *tail = view(dtype, n, 1, 1, 0, where);
        for (int64_t p = 0; p < n; p++) set(tail, p, 0, 0, val->data ? get(val, eid[p], 0, 0) : 1);
        m.csr.nnz = n;
        m.csr.eid = NULL;
        m.val = tail;
        if (!n) m.row = NULL;
    } else {
        m.csr.nnz = 0;
        m.csr.idx = NULL;
        m.csr.eid = NULL;
        m.val = NULL;
    }
    const int64_t most = longest(a);
    m.width = format == FMM_FORMAT_HYB ? KEPT : format == FMM_FORMAT_SELL ? SLICE : most;
    int64_t *offsets = NULL;
    if (format == FMM_FORMAT_SELL) {
        const int64_t slices = (a->rows + SLICE - 1) / SLICE;
        int32_t *order = numbers(a->rows, 4, where);
        offsets = numbers(slices + 1, 8, where);
        for (int64_t i = 0; i < a->rows; i++) order[i] = (int32_t)(a->rows - 1 - i);
        for (int64_t s = 0; s < slices; s++) {
            int64_t wide = 0;
            for (int64_t r = s * SLICE; r < a->rows && r < (s + 1) * SLICE; r++) {
                const int64_t i = order[r], n = a->ptr[i + 1] - a->ptr[i];
                wide = n > wide ? n : wide;
            }
            offsets[s + 1] = offsets[s] + wide * SLICE;
        }
        m.order = order;
        m.offsets = offsets;
        padding(&m, offsets[slices], dtype, where);
    } else if (format == FMM_FORMAT_DIA) {
        /* Each diagonal that the matrix could touch, of which this one has few. */
        m.width = a->rows + a->cols - 1;
        if (!a->rows || !a->cols) m.width = 0;
        offsets = numbers(m.width, 8, where);
        for (int64_t d = 0; d < m.width; d++) offsets[d] = d - a->rows + 1;
        m.offsets = offsets;
        const fmm_dense *to = padding(&m, m.width * a->rows, dtype, where);
        for (int64_t k = 0; k < m.stored; k++) set(to, k, 0, 0, 0);
        m.padded_idx = NULL;
    } else {
        padding(&m, m.width * a->rows, dtype, where);
    }
    int32_t *idx = (int32_t *)(uintptr_t)m.padded_idx;
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t i = format == FMM_FORMAT_SELL ? m.order[r] : r;
        for (int64_t p = a->ptr[i], k = 0; p < a->ptr[i + 1]; p++, k++) {
            int64_t at = k * a->rows + i;
            if (format == FMM_FORMAT_HYB && k >= KEPT) break;
            if (format == FMM_FORMAT_SELL) at = offsets[r / SLICE] + k * SLICE + r % SLICE;
            if (format == FMM_FORMAT_DIA) at = (a->idx[p] - i + a->rows - 1) * a->rows + i;
            set(m.padded_val, at, 0, 0, value(a, val, p));
            if (idx) idx[at] = a->idx[p];
        }
    }
    return m;
}

static bool right(const fmm_csr *a, const fmm_dense *val, const fmm_dense *x, const fmm_dense *y_in,
                  const fmm_dense *y, const setting *s, int64_t i)
{
    long double sum = 0, magnitude = 0;
    for (int64_t p = a->ptr[i]; p < a->ptr[i + 1]; p++) {
        const long double term = (long double)value(a, val, p) * get(x, a->idx[p], 0, 0);
        sum += term;
        magnitude += fabsl(term);
    }
    sum *= s->alpha;
    magnitude *= fabs(s->alpha);
    if (s->beta != 0) {
        sum += s->beta * (long double)get(y_in, i, 0, 0);
        magnitude += fabsl(s->beta * (long double)get(y_in, i, 0, 0));
    }
    return within(get(y, i, 0, 0), sum, magnitude, a->ptr[i + 1] - a->ptr[i] + 1, y->dtype);
}

static void run(const setting *s)
{
    const fmm_csr a = matrix(s->kind, s->rows, s->cols, s->eid, s->where);
    const fmm_dense x = view(s->dtype, s->cols, 1, 1, s->gap, s->where);
    const fmm_dense y = view(s->dtype, s->rows, 1, 1, s->gap, s->where);
    const fmm_dense y_in = view(s->dtype, s->rows, 1, 1, s->gap, s->where);
    fmm_dense val = {.heads = 1, .feat = 1};
    if (s->val_heads && a.nnz) val = view(s->val_dtype, a.nnz, 1, 1, s->gap, s->where);
    fill(&x, RANDOM);
    fill(&y_in, RANDOM);
    if (val.data) fill(&val, RANDOM);
    if (s->beta == 0) poison(&y_in);
    const int kept = held_count;
    for (fmm_format format = FMM_FORMAT_CSR; format < FMM_FORMATS; format++) {
        const bool long_rows = s->kind == HUB || s->kind == LONG_ROWS;
        /* Padded as wide as the hub they would take gigabytes; DIA cannot hold repeated entries. */
        if (s->kind == HUB && (format == FMM_FORMAT_DIA || format == FMM_FORMAT_ELL)) continue;
        if (format == FMM_FORMAT_DIA && (long_rows || s->kind == DENSE_ROWS || a.nnz)) {
            for (int64_t p = 0, i = 0; p < a.nnz; p++) {
                while (a.ptr[i + 1] <= p) i++;
                ((int32_t *)(uintptr_t)a.idx)[p] = (int32_t)((i + p - a.ptr[i]) % s->cols);
            }
            if (longest(&a) > s->cols) continue;
        }
        const fmm_spmv_matrix m = made(format, &a, &val, s->where);
        const fmm_spmv_operands own = {&m, s->beta != 0 ? &y_in : NULL, s->alpha, s->beta};
        const fmm_call call = {
            .a = &m.csr, .val = m.val ? m.val : &val, .x = &x, .y = &y, .own = &own};
        const fmm_algorithm *algorithm;
        for (int k = 0; (algorithm = next_algorithm(FMM_SPMV, &k, &call));) {
            fmm_exec exec = {.device = FMM_CPU};
            size_t bytes;
            CHECK(fmm_spmv_workspace(&exec, &m, &x, &y_in, &y, s->alpha, s->beta, algorithm->number,
                                     &bytes) == FMM_OK,
                  "%s: %s", algorithm->name, fmm_last_error());
            const int before = held_count;
            exec.workspace = guarded((bytes + 15) / 16 * 16, AT_END);
            exec.workspace_bytes = bytes;
            memset(exec.workspace, 0xff, bytes);
            poison(&y);
            CHECK(fmm_spmv(&exec, &m, &x, &y_in, &y, s->alpha, s->beta, algorithm->number) ==
                      FMM_OK,
                  "%s: %s", algorithm->name, fmm_last_error());
            for (int64_t i = 0; i < s->rows; i++)
                CHECK(right(&a, &val, &x, &y_in, &y, s, i),
                      "%s, format %d, %s x %s, structure %d, row %" PRId64 " of %" PRId64
                      ", alpha %g, beta %g: %g",
                      algorithm->name, (int)format, dtype_of[s->dtype], dtype_of[s->val_dtype],
                      (int)s->kind, i, s->rows, s->alpha, s->beta, get(&y, i, 0, 0));
            CHECK(gaps_kept(&y), "%s wrote between rows", algorithm->name);
            release_from(before);
        }
        release_from(kept);
    }
    release_all();
}

/* Numbers that nobody checked lead nowhere, whatever stands in ptr; pages without access lie about
 * the arrays. What a format does not have is not read. */
static void forged(void)
{
    enum { ROWS = 700, NNZ = 3000 };
    static const int64_t wrong[] = {INT64_MIN, INT64_MAX, 0, NNZ, -1, NNZ + 1};
    for (int seed = 0; seed < 20; seed++) {
        const side where = (side)(seed % SIDES);
        int64_t *ptr = numbers(ROWS + 1, 8, where);
        int32_t *idx = numbers(NNZ, 4, where), *row = numbers(NNZ, 4, where);
        const fmm_dense x = view(FMM_F32, 9, 1, 1, 0, where),
                        y = view(FMM_F32, ROWS, 1, 1, 0, where),
                        val = view(FMM_F32, NNZ, 1, 1, 0, where);
        for (int i = 0; i <= ROWS; i++) ptr[i] = seed % 2 ? wrong[(i + seed) % 6] : (i * 991) % NNZ;
        for (int p = 0; p < NNZ; p++)
            idx[p] = p % 12 - 1, row[p] = (p * 37 + seed) % (ROWS + 9) - 4;
        fill(&x, RANDOM);
        fill(&val, RANDOM);
        for (fmm_format format = FMM_FORMAT_CSR; format <= FMM_FORMAT_COO; format++) {
            const bool csr = format == FMM_FORMAT_CSR;
            const fmm_spmv_matrix m = {
                .format = format,
                .csr = {.rows = ROWS, .cols = 9, .nnz = NNZ, .ptr = ptr, .idx = idx},
                .val = &val,
                .row = csr ? NULL : row,
                .width = 1000,
                .stored = -1};
            const fmm_spmv_operands own = {&m, NULL, 1, 0};
            const fmm_call call = {.a = &m.csr, .val = &val, .x = &x, .y = &y, .own = &own};
            const fmm_algorithm *algorithm;
            for (int k = 0; (algorithm = next_algorithm(FMM_SPMV, &k, &call));) {
                fmm_exec exec = {.device = FMM_CPU};
                CHECK(fmm_spmv_workspace(&exec, &m, &x, NULL, &y, 1, 0, algorithm->number,
                                         &exec.workspace_bytes) == FMM_OK,
                      "%s", fmm_last_error());
                exec.workspace = guarded((exec.workspace_bytes + 15) / 16 * 16, AT_END);
                CHECK(fmm_spmv(&exec, &m, &x, NULL, &y, 1, 0, algorithm->number) == FMM_OK,
                      "%s: %s", algorithm->name, fmm_last_error());
            }
        }
        release_all();
    }
}

/* Wrong operands are refused, each with a sentence that names it. */
static void refusals(void)
{
    const fmm_csr a = matrix(DENSE_ROWS, 3, 4, false, AT_END);
    fmm_dense x = view(FMM_F32, 4, 1, 1, 0, AT_END), y = view(FMM_F32, 3, 1, 1, 0, AT_END);
    const fmm_exec exec = {.device = FMM_CPU};
    fmm_spmv_matrix m = {.csr = a};
#define REFUSED(text, ...)                                                                         \
    CHECK(fmm_spmv(__VA_ARGS__, 0) == FMM_INVALID_ARGUMENT && strstr(fmm_last_error(), text),      \
          "%s", fmm_last_error())
    REFUSED("matrix must be given", &exec, NULL, &x, NULL, &y, 1, 0);
    REFUSED("y_in must be given", &exec, &m, &x, NULL, &y, 1, 2);
    REFUSED("x must be given", &exec, &m, NULL, NULL, &y, 1, 0);
    REFUSED("the output overlaps x", &exec, &m, &x, NULL,
            &(fmm_dense){x.data, FMM_F32, 3, 1, 1, 1, 1}, 1, 0);
    m.format = (fmm_format)17;
    REFUSED("no format number 17", &exec, &m, &x, NULL, &y, 1, 0);
    m.format = FMM_FORMAT_COO;
    REFUSED("entries without row", &exec, &m, &x, NULL, &y, 1, 0);
    m = (fmm_spmv_matrix){
        .format = FMM_FORMAT_ELL, .csr = {.rows = 3, .cols = 4}, .width = INT64_MAX};
    REFUSED("times 3 rows", &exec, &m, &x, NULL, &y, 1, 0);
    m.width = 0;
    REFUSED("padded_val must be given", &exec, &m, &x, NULL, &y, 1, 0);
    m.format = FMM_FORMAT_SELL;
    REFUSED("slices of 1 to", &exec, &m, &x, NULL, &y, 1, 0);
    m.format = FMM_FORMAT_DIA;
    m.width = -1;
    REFUSED("width -1", &exec, &m, &x, NULL, &y, 1, 0);
    release_all();
}

int main(void)
{
    static const double scalings[][2] = {{1, 0}, {-2, 0.5}, {0.5, 0}, {0, 1}};
    int turn = 0;
    for (structure kind = EMPTY_ROWS; kind < STRUCTURES; kind++)
        for (fmm_dtype dtype = FMM_F32; dtype < FMM_DTYPES; dtype++)
            for (int64_t size = 0; size < 4; size++, turn++) {
                static const int64_t rows[] = {0, 1, 37, 700}, cols[] = {5, 1, 40, 90};
                run(&(setting){.kind = kind,
                               .rows = rows[size],
                               .cols = turn % 7 == 3 ? 0 : cols[size],
                               .gap = turn % 3,
                               .eid = turn % 2,
                               .val_heads = turn % 5 != 0,
                               .dtype = dtype,
                               .val_dtype = turn % 3 ? dtype : (fmm_dtype)(turn / 3 % FMM_DTYPES),
                               .alpha = scalings[turn % 4][0],
                               .beta = scalings[turn % 4][1],
                               .where = (side)(turn % SIDES)});
            }
    forged();
    refusals();
    return finish();
}
