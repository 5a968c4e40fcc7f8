/* Operands that are left out, that claim what no memory holds, or that have no elements: each is
 * refused by name or means what the interface says, whether or not the call would read it. */
#include "test.h"

enum { N = 4, HEADS = 2, FEAT = 3, FEAT_Z = 5, NNZ = 8 };

static _Alignas(16) char workspace[1 << 12];
static const fmm_exec exec = {
    .device = FMM_CPU, .workspace = workspace, .workspace_bytes = sizeof workspace};
static const int64_t ptr[N + 1] = {0, 2, 4, 6, 8};
static const int32_t idx[NNZ] = {0, 1, 1, 2, 2, 3, 3, 0};
static const fmm_csr square = {.rows = N, .cols = N, .nnz = NNZ, .ptr = ptr, .idx = idx};
static const fmm_csr empty = {.ptr = ptr};

static void refused(fmm_status status, const char *what, int k)
{
    CHECK(status == FMM_INVALID_ARGUMENT && strstr(fmm_last_error(), what), "%s %d: %d, %s", what,
          k, (int)status, fmm_last_error());
}

static fmm_dense dense(int64_t rows, int64_t heads, int64_t feat)
{
    const fmm_dense d = view(FMM_F32, rows, heads, feat, 0, AT_END);
    fill(&d, RANDOM);
    return d;
}

/* Views that cannot be; the first is of rows but has no data. */
static const fmm_dense impossible[] = {
    {.rows = N, .heads = HEADS, .feat = FEAT, .row_stride = HEADS * FEAT, .head_stride = FEAT},
    {.heads = 1, .feat = 1, .dtype = (fmm_dtype)77},
    {.heads = 1, .feat = 1, .dtype = (fmm_dtype)-1},
    {.heads = 1, .feat = INT64_MAX},
    {.heads = INT64_MAX, .feat = 4},
    {.heads = 1, .feat = -1},
    {.rows = INT64_MIN, .heads = 1, .feat = 1},
    {.rows = INT64_MAX, .heads = INT64_MAX, .feat = 1},
};
enum { IMPOSSIBLE = sizeof impossible / sizeof *impossible };

static void each_in_turn(void)
{
    const fmm_dense x = dense(N, HEADS, FEAT), y = dense(N, HEADS, FEAT), e = dense(NNZ, HEADS, 1);
    const fmm_edge_step steps[] = {{FMM_EDGE_COPY, 0, 0, 0, 0}};
    const fmm_fusion f = {
        .score = FMM_SCORE_DOT, .steps = steps, .count = 1, .x = &x, .y = &x, .z = &x, .out = &y};
    for (int k = 0; k < IMPOSSIBLE; k++) {
        const fmm_dense *bad = &impossible[k];
        fmm_fusion with = f;
        refused(fmm_spmm(&exec, &square, bad, &x, &y, FMM_SUM, 0), "val", k);
        refused(fmm_spmm(&exec, &square, NULL, bad, &y, FMM_SUM, 0), "x", k);
        refused(fmm_spmm(&exec, &square, NULL, &x, bad, FMM_SUM, 0), "y", k);
        refused(fmm_sddmm(&exec, &square, bad, &x, &x, &e, 0), "val", k);
        refused(fmm_sddmm(&exec, &square, NULL, &x, bad, &e, 0), "b", k);
        with.val = bad;
        refused(fmm_fused(&exec, &square, &with, 0), "val", k);
        with = f, with.z = bad;
        refused(fmm_fused(&exec, &square, &with, 0), "z", k);
        with = f, with.out = bad;
        refused(fmm_fused(&exec, &square, &with, 0), "out", k);
    }
    release_all();
}

/* What a call is a part of: numbers that cannot be are refused, and results are right whatever the
 * others say. */
static void parts_of_a_whole(void)
{
    const fmm_dense x = dense(N, 1, HEADS * FEAT), y = dense(N, 1, HEADS * FEAT);
    const fmm_dense z = dense(N, 1, HEADS * FEAT);
    const fmm_whole bad[] = {{-1, 9}, {9, -1}, {INT64_MAX, 9}, {9, INT64_MAX}};
    fmm_csr part = square;
    for (int k = 0; k < (int)(sizeof bad / sizeof *bad); k++) {
        part.whole = bad[k];
        refused(fmm_spmm(&exec, &part, NULL, &x, &y, FMM_SUM, 0), "part of a matrix", k);
    }
    part.whole = (fmm_whole){.rows = 1, .nnz = INT64_C(1) << 40};
    CHECK(fmm_spmm(&exec, &square, NULL, &x, &y, FMM_SUM, 0) == FMM_OK, "%s", fmm_last_error());
    CHECK(fmm_spmm(&exec, &part, NULL, &x, &z, FMM_SUM, 0) == FMM_OK, "%s", fmm_last_error());
    CHECK(!memcmp(y.data, z.data, sizeof(float) * N * HEADS * FEAT), "a part has other bits");
    release_all();
}

/* Also in a call of no rows, which reads none of them. */
static void attention(void)
{
    fmm_attention c = {.score = FMM_DOT, .q = dense(0, HEADS, FEAT)};
    c.k = c.v = c.out = c.q;
    c.lse = dense(0, HEADS, 1);
    CHECK(fmm_attend(&exec, &empty, &c, 0) == FMM_OK, "%s", fmm_last_error());
    const struct {
        const char *name;
        fmm_dense *operand;
    } all[] = {{"q", &c.q},
               {"k", &c.k},
               {"v", &c.v},
               {"att", &c.att},
               {"bias", &c.bias},
               {"weight", &c.weight},
               {"out", &c.out},
               {"lse", &c.lse},
               {"lse_rest", &c.lse_rest},
               {"gout", &c.gout},
               {"delta", &c.delta},
               {"gq", &c.gq},
               {"gk", &c.gk},
               {"gv", &c.gv},
               {"gatt", &c.gatt},
               {"gbias", &c.gbias},
               {"weights", &c.weights}};
    for (size_t o = 0; o < sizeof all / sizeof *all; o++)
        for (int k = 0; k < IMPOSSIBLE; k++) {
            const fmm_dense good = *all[o].operand;
            size_t bytes;
            *all[o].operand = impossible[k];
            refused(fmm_attend_workspace(&exec, &empty, &c, 0, &bytes), all[o].name, k);
            refused(fmm_attend(&exec, &empty, &c, 0), all[o].name, k);
            *all[o].operand = good;
        }
    release_all();
}

/* Without heads there is nothing to leave out. */
static void no_heads(void)
{
    const fmm_dense q = dense(N, 0, FEAT), w = dense(NNZ, 0, 1);
    const fmm_attention c = {
        .pass = FMM_ATTENTION_WEIGHTS, .score = FMM_DOT, .q = q, .k = q, .weights = w};
    CHECK(fmm_attend(&exec, &square, &c, 0) == FMM_OK, "%s", fmm_last_error());
    release_all();
}

static void sizes_of_a_matrix(void)
{
    const fmm_dense x = {.rows = N, .heads = INT64_MAX / 64, .feat = 0};
    const fmm_dense z = {.rows = N, .heads = INT64_MAX / 64, .feat = 0};
    const fmm_fusion f = {.score = FMM_SCORE_DOT, .x = &x, .y = &x, .z = &z, .out = &z};
    fmm_csr a = square;
    size_t bytes;
    refused(fmm_fused_workspace(&exec, &a, &f, 0, &bytes), "do not fit", 0);
    a.rows = INT64_MAX;
    refused(fmm_plan_workspace(&exec, &a, &bytes), "rows", 0);
    a.rows = N, a.nnz = INT64_MAX;
    refused(fmm_plan_workspace(&exec, &a, &bytes), "entries", 0);
}

/* kept is written although out has no elements, and shares no memory with an operand. */
static void kept(void)
{
    const fmm_dense x = dense(N, HEADS, 0), z = dense(N, HEADS, FEAT_Z),
                    g = dense(N, HEADS, FEAT_Z);
    const fmm_dense out = dense(N, HEADS, 0), numbers = dense(NNZ, HEADS, 2);
    fmm_fusion f = {.pass = FMM_ROWS,
                    .score = FMM_SCORE_DOT,
                    .x = &x,
                    .y = &x,
                    .z = &z,
                    .g = &g,
                    .out = &out,
                    .kept = &numbers};
    const fmm_algorithm *algorithm;
    for (int k = 0; (algorithm = fmm_algorithms(FMM_FUSED, FMM_CPU, k)); k++) {
        poison(&numbers);
        const fmm_status status = fmm_fused(&exec, &square, &f, algorithm->number);
        if (status == FMM_UNSUPPORTED) continue;
        CHECK(status == FMM_OK, "%s: %s", algorithm->name, fmm_last_error());
        for (int64_t e = 0; e < NNZ; e++)
            for (int64_t h = 0; h < HEADS; h++)
                CHECK(get(&numbers, e, h, 0) == 0, "%s: w of %" PRId64 " is %g, s is 0",
                      algorithm->name, e, get(&numbers, e, h, 0));
    }
    fmm_dense shared = numbers;
    shared.data = g.data;
    f.kept = &shared;
    refused(fmm_fused(&exec, &square, &f, 0), "overlaps g", 0);
    release_all();
}

/* An output whose rows or heads share memory would be written twice; heads outside of rows are as
 * good as rows outside of heads. */
static void overlapping_outputs(void)
{
    const fmm_dense x = dense(N, HEADS, FEAT), y = dense(N, HEADS, FEAT), e = dense(NNZ, HEADS, 1);
    const int64_t strides[][2] = {
        {0, FEAT}, {FEAT, FEAT}, {HEADS * FEAT - 1, FEAT}, {HEADS * FEAT, 0}, {HEADS * FEAT, 1}};
    const fmm_edge_step steps[] = {{FMM_EDGE_COPY, 0, 0, 0, 0}};
    for (int k = 0; k < (int)(sizeof strides / sizeof *strides); k++) {
        fmm_dense out = y;
        out.row_stride = strides[k][0], out.head_stride = strides[k][1];
        const fmm_fusion f = {.score = FMM_SCORE_DOT,
                              .steps = steps,
                              .count = 1,
                              .x = &x,
                              .y = &x,
                              .z = &x,
                              .out = &out};
        const fmm_attention a = {.score = FMM_DOT,
                                 .scale = 1,
                                 .q = x,
                                 .k = x,
                                 .v = x,
                                 .out = out,
                                 .lse = dense(N, HEADS, 1)};
        refused(fmm_spmm(&exec, &square, NULL, &x, &out, FMM_SUM, 0), "y overlaps itself", k);
        refused(fmm_fused(&exec, &square, &f, 0), "out overlaps itself", k);
        refused(fmm_attend(&exec, &square, &a, 0), "out overlaps itself", k);
    }
    fmm_dense shared = e, outside = y;
    shared.row_stride = 1;
    refused(fmm_sddmm(&exec, &square, NULL, &x, &x, &shared, 0), "e overlaps itself", 0);
    outside.row_stride = FEAT, outside.head_stride = N * FEAT;
    CHECK(fmm_spmm(&exec, &square, NULL, &x, &outside, FMM_SUM, 0) == FMM_OK, "%s",
          fmm_last_error());
    release_all();
}

int main(void)
{
    each_in_turn();
    parts_of_a_whole();
    overlapping_outputs();
    attention();
    no_heads();
    sizes_of_a_matrix();
    kept();
    return finish();
}
