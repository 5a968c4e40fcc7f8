/* Structures that no constructor saw, between guard pages: any number in ptr, idx or eid, and no
 * operator reads or writes outside of its arguments. */
#include "test.h"

enum { ROWS = 23, COLS = 17, HEADS = 2, FEAT = 19, PARTS = 5 };

static const int64_t wild[] = {INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, -1, 1000, COLS, 0};
enum { WILD = sizeof wild / sizeof *wild };

typedef enum where { IN_PTR, IN_IDX, IN_EID, PLACES } where;

static void forge(const fmm_csr *a, where place, int64_t value, int64_t at)
{
    if (place == IN_PTR) ((int64_t *)(uintptr_t)a->ptr)[at % (a->rows + 1)] = value;
    if (place == IN_IDX) ((int32_t *)(uintptr_t)a->idx)[at % a->nnz] = (int32_t)value;
    if (place == IN_EID) ((int32_t *)(uintptr_t)a->eid)[at % a->nnz] = (int32_t)value;
}

/* A new view of noise, or of what the call writes. */
static fmm_dense dense(int64_t rows, int64_t feat)
{
    const fmm_dense d = view(FMM_F32, rows, HEADS, feat, 0, random_below(2) ? AT_END : AT_BEGIN);
    fill(&d, RANDOM);
    return d;
}

static fmm_status spmm(const fmm_exec *exec, const fmm_csr *a, int algorithm, int turn)
{
    const fmm_dense val = dense(a->nnz, 1), x = dense(COLS, FEAT), y = dense(ROWS, FEAT);
    const fmm_reduce reduce = (fmm_reduce)(turn % 4);
    return fmm_spmm(exec, a, turn % 3 ? &val : NULL, &x, &y, reduce, algorithm);
}

static fmm_status sddmm(const fmm_exec *exec, const fmm_csr *a, int algorithm, int turn)
{
    const fmm_dense val = dense(a->nnz, 1), q = dense(ROWS, FEAT), x = dense(COLS, FEAT);
    const fmm_dense e = dense(a->nnz, 1);
    return fmm_sddmm(exec, a, turn % 3 ? &val : NULL, &q, &x, &e, algorithm);
}

static fmm_status attend(const fmm_exec *exec, const fmm_csr *a, int algorithm, int turn)
{
    static const int64_t seed = 7;
    fmm_attention c = {.pass = (fmm_attention_pass)(turn % 4),
                       .score = turn / 4 % 2 ? FMM_GATV2 : FMM_DOT,
                       .scale = 0.5,
                       .slope = 0.2,
                       .dropout = turn / 8 % 2 ? 0.5 : 0,
                       .seed = &seed};
    const bool cols = c.pass == FMM_ATTENTION_COLS, rows = c.pass == FMM_ATTENTION_ROWS;
    c.q = dense(ROWS, FEAT);
    c.k = dense(COLS, FEAT);
    c.v = dense(COLS, FEAT);
    c.lse = dense(ROWS, 1);
    c.bias = dense(a->nnz, 1);
    if (c.score == FMM_GATV2) c.att = dense(1, FEAT);
    if (c.pass == FMM_ATTENTION_FORWARD) c.out = dense(ROWS, FEAT);
    if (c.pass == FMM_ATTENTION_WEIGHTS) c.weights = dense(a->nnz, 1);
    if (rows || cols) {
        c.gout = dense(ROWS, FEAT);
        c.delta = dense(ROWS, 1);
    }
    if (rows) {
        c.gq = dense(ROWS, FEAT);
        c.gbias = dense(a->nnz, 1);
        c.gweight = dense(a->nnz, 1);
        if (c.score == FMM_GATV2) c.gatt = dense(PARTS, FEAT);
    }
    if (cols) {
        c.gk = dense(COLS, FEAT);
        c.gv = dense(COLS, FEAT);
    }
    return fmm_attend(exec, a, &c, algorithm);
}

static fmm_status fused(const fmm_exec *exec, const fmm_csr *a, int algorithm, int turn)
{
    const fmm_pass pass = (fmm_pass)(turn % 3);
    const bool cols = pass == FMM_COLS, rows = pass == FMM_ROWS;
    const fmm_dense val = dense(a->nnz, 1), x = dense(ROWS, FEAT), y = dense(COLS, FEAT);
    const fmm_dense z = dense(COLS, FEAT), g = dense(ROWS, FEAT),
                    out = dense(cols ? COLS : ROWS, FEAT);
    const fmm_dense out2 = cols ? dense(COLS, FEAT) : dense(a->nnz, 1);
    const fmm_edge_step steps[] = {{FMM_EDGE_SIGMOID, 0, 0, 0, 0}};
    const fmm_fusion f = {.pass = pass,
                          .score = FMM_SCORE_DOT,
                          .steps = steps,
                          .count = 1,
                          .val = &val,
                          .x = &x,
                          .y = &y,
                          .z = &z,
                          .g = rows || cols ? &g : NULL,
                          .out = &out,
                          .out2 = rows || cols ? &out2 : NULL};
    return fmm_fused(exec, a, &f, algorithm);
}

/* As COO the wild columns stand for rows, too. */
static fmm_status spmv(const fmm_exec *exec, const fmm_csr *a, int algorithm, int turn)
{
    const fmm_dense val = view(FMM_F32, a->nnz, 1, 1, 0, AT_END);
    const fmm_dense x = view(FMM_F32, COLS, 1, 1, 0, AT_END);
    const fmm_dense y = view(FMM_F32, ROWS, 1, 1, 0, AT_BEGIN);
    const bool coo = turn % 2;
    const fmm_spmv_matrix m = {.format = coo ? FMM_FORMAT_COO : FMM_FORMAT_CSR,
                               .csr = *a,
                               .val = turn % 3 ? &val : NULL,
                               .row = coo ? a->idx : NULL};
    return fmm_spmv(exec, &m, &x, NULL, &y, 1, 0, algorithm);
}

/* Memory for what the symbolic phase asks for, and for its columns. */
static fmm_status lend(void *owner, size_t bytes, void **to)
{
    static _Alignas(16) char room[1 << 22];
    size_t *used = owner;
    if (bytes > sizeof room - 16 - *used) return FMM_OUT_OF_MEMORY;
    *to = room + *used;
    *used += (bytes + 15) / 16 * 16;
    return FMM_OK;
}

static int32_t *columns(void *owner, int64_t nnz)
{
    void *to;
    return lend(owner, (size_t)nnz * sizeof(int32_t), &to) == FMM_OK ? to : NULL;
}

static fmm_dense numbers(int64_t n)
{
    const fmm_dense d = view(FMM_F32, n, 1, 1, 0, random_below(2) ? AT_END : AT_BEGIN);
    fill(&d, RANDOM);
    return d;
}

/* All phases: a's structure is forged, and by turns b's, c's, the schedule and the colours. */
static fmm_status spgemm(const fmm_exec *exec, const fmm_csr *a, int algorithm, int turn)
{
    enum { KEPT = (ROWS + 3) / 4 };
    const fmm_csr b = matrix(DENSE_ROWS, COLS, ROWS, turn % 2, AT_END);
    const fmm_csr c = matrix(DENSE_ROWS, ROWS, ROWS, turn % 3 == 0, AT_BEGIN);
    int64_t *schedule = guarded(FMM_SPGEMM_SCHEDULE * sizeof *schedule, AT_END);
    int64_t *ptr = guarded((ROWS + 1) * sizeof *ptr, AT_END);
    int32_t *colours = guarded(ROWS * sizeof *colours, AT_END);
    size_t used = 0;
    const fmm_exec lending = {.device = FMM_CPU, .allocate = lend, .owner = &used};
    const fmm_spgemm_pattern pattern = {.want = (fmm_spgemm_want)(turn % 4),
                                        .ptr = ptr,
                                        .schedule = schedule,
                                        .columns = columns,
                                        .owner = &used};
    if (turn % 2) forge(&b, IN_IDX, wild[random_below(WILD)], random_below(b.nnz));
    if (turn % 5 == 0) forge(&b, IN_PTR, wild[random_below(WILD)], random_below(b.nnz));
    CHECK(fmm_spgemm_symbolic(&lending, a, &b, &pattern) == FMM_OK, "%s", fmm_last_error());
    used = 0;
    CHECK(fmm_spgemm_colours(&lending, &c, colours) == FMM_OK, "%s", fmm_last_error());
    if (turn % 3) forge(&c, turn % 2 ? IN_PTR : IN_IDX, wild[random_below(WILD)], random_below(9));
    if (turn % 7 == 0) schedule[random_below(FMM_SPGEMM_SCHEDULE)] = wild[random_below(WILD)];
    if (turn % 4 == 0) colours[random_below(ROWS)] = (int32_t)wild[random_below(WILD)];
    const fmm_dense a_val = numbers(a->nnz), c_val = numbers(c.nnz), out = numbers(a->nnz);
    int32_t *kept = guarded(KEPT * sizeof *kept, AT_END);
    memset(kept, turn % 5 ? 1 : 0, KEPT * sizeof *kept); /* that every row is as the one before */
    fmm_spgemm of = {.b = &b,
                     .c = &c,
                     .b_val = numbers(b.nnz),
                     .masked = turn % 2,
                     .schedule = schedule,
                     .colours = colours,
                     .products = kept,
                     .kept = KEPT};
    used = 0;
    CHECK(fmm_spgemm_dots(&lending, a, &c, &c_val, &b, &of.b_val, &out) == FMM_OK, "%s",
          fmm_last_error());
    return fmm_spgemm_numeric(exec, a, &a_val, &of, &c_val, algorithm);
}

/* Reduced to rows, or kept at entries, of a sum of operands of columns and of entries. */
static fmm_status messages(const fmm_exec *exec, const fmm_csr *a, int algorithm, int turn)
{
    const fmm_dense x = view(FMM_F32, COLS, 1, FEAT, 0, AT_END), e = numbers(a->nnz);
    const bool rows = turn % 2;
    const fmm_dense out = view(FMM_F32, rows ? ROWS : a->nnz, 1, FEAT, 0, AT_BEGIN);
    fill(&x, RANDOM);
    const fmm_edge_message m = {.axis = {FEAT, 1, 1, 1},
                                .op = FMM_COMBINE_ADD,
                                .lhs = {&x, FMM_AT_COL, 1},
                                .rhs = {&e, FMM_AT_EDGE, 0},
                                .out = {&out, rows ? FMM_AT_ROW : FMM_AT_EDGE, rows ? 15 : 1},
                                .reduce = rows && turn % 3 == 0 ? FMM_MAX : FMM_SUM};
    return fmm_messages(exec, a, &m, algorithm);
}

typedef fmm_status calling(const fmm_exec *, const fmm_csr *, int, int);
static calling *const calls[FMM_OPERATORS] = {
    [FMM_SPMM] = spmm, [FMM_SDDMM] = sddmm,   [FMM_ATTENTION] = attend, [FMM_FUSED] = fused,
    [FMM_SPMV] = spmv, [FMM_SPGEMM] = spgemm, [FMM_MESSAGES] = messages};

/* Every algorithm of an operator, called with a structure in which some numbers are wild. */
static void run(fmm_operator op, int turn)
{
    static _Alignas(16) char workspace[1 << 17];
    const fmm_exec exec = {
        .device = FMM_CPU, .workspace = workspace, .workspace_bytes = sizeof workspace};
    const fmm_algorithm *algorithm;
    for (int k = 0; (algorithm = fmm_algorithms(op, FMM_CPU, k)); k++) {
        const bool cols = op == FMM_ATTENTION ? turn % 4 == 3 : op == FMM_FUSED && turn % 3 == 2;
        const fmm_csr a = matrix(DENSE_ROWS, cols ? COLS : ROWS, cols ? ROWS : COLS, true,
                                 turn % 2 ? AT_END : AT_BEGIN);
        for (int n = 0; n < 1 + turn % 3; n++)
            forge(&a, (where)random_below(PLACES), wild[random_below(WILD)], random_below(a.nnz));
        const fmm_status status = calls[op](&exec, &a, algorithm->number, turn);
        CHECK(status == FMM_OK || status == FMM_UNSUPPORTED, "%s, turn %d: %s", algorithm->name,
              turn, fmm_last_error());
        release_all();
    }
}

/* Memory that ends at a guard page, of fewer bytes than the owner says. */
static fmm_status lend_guarded(void *owner, size_t bytes, void **to)
{
    if (bytes >= *(const size_t *)owner) return FMM_OUT_OF_MEMORY;
    *to = guarded(bytes, AT_END);
    return FMM_OK;
}

static int32_t *guarded_columns(void *owner, int64_t nnz)
{
    (void)owner;
    return guarded((size_t)nnz * sizeof(int32_t), AT_END);
}

static void *guarded_values(void *owner, int64_t nnz)
{
    (void)owner;
    return guarded((size_t)nnz * sizeof(float), AT_END);
}

/* Both phases at once, in memory of pieces of fewer bytes than that; without the stage, which alone
 * takes a block or more, rows are counted and found again. */
enum { BLOCK_BYTES = 1 << 15 };
static void find_whole(const fmm_csr *a, const fmm_csr *b, fmm_spgemm_want want, bool stage,
                       int turn)
{
    size_t refused = stage ? SIZE_MAX : BLOCK_BYTES;
    const fmm_exec exec = {.device = FMM_CPU, .allocate = lend_guarded, .owner = &refused};
    const fmm_spgemm_values with = {numbers(a->nnz), numbers(b->nnz), FMM_F32, guarded_values};
    const fmm_spgemm_pattern pattern = {
        .want = want,
        .ptr = guarded((size_t)(a->rows + 1) * sizeof(int64_t), AT_END),
        .schedule = guarded(FMM_SPGEMM_SCHEDULE * sizeof(int64_t), AT_END),
        .columns = guarded_columns,
        .with = &with};
    CHECK(fmm_spgemm_symbolic(&exec, a, b, &pattern) == FMM_OK, "turn %d: %s", turn,
          fmm_last_error());
    release_all();
}

static fmm_csr of_arrays(int64_t rows, int64_t cols, const int64_t *ptr, const int32_t *idx)
{
    int64_t *own_ptr = guarded((size_t)(rows + 1) * sizeof *ptr, AT_END);
    int32_t *own_idx = guarded((size_t)ptr[rows] * sizeof *idx, AT_END);
    memcpy(own_ptr, ptr, (size_t)(rows + 1) * sizeof *ptr);
    memcpy(own_idx, idx, (size_t)ptr[rows] * sizeof *idx);
    return (fmm_csr){.rows = rows, .cols = cols, .nnz = ptr[rows], .ptr = own_ptr, .idx = own_idx};
}

/* Columns, sums and places of a whole product, whose rows are as many products long each or not. */
static void whole_product(int turn)
{
    enum { SIDE = 61, EACH = 3 };
    fmm_csr a = matrix(DENSE_ROWS, SIDE, SIDE, true, AT_END);
    if (turn % 2) {
        int64_t ptr[SIDE + 1];
        int32_t idx[SIDE * EACH];
        for (int64_t i = 0; i <= SIDE; i++) ptr[i] = i * EACH;
        for (int32_t q = 0; q < SIDE * EACH; q++) idx[q] = (q / EACH + q % EACH * 7) % SIDE;
        a = of_arrays(SIDE, SIDE, ptr, idx);
    }
    for (int n = 0; n < turn % 4; n++)
        forge(&a, (where)random_below(turn % 2 ? 2 : PLACES), wild[random_below(WILD)],
              random_below(a.nnz));
    find_whole(&a, &a, turn % 5 ? FMM_SPGEMM_SORTED : FMM_SPGEMM_UNSORTED, turn / 4 % 2, turn);
}

/* Values of a band's square, whose rows are alike, where somebody has written to one matrix or two
 * since: in all algorithms, whose results then mean nothing. */
static void changed_band(int turn)
{
    enum { SIDE = 70, REACH = 2, WIDE = 2 * REACH };
    static _Alignas(16) char workspace[1 << 17];
    fmm_csr m[3]; /* A, B and C */
    for (int k = 0; k < 3; k++) {
        const int64_t reach = k == 2 ? WIDE : REACH;
        int64_t ptr[SIDE + 1] = {0};
        int32_t idx[SIDE * (2 * WIDE + 1)];
        for (int64_t i = 0, n = 0; i < SIDE; ptr[++i] = n)
            for (int64_t j = i - reach; j <= i + reach; j++)
                if (j >= 0 && j < SIDE) idx[n++] = (int32_t)j;
        m[k] = of_arrays(SIDE, SIDE, ptr, idx);
    }
    for (int n = 0; n < turn % 4; n++) {
        const fmm_csr *which = &m[random_below(3)];
        const bool near = turn / 4 % 2; /* another index, but a legal one */
        const int64_t at = random_below(SIDE);
        forge(which, at % 2 ? IN_PTR : IN_IDX, near ? random_below(SIDE) : wild[random_below(WILD)],
              at);
    }
    int64_t schedule[FMM_SPGEMM_SCHEDULE] = {1};
    int32_t *kept = guarded((SIDE + 3) / 4 * sizeof *kept, AT_END);
    memset(kept, 1, (SIDE + 3) / 4 * sizeof *kept);
    for (int k = 0; k < FMM_SPGEMM_PARTS; k++) schedule[k + 1] = k ? SIDE : 0;
    const fmm_dense a_val = numbers(m[0].nnz), c_val = numbers(m[2].nnz);
    const fmm_spgemm of = {.b = &m[1],
                           .c = &m[2],
                           .b_val = numbers(m[1].nnz),
                           .schedule = schedule,
                           .products = kept,
                           .kept = (SIDE + 3) / 4};
    const fmm_exec exec = {
        .device = FMM_CPU, .workspace = workspace, .workspace_bytes = sizeof workspace};
    CHECK(fmm_spgemm_numeric(&exec, &m[0], &a_val, &of, &c_val, 0) == FMM_OK, "turn %d: %s", turn,
          fmm_last_error());
    release_all();
}

/* Rows 0 and 1 of B are 200 and -198 entries long, so that a row of A with both has more columns
 * than products are counted. */
static void lengths_that_cancel(int turn)
{
    enum { MANY = 200, SIDE = 9 };
    const int64_t ptr_b[] = {0, MANY, 2, 2, MANY};
    int64_t ptr[SIDE + 1];
    int32_t idx_b[MANY], idx[2 * SIDE];
    for (int32_t q = 0; q < MANY; q++) idx_b[q] = q;
    for (int i = 0; i <= SIDE; i++) ptr[i] = 2 * i;
    for (int i = 0; i < 2 * SIDE; i++) idx[i] = i % 2;
    if (turn / 2 % 2) idx[1] = 2; /* then rows are not as long as each other */
    const fmm_csr a = of_arrays(SIDE, 4, ptr, idx), b = of_arrays(4, MANY, ptr_b, idx_b);
    find_whole(&a, &b, FMM_SPGEMM_SORTED, turn % 2, turn);
}

int main(void)
{
    for (int turn = 0; turn < 2000; turn++) whole_product(turn);
    for (int turn = 0; turn < 2000; turn++) changed_band(turn);
    for (int turn = 0; turn < 4; turn++) lengths_that_cancel(turn);
    for (int op = 0; op < FMM_OPERATORS; op++)
        for (int turn = 0; turn < 200; turn++) run((fmm_operator)op, turn);
    return finish();
}
