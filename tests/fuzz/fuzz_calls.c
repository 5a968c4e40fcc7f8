/* A fuzzer's bytes as calls of every operator on the CPU, with each algorithm in turn.
 *
 * Whatever shapes, strides, dtypes, options and contents of ptr, idx and eid a call has, as long as
 * its arguments are as large as they claim, nothing outside of them is read or written and nothing
 * undefined happens. Results are not looked at: the tests of tests/c do that. */
#include "operands.h"

#include "../../csrc/matrix/compress.h"
#include "../../csrc/attention/node_sums.h"
#include "../../csrc/spmm/extreme.h"

static const fmm_dtype dtypes[] = {FMM_F32, FMM_F64, FMM_F16, FMM_BF16};
static const int feats[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 130, 0};

typedef struct shared {
    fmm_exec exec;
    fmm_csr a;
    fmm_dtype dtype;
    int64_t heads, feat;
    int algorithm;
} shared;

static int64_t any_feat(input *in) { return feats[below(in, sizeof feats / sizeof *feats)]; }

static fmm_dense values(input *in, const shared *s)
{
    if (byte(in) & 1) return (fmm_dense){.heads = 1, .feat = 1};
    return view(in, dtypes[below(in, 4)], s->a.nnz, byte(in) & 1 ? s->heads : 1, 1);
}

static void workspace(input *in, fmm_exec *exec, size_t bytes)
{
    if (bytes > SLOT_BYTES) bytes = 0;
    exec->workspace_bytes = rarely(in) ? bytes / 2 : bytes;
    exec->workspace = array(in, exec->workspace_bytes, 16);
}

static void spmm(input *in, shared *s)
{
    const fmm_dense val = values(in, s), x = view(in, s->dtype, s->a.cols, s->heads, s->feat);
    const fmm_dense y = view(in, s->dtype, s->a.rows, s->heads, s->feat);
    const fmm_reduce reduce = (fmm_reduce)below(in, 5);
    size_t bytes;
    fmm_spmm_workspace(&s->exec, &s->a, &val, &x, &y, reduce, s->algorithm, &bytes);
    workspace(in, &s->exec, bytes);
    fmm_spmm(&s->exec, &s->a, &val, &x, &y, reduce, s->algorithm);
}

static void sddmm(input *in, shared *s)
{
    const fmm_dense val = values(in, s), x = view(in, s->dtype, s->a.rows, s->heads, s->feat);
    const fmm_dense b = view(in, s->dtype, s->a.cols, s->heads, s->feat);
    const fmm_dense e = view(in, s->dtype, s->a.nnz, s->heads, 1);
    size_t bytes;
    fmm_sddmm_workspace(&s->exec, &s->a, &val, &x, &b, &e, s->algorithm, &bytes);
    workspace(in, &s->exec, bytes);
    fmm_sddmm(&s->exec, &s->a, &val, &x, &b, &e, s->algorithm);
}

static void extreme(input *in, shared *s)
{
    const fmm_extreme_form form = (fmm_extreme_form)below(in, 4);
    const bool cols = form == FMM_EXTREME_COLS, edges = form == FMM_EXTREME_EDGES;
    const int64_t n = cols ? s->a.cols : s->a.rows, m = cols ? s->a.rows : s->a.cols;
    const fmm_dense none = {.heads = 1, .feat = 1};
    const fmm_dense val = values(in, s), weight = values(in, s);
    const fmm_dense x = view(in, s->dtype, m, s->heads, s->feat);
    const fmm_dense y = view(in, s->dtype, n, s->heads, s->feat);
    const fmm_dense z = byte(in) & 1 ? view(in, s->dtype, m, s->heads, s->feat) : none;
    const fmm_dense g = byte(in) & 1 ? view(in, s->dtype, n, s->heads, s->feat) : none;
    const fmm_dense out =
        view(in, s->dtype, edges ? s->a.nnz : s->a.rows, s->heads, edges ? 1 : s->feat);
    fmm_extreme(&s->exec, &(fmm_extreme_call){.form = form,
                                              .a = &s->a,
                                              .val = &val,
                                              .weight = &weight,
                                              .x = &x,
                                              .y = &y,
                                              .z = &z,
                                              .g = &g,
                                              .out = &out});
}

static fmm_dense maybe(input *in, fmm_dtype dtype, int64_t rows, int64_t heads, int64_t feat)
{
    return byte(in) & 1 ? view(in, dtype, rows, heads, feat) : (fmm_dense){.heads = 1, .feat = 1};
}

static void attention(input *in, shared *s)
{
    static int64_t seed;
    static const double doubles[] = {0, 0.5, 1, 0.2, -1, 1e300};
    fmm_attention c = {.pass = (fmm_attention_pass)below(in, 5),
                       .score = (fmm_attention_score)below(in, 4),
                       .scale = doubles[below(in, 6)],
                       .slope = doubles[below(in, 6)],
                       .dropout = doubles[below(in, 6)],
                       .seed = rarely(in) ? NULL : &seed};
    const bool cols = c.pass == FMM_ATTENTION_COLS;
    const bool back = cols || c.pass == FMM_ATTENTION_ROWS;
    const int64_t nq = cols ? s->a.cols : s->a.rows, nk = cols ? s->a.rows : s->a.cols;
    const int64_t h = s->heads, f = c.score == FMM_ADDITIVE ? 1 : s->feat, fv = any_feat(in);
    const fmm_dtype sums = s->dtype == FMM_F64 ? FMM_F64 : FMM_F32;
    seed = (int64_t)noise(in);
    c.q = view(in, s->dtype, nq, h, f);
    c.k = view(in, s->dtype, nk, h, f);
    c.v = view(in, s->dtype, nk, h, fv);
    c.lse = view(in, sums, nq, h, 1);
    c.lse_rest = maybe(in, sums, nq, h, 1);
    if (c.score == FMM_GATV2) c.att = view(in, s->dtype, 1, h, f);
    c.bias = maybe(in, s->dtype, s->a.nnz, h, 1);
    c.weight = maybe(in, s->dtype, s->a.nnz, byte(in) & 1 ? h : 1, 1);
    if (c.pass == FMM_ATTENTION_FORWARD) c.out = view(in, s->dtype, nq, h, fv);
    if (c.pass == FMM_ATTENTION_WEIGHTS) c.weights = view(in, s->dtype, s->a.nnz, h, 1);
    if (back) {
        c.gout = view(in, s->dtype, nq, h, fv);
        c.delta = view(in, sums, nq, h, 1);
    }
    if (c.pass == FMM_ATTENTION_ROWS) {
        c.gq = maybe(in, s->dtype, nq, h, f);
        c.gatt = maybe(in, sums, 1 + below(in, 9), h, f);
        c.gbias = maybe(in, s->dtype, s->a.nnz, h, 1);
        c.gweight = maybe(in, s->dtype, s->a.nnz, h, 1);
        c.weights = maybe(in, s->dtype, s->a.nnz, h, 1);
    }
    if (cols) {
        c.gk = maybe(in, s->dtype, nk, h, f);
        c.gv = maybe(in, s->dtype, nk, h, fv);
    }
    c.pos = maybe(in, sums, nq, h, fv);
    c.pos_w = maybe(in, sums, nq, h, 1);
    size_t bytes;
    fmm_attend_workspace(&s->exec, &s->a, &c, s->algorithm, &bytes);
    workspace(in, &s->exec, bytes);
    fmm_attend(&s->exec, &s->a, &c, s->algorithm);
}

static const fmm_dense *held(fmm_dense *place, fmm_dense d)
{
    *place = d;
    return place;
}

/* An operand that the call may need or not; present where it should not be now and then. */
static const fmm_dense *perhaps(input *in, fmm_dense *place, bool needed, const shared *s,
                                int64_t rows, int64_t feat)
{
    if (needed == rarely(in)) return NULL;
    return held(place, view(in, s->dtype, rows, s->heads, feat));
}

static int64_t program(input *in, fmm_edge_step *steps)
{
    const int64_t count = below(in, 4) ? below(in, 8) : below(in, FMM_EDGE_STEPS + 2);
    for (int64_t k = 0; k < count && k < FMM_EDGE_STEPS; k++) {
        int32_t part[4] = {below(in, FMM_EDGE_OPS), below(in, 4), below(in, 4), below(in, 4)};
        if (rarely(in)) part[below(in, 4)] = (int32_t)hostile(in, FMM_EDGE_REGISTERS);
        steps[k] = (fmm_edge_step){part[0], part[1], part[2], part[3], (double)byte(in) - 100};
    }
    return count;
}

static void fused(input *in, shared *s)
{
    fmm_edge_step *const steps = array(in, FMM_EDGE_STEPS * sizeof *steps, 8);
    fmm_dense place[8];
    fmm_fusion f = {.pass = (fmm_pass)below(in, 5),
                    .score = (fmm_score)below(in, 6),
                    .message = (fmm_message)(byte(in) & 1 ? below(in, 7) : 0),
                    .activation = (fmm_activation)below(in, 6),
                    .reduce = (fmm_reduce)(byte(in) & 1 ? below(in, 5) : 0),
                    .steps = steps,
                    .count = program(in, steps)};
    const bool cols = f.pass == FMM_COLS, back = f.pass != FMM_FORWARD;
    const bool scale = f.message == FMM_MESSAGE_SCALE;
    const int64_t n = cols ? s->a.cols : s->a.rows, m = cols ? s->a.rows : s->a.cols;
    const int64_t feat = f.score == FMM_SCORE_ADDITIVE ? 1 : s->feat;
    const int64_t feat_z = scale ? any_feat(in) : feat;
    f.val = byte(in) & 1 ? NULL : held(&place[0], values(in, s));
    f.x = held(&place[1], view(in, s->dtype, n, s->heads, feat));
    f.y = held(&place[2], view(in, s->dtype, m, s->heads, feat));
    f.z = perhaps(in, &place[3], scale, s, m, feat_z);
    f.g = perhaps(in, &place[4], back, s, n, feat_z);
    f.out = perhaps(in, &place[5], byte(in) & 3, s, cols ? m : n, back ? feat : feat_z);
    f.out2 =
        perhaps(in, &place[6], back && byte(in) & 1, s, cols ? m : s->a.nnz, cols ? feat_z : 1);
    if (byte(in) & 1) {
        const fmm_dtype sums = s->dtype == FMM_F64 ? FMM_F64 : FMM_F32;
        f.kept = held(&place[7], view(in, sums, s->a.nnz, s->heads, 2));
        if (cols && byte(in) & 1) f.out2 = f.out;
    }
    if (f.pass == FMM_MIRRORED && byte(in) & 3) {
        f.y = f.z = f.x;
        f.out2 = f.kept = NULL;
        f.val_t = byte(in) & 1 ? f.val : held(&place[7], values(in, s));
    }
    size_t bytes;
    fmm_fused_workspace(&s->exec, &s->a, &f, s->algorithm, &bytes);
    workspace(in, &s->exec, bytes);
    fmm_fused(&s->exec, &s->a, &f, s->algorithm);
}

/* What additive attention asks of each node: the matrix has no part in it but its rows. */
static void nodes(input *in, shared *s)
{
    const fmm_dtype sums = s->dtype == FMM_F64 ? FMM_F64 : FMM_F32;
    const int64_t n = byte(in) & 1 ? s->a.rows : byte(in), h = s->heads, f = s->feat;
    fmm_node_call c = {.form = (fmm_node_form)below(in, 4), .slope = 0.2};
    c.x = view(in, s->dtype, n, h, f);
    c.value = view(in, s->dtype, n, h, f);
    for (int t = 0; t < 2; t++) {
        c.att[t] = view(in, s->dtype, 1, h, f);
        c.score[t] = maybe(in, s->dtype, n, h, 1);
    }
    c.gout = maybe(in, s->dtype, n, h, f);
    c.pos = maybe(in, sums, n, h, f);
    c.lse = maybe(in, sums, n, h, 1);
    c.pos_w = maybe(in, sums, n, h, 1);
    c.glse = maybe(in, sums, n, h, 1);
    c.delta = view(in, sums, n, h, 1);
    c.out = view(in, s->dtype, n, h, f);
    for (int t = 0; t < 2; t++) c.total[t] = view(in, s->dtype, 1, h, f);
    c.total[2] = maybe(in, s->dtype, 1, h, f);
    c.parts = view(in, sums, fmm_node_parts(FMM_CPU, n), (2 + (byte(in) & 1)) * h, f);
    fmm_node_sums(&s->exec, &c);
}

/* The matrix's ptr and eid as coordinates where they are long enough, its transpose and weights. */
static void made(input *in, shared *s)
{
    const int64_t n = s->a.nnz < 0 ? 0 : s->a.nnz, rows = s->a.rows < 0 ? 0 : s->a.rows;
    const int64_t cols = s->a.cols < 0 ? 0 : s->a.cols;
    const int64_t most_of_slot = SLOT_BYTES / 8 - 64; /* results are as large as is said */
    if (n > most_of_slot || rows > most_of_slot || cols > most_of_slot) return;
    fmm_coo coo = {.rows = below(in, 40), .cols = below(in, 40), .nnz = rows, .row_stride = 1};
    fmm_coo_facts facts;
    coo.row = coo.col = s->a.ptr;
    coo.col_stride = byte(in) & 1;
    const bool loops = byte(in) & 1;
    const int64_t most = rows + coo.rows;
    int64_t *ptr = array(in, (size_t)(coo.rows + 1) * sizeof *ptr, sizeof *ptr);
    int32_t *idx = array(in, (size_t)most * sizeof *idx, sizeof *idx);
    int32_t *eid = array(in, (size_t)most * sizeof *eid, sizeof *eid);
    coo.places = array(in, (size_t)rows * sizeof *coo.places, sizeof *coo.places);
    if (fmm_coo_check(&s->exec, &coo, &facts) == FMM_OK) {
        workspace(in, &s->exec, fmm_compress_workspace(&s->exec, &coo, &facts, loops, false));
        fmm_compress(&s->exec, &coo, &facts, loops, ptr, idx, eid, NULL, NULL);
    }
    float *val = array(in, (size_t)n * sizeof *val, sizeof *val);
    float *here = array(in, (size_t)n * sizeof *here, sizeof *here);
    workspace(in, &s->exec, (size_t)rows * sizeof *val);
    fmm_normalize(&s->exec, &s->a, val, here);
    ptr = array(in, (size_t)(cols + 1) * sizeof *ptr, sizeof *ptr);
    idx = array(in, (size_t)n * sizeof *idx, sizeof *idx);
    eid = array(in, (size_t)n * sizeof *eid, sizeof *eid);
    fmm_transpose(&s->exec, &s->a, ptr, idx, eid, NULL);
}

static fmm_status lend(void *owner, size_t bytes, void **to)
{
    if (bytes > SLOT_BYTES || slots_used == SLOTS) return FMM_OUT_OF_MEMORY;
    *to = array(owner, bytes, 64);
    return FMM_OK;
}

static void *numbers(void *owner, int64_t n)
{
    void *found = NULL;
    return lend(owner, (size_t)n * sizeof(double), &found) == FMM_OK ? found : NULL;
}

static int32_t *columns(void *owner, int64_t nnz)
{
    void *found = NULL;
    return lend(owner, (size_t)nnz * sizeof(int32_t), &found) == FMM_OK ? found : NULL;
}

/* Both phases of a sparse product, one after the other or in one pass, a gradient, and colours.
 * What the first phase found, or noise, is what the others stand on. */
static void spgemm(input *in, shared *s)
{
    const fmm_csr b = matrix(in);
    fmm_csr c = matrix(in);
    if (!rarely(in)) s->a.cols = b.rows;
    if (s->a.rows < 0 || s->a.rows > 255 || c.rows < 0 || c.rows > 255) return;
    if (!rarely(in)) { /* rows that c lacks are empty */
        int64_t *ends = array(in, (size_t)(s->a.rows + 1) * sizeof *ends, sizeof *ends);
        for (int64_t i = 0; i <= s->a.rows; i++) ends[i] = c.ptr[i < c.rows ? i : c.rows];
        c.ptr = ends;
        c.rows = s->a.rows;
        c.cols = b.cols;
    }
    int64_t *ptr = array(in, (size_t)(s->a.rows + 1) * sizeof *ptr, sizeof *ptr);
    int64_t *schedule = array(in, FMM_SPGEMM_SCHEDULE * sizeof *schedule, sizeof *schedule);
    const fmm_exec exec = {
        .device = FMM_CPU, .parallel_for = s->exec.parallel_for, .allocate = lend, .owner = in};
    const fmm_spgemm_values with = {view(in, s->dtype, s->a.nnz, 1, 1),
                                    view(in, s->dtype, b.nnz, 1, 1), s->dtype, numbers};
    const fmm_spgemm_pattern pattern = {.want = (fmm_spgemm_want)below(in, 4),
                                        .ptr = ptr,
                                        .schedule = schedule,
                                        .columns = columns,
                                        .owner = in,
                                        .with = byte(in) & 1 ? &with : NULL,
                                        .kept = byte(in) & 1 ? columns : NULL};
    fmm_spgemm_symbolic(&exec, &s->a, &b, &pattern);
    int32_t *colours = array(in, (size_t)c.rows * sizeof *colours, sizeof *colours);
    if (byte(in) & 1) fmm_spgemm_colours(&exec, &c, colours);
    const fmm_dense c_val = view(in, s->dtype, c.nnz, 1, 1);
    const fmm_dense out = view(in, s->dtype, s->a.nnz, 1, 1);
    fmm_spgemm_dots(&exec, &s->a, &c, &c_val, &b, &with.b_val, &out);
    const int64_t kept = byte(in) & 1 ? (s->a.rows + 3) / 4 : 0; /* noise: which rows are alike */
    const int32_t *const following = array(in, (size_t)kept * sizeof *following, sizeof *following);
    const fmm_spgemm of = {.b = &b,
                           .c = &c,
                           .b_val = with.b_val,
                           .masked = byte(in) & 1,
                           .schedule = schedule,
                           .colours = byte(in) & 1 ? colours : NULL,
                           .products = following,
                           .kept = kept};
    size_t bytes;
    fmm_spgemm_workspace(&s->exec, &s->a, &with.a_val, &of, &c_val, s->algorithm, &bytes);
    if (slots_used == SLOTS) return;
    workspace(in, &s->exec, bytes);
    fmm_spgemm_numeric(&s->exec, &s->a, &with.a_val, &of, &c_val, s->algorithm);
}

static void structure(input *in, shared *s)
{
    uint64_t report = UINT64_MAX;
    int64_t where = 0;
    size_t bytes;
    const int which = below(in, 4);
    if (which == 0) spgemm(in, s);
    if (which == 1) made(in, s);
    if (which > 1) nodes(in, s);
    if (fmm_csr_check(&s->exec, &s->a, &report) == FMM_OK) fmm_csr_report(report, &where);
    if (fmm_plan_workspace(&s->exec, &s->a, &bytes) == FMM_OK) fmm_plan(&s->exec, &s->a, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static void (*const calls[])(input *, shared *) = {spmm,  sddmm,   attention,
                                                       fused, extreme, structure};
    input in = {.bytes = bytes, .left = size, .state = 88172645463325252u};
    release_slots();
    in.state += (uint64_t)byte(&in) << 32;
    shared s = {.exec = {.device = FMM_CPU}};
    void (*const call)(input *, shared *) = calls[below(&in, sizeof calls / sizeof *calls)];
    s.exec.parallel_for = byte(&in) & 1 ? backwards : NULL;
    s.algorithm = below(&in, 6);
    s.dtype = dtypes[below(&in, 4)];
    s.heads = rarely(&in) ? 0 : 1 + below(&in, 4);
    s.feat = any_feat(&in);
    s.a = matrix(&in);
    call(&in, &s);
    return 0;
}
