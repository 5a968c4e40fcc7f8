/* gather_wall on a CPU: SpMM of ones that does nothing but gather, as fast as SpMM can be.
 *
 * As csrc/lessons/spmm_gather_wall.cu does on a GPU, it reads the same rows of x as every SpMM, in
 * the same order, and adds them up in registers. No values are read, indices are trusted, and there
 * are no partial sums. Two are tried:
 *
 *     gather_wall:0     the loads alone, which overlap as far as the processor looks ahead
 *     gather_wall:12    and each entry fetches the row of the entry 12 further on
 *
 * What a kernel takes longer than the faster of them is what it does beside the gather.
 *
 *     make build/benchmarks/gather_wall.so
 *
 * A plug-in, compiled for the processor that it runs on. Guard: f32, no values, one head, rows of
 * 2, 4, 8 or 16 whole lines. */
#include "fusedmm.h"

enum { LINE = 16 /* numbers */, CHUNK = 256 /* rows that a thread takes at a time */ };

/* A cache line of x. The compiler makes it one register or several. */
typedef float line __attribute__((vector_size(4 * LINE), aligned(4), may_alias));

/* The sums of rows [first, last) of `lines` lines; ahead: how many entries further on to fetch. */
static inline __attribute__((always_inline)) void
gather(const fmm_call *call, int64_t first, int64_t last, const int lines, const int ahead)
{
    const fmm_csr *a = call->a;
    const float *x = (const float *)call->x->data;
    const int64_t stride = call->x->row_stride, final = a->nnz - 1;
    for (int64_t i = first; i < last; i++) {
        line sum[LINE] = {{0}};
        for (int64_t p = a->ptr[i]; p < a->ptr[i + 1]; p++) {
            const line *row = (const line *)(x + a->idx[p] * stride);
            const int64_t later = p + ahead < final ? p + ahead : final;
            const line *next = (const line *)(x + a->idx[later] * stride);
            for (int l = 0; l < lines; l++) {
                if (ahead) __builtin_prefetch(next + l);
                sum[l] += row[l];
            }
        }
        line *y = (line *)((float *)call->y->data + i * call->y->row_stride);
        for (int l = 0; l < lines; l++) y[l] = sum[l];
    }
}

/* Chunks [begin, end) of rows. The number of lines is a constant of each loop. */
static inline __attribute__((always_inline)) void chunks(int64_t begin, int64_t end, void *ctx,
                                                         const int ahead)
{
    const fmm_call *call = (const fmm_call *)ctx;
    const int64_t first = begin * CHUNK, rows = call->a->rows;
    const int64_t last = end * CHUNK < rows ? end * CHUNK : rows;
    switch (call->x->feat / LINE) {
    case 2:
        gather(call, first, last, 2, ahead);
        break;
    case 4:
        gather(call, first, last, 4, ahead);
        break;
    case 8:
        gather(call, first, last, 8, ahead);
        break;
    default:
        gather(call, first, last, 16, ahead);
    }
}

static void near(int64_t begin, int64_t end, void *ctx) { chunks(begin, end, ctx, 0); }

static void far(int64_t begin, int64_t end, void *ctx) { chunks(begin, end, ctx, 12); }

static fmm_status run(const fmm_exec *exec, const fmm_call *call, fmm_range *body)
{
    const int64_t count = (call->a->rows + CHUNK - 1) / CHUNK;
    if (exec->parallel_for)
        exec->parallel_for(count, body, (void *)call);
    else
        body(0, count, (void *)call);
    return FMM_OK;
}

static fmm_status run_near(const fmm_exec *exec, const fmm_call *call)
{
    return run(exec, call, near);
}

static fmm_status run_far(const fmm_exec *exec, const fmm_call *call)
{
    return run(exec, call, far);
}

static bool supports(const fmm_call *call)
{
    const int64_t feat = call->x->feat;
    return call->x->dtype == FMM_F32 && call->reduce == FMM_SUM && !call->val->data &&
           call->x->heads == 1 && (feat == 32 || feat == 64 || feat == 128 || feat == 256);
}

FMM_PLUGIN
{
    static fmm_algorithm walls[] = {
        {.name = "gather_wall:0", .about = "gathers and adds rows of x", .run = run_near},
        {.name = "gather_wall:12", .about = "the same, and fetches ahead", .run = run_far},
    };
    for (int k = 0; k < 2; k++) {
        walls[k].source = "this project";
        walls[k].deterministic = true;
        walls[k].supports = supports;
        const fmm_status status = host->add(FMM_SPMM, FMM_CPU, &walls[k]);
        if (status != FMM_OK) return status;
    }
    return FMM_OK;
}
