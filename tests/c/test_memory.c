/* The library allocates nothing: with an allocator that refuses everything every operator still
 * works, and gives the same bits. So there is no site in it at which an allocation can fail, and
 * an out-of-memory is always that of the caller's outputs and workspace. */
#include "test.h"

/* A sanitizer brings an allocator of its own, which cannot be replaced. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    printf("not with a sanitizer's allocator\n");
    return 0;
}
#else

#include <errno.h>

static bool refusing;
static int refused;

/* glibc's own, behind the names that this program replaces. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static bool refuse(void) { return refusing && ++refused; }

void *malloc(size_t bytes) { return refuse() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return refuse() ? NULL : __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return refuse() ? NULL : __libc_realloc(old, bytes); }
void *aligned_alloc(size_t align, size_t bytes)
{
    return refuse() ? NULL : __libc_memalign(align, bytes);
}
int posix_memalign(void **out, size_t align, size_t bytes)
{
    if (refuse()) return ENOMEM;
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}

typedef struct operands {
    fmm_csr a, b, c;
    fmm_dense val, x, q, y, e, out, lse, c_val;
    int64_t schedule[FMM_SPGEMM_SCHEDULE];
    int32_t colours[64];
    _Alignas(16) char workspace[1 << 16];
} operands;

static fmm_status spmm(operands *o, fmm_exec *exec, int algorithm)
{
    const fmm_status status = fmm_spmm_workspace(exec, &o->a, &o->val, &o->x, &o->y, FMM_MAX,
                                                 algorithm, &exec->workspace_bytes);
    return status ? status : fmm_spmm(exec, &o->a, &o->val, &o->x, &o->y, FMM_MAX, algorithm);
}

static fmm_status sddmm(operands *o, fmm_exec *exec, int algorithm)
{
    return fmm_sddmm(exec, &o->a, &o->val, &o->q, &o->x, &o->e, algorithm);
}

static fmm_status attend(operands *o, fmm_exec *exec, int algorithm)
{
    const fmm_attention c = {.score = FMM_DOT,
                             .scale = 0.5,
                             .q = o->q,
                             .k = o->x,
                             .v = o->x,
                             .out = o->out,
                             .lse = o->lse};
    return fmm_attend(exec, &o->a, &c, algorithm);
}

static fmm_status fused(operands *o, fmm_exec *exec, int algorithm)
{
    static const fmm_edge_step steps[] = {{FMM_EDGE_SIGMOID, 0, 0, 0, 0}};
    const fmm_fusion f = {.score = FMM_SCORE_DOT,
                          .steps = steps,
                          .count = 1,
                          .val = &o->val,
                          .x = &o->q,
                          .y = &o->x,
                          .z = &o->x,
                          .out = &o->out};
    const fmm_status status =
        fmm_fused_workspace(exec, &o->a, &f, algorithm, &exec->workspace_bytes);
    return status ? status : fmm_fused(exec, &o->a, &f, algorithm);
}

/* The first column of x and of y. */
/* x summed to y, of the first head alone. */
static fmm_edge_message message_of(const fmm_dense *x, const fmm_dense *y)
{
    return (fmm_edge_message){.axis = {x->feat, 1, 1, 1},
                              .op = FMM_COMBINE_COPY,
                              .lhs = {x, FMM_AT_COL, 1},
                              .out = {y, FMM_AT_ROW, 15}};
}

static fmm_status messages(operands *o, fmm_exec *exec, int algorithm)
{
    fmm_dense x = o->x, y = o->y;
    x.heads = y.heads = 1;
    const fmm_edge_message m = message_of(&x, &y);
    const fmm_status status =
        fmm_messages_workspace(exec, &o->a, &m, algorithm, &exec->workspace_bytes);
    return status ? status : fmm_messages(exec, &o->a, &m, algorithm);
}

static fmm_status spmv(operands *o, fmm_exec *exec, int algorithm)
{
    const fmm_spmv_matrix m = {.csr = o->a, .val = &o->val};
    fmm_dense x = o->x, y = o->y;
    x.heads = x.feat = y.heads = y.feat = 1;
    const fmm_status status =
        fmm_spmv_workspace(exec, &m, &x, NULL, &y, 1, 0, algorithm, &exec->workspace_bytes);
    return status ? status : fmm_spmv(exec, &m, &x, NULL, &y, 1, 0, algorithm);
}

static fmm_spgemm product_of(const operands *o)
{
    return (fmm_spgemm){.b = &o->b,
                        .c = &o->c,
                        .b_val = {.heads = 1, .feat = 1},
                        .schedule = o->schedule,
                        .colours = o->colours};
}

static fmm_status spgemm(operands *o, fmm_exec *exec, int algorithm)
{
    const fmm_spgemm of = product_of(o);
    const fmm_status status = fmm_spgemm_workspace(exec, &o->a, &o->val, &of, &o->c_val, algorithm,
                                                   &exec->workspace_bytes);
    return status ? status : fmm_spgemm_numeric(exec, &o->a, &o->val, &of, &o->c_val, algorithm);
}

static fmm_status check(operands *o, fmm_exec *exec, int algorithm)
{
    uint64_t report;
    (void)algorithm;
    return fmm_csr_check(exec, &o->a, &report);
}

/* Runs a call twice, the second time without an allocator, and compares what it wrote. */
static void run(operands *o, const char *name, int algorithm,
                fmm_status (*call)(operands *, fmm_exec *, int))
{
    const fmm_dense *results[] = {&o->y, &o->e, &o->out, &o->lse, &o->c_val};
    enum { RESULTS = sizeof results / sizeof *results };
    static float before[RESULTS][1 << 14];
    fmm_exec exec = {.device = FMM_CPU, .workspace = o->workspace};
    for (int k = 0; k < RESULTS; k++) poison(results[k]);
    CHECK(call(o, &exec, algorithm) == FMM_OK, "%s: %s", name, fmm_last_error());
    for (int k = 0; k < RESULTS; k++) {
        memcpy(before[k], results[k]->data, (size_t)extent(results[k]) * sizeof(float));
        poison(results[k]);
    }
    refused = 0;
    refusing = true;
    const fmm_status status = call(o, &exec, algorithm);
    refusing = false;
    CHECK(status == FMM_OK, "%s without memory: %s", name, fmm_last_error());
    CHECK(refused == 0, "%s asked for memory %d times", name, refused);
    for (int k = 0; k < RESULTS; k++)
        CHECK(!memcmp(before[k], results[k]->data, (size_t)extent(results[k]) * sizeof(float)),
              "%s: other bits without memory", name);
}

int main(void)
{
    static operands o;
    void *(*volatile allocate)(size_t) = malloc; /* a compiler knows malloc, and removes it */
    o.a = matrix(DENSE_ROWS, 40, 30, true, AT_END);
    o.val = view(FMM_F32, o.a.nnz, 1, 1, 0, AT_END);
    o.x = view(FMM_F32, o.a.cols, 2, 19, 0, AT_END);
    o.q = view(FMM_F32, o.a.rows, 2, 19, 0, AT_END);
    o.y = view(FMM_F32, o.a.rows, 2, 19, 0, AT_END);
    o.e = view(FMM_F32, o.a.nnz, 2, 1, 0, AT_END);
    o.out = view(FMM_F32, o.a.rows, 2, 19, 0, AT_END);
    o.lse = view(FMM_F32, o.a.rows, 2, 1, 0, AT_END);
    o.b = matrix(DENSE_ROWS, 30, 20, false, AT_END);
    o.c = matrix(DENSE_ROWS, 40, 20, false, AT_END);
    o.c_val = view(FMM_F32, o.c.nnz, 1, 1, 0, AT_END);
    for (int64_t k = 2; k < FMM_SPGEMM_SCHEDULE; k++) o.schedule[k] = o.a.rows;
    fill(&o.val, RANDOM);
    fill(&o.x, RANDOM);
    fill(&o.q, RANDOM);
    refusing = true;
    const void *probe = allocate(1);
    refusing = false;
    CHECK(!probe && refused == 1, "the refusing allocator is not in use: %d", refused);

    static fmm_status (*const calls[FMM_OPERATORS])(operands *, fmm_exec *, int) = {
        [FMM_SPMM] = spmm, [FMM_SDDMM] = sddmm,   [FMM_ATTENTION] = attend, [FMM_FUSED] = fused,
        [FMM_SPMV] = spmv, [FMM_SPGEMM] = spgemm, [FMM_MESSAGES] = messages};
    const fmm_attention attention = {.q = o.q, .k = o.x, .v = o.x};
    const fmm_fusion fusion = {.score = FMM_SCORE_DOT, .x = &o.q, .y = &o.x, .z = &o.x};
    const fmm_spmv_matrix csr = {.csr = o.a, .val = &o.val};
    const fmm_spmv_operands vector = {.matrix = &csr, .alpha = 1};
    const fmm_spgemm product = product_of(&o);
    const fmm_edge_message message = message_of(&o.x, &o.y);
    const void *const own[FMM_OPERATORS] = {[FMM_ATTENTION] = &attention,
                                            [FMM_FUSED] = &fusion,
                                            [FMM_SPMV] = &vector,
                                            [FMM_SPGEMM] = &product,
                                            [FMM_MESSAGES] = &message};
    for (int op = 0; op < FMM_OPERATORS; op++) {
        const fmm_call asked = {.a = &o.a, .val = &o.val, .x = &o.x, .own = own[op]};
        const fmm_algorithm *a;
        for (int k = 0; (a = next_algorithm((fmm_operator)op, &k, &asked));)
            if (a->number < 1000) run(&o, a->name, a->number, calls[op]);
    }
    run(&o, "check", 0, check);
    release_all();
    return finish();
}
#endif
