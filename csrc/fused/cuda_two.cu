/* fused in two calls: SDDMM into the workspace, the edge function over what it wrote, and SpMM with
 * the result as values. `back_to_back` takes our kernels, `cusparse` and `cublas` the vendors'. It
 * is what one pass is compared with.
 *
 *     x, y    -- SDDMM -->  scores   -- weigh -->   weights   -- SpMM with z -->  out
 *                           [nnz, heads], in the workspace, weighed in place
 *
 * Scores have the operands' type and are rounded to it. 16 bits of a score are too few for its
 * exponential, so such operands are declined. Scores lie in the order of storage, whatever the
 * order of val: the matrix goes on without its eid, and every pass runs over them from front to
 * back. Where the function is s or s * a, SDDMM multiplies by val itself and the pass between is
 * left out, as a user would do; then scores lie as val does. A score is turned into its weight by
 * one thread, so the bits are those of the two calls. */
#include "cuda_edge.cuh"

#include "cuda.h"
#include "../cuda/vendor/vendor.h"

/* Numbers in the registries of SDDMM and SpMM; 0 chooses. */
struct two_numbers {
    int sddmm, spmm;
};
/* What each of the three names takes for its calls. */
static const two_numbers OURS = {0, 0};
static const two_numbers CUSPARSE = {FMM_CUSPARSE_DEFAULT, FMM_CUSPARSE_DEFAULT};
static const two_numbers CUBLAS = {FMM_CUBLAS_NUMBER, FMM_CUBLAS_NUMBER};

/* The two calls, which point to each other's parts and to those of the call they come from. */
struct two_calls {
    bool direct; /* scores are weights */
    fmm_csr a;
    fmm_dense ones, e;
    fmm_call sddmm, spmm;
};

/* `scores`: in the workspace, or any address as well aligned while only sizes are asked for. */
static void split(const fmm_call *call, void *scores, two_calls *t)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    const edge_program<double> edge = edge_of_fusion<double>(f);
    const int64_t heads = f->x->heads;
    t->direct = edge.kind == EDGE_U && edge.factor == 1 && edge.scale == 1 && edge.shift == 0;
    t->a = *call->a;
    if (!t->direct) t->a.eid = NULL;
    /* No values, for an SDDMM that leaves val to the edge function. */
    t->ones = fmm_dense{NULL, f->x->dtype, 0, 1, 1, 0, 0};
    t->e = fmm_dense{scores, f->x->dtype, t->a.nnz, heads, 1, heads, 1};
    t->sddmm = t->spmm = fmm_call{};
    t->sddmm.index = t->spmm.index = call->index;
    t->sddmm.a = t->spmm.a = &t->a;
    t->sddmm.val = t->direct && edge.valued ? call->val : &t->ones;
    t->sddmm.x = f->x;
    t->sddmm.b = f->y;
    t->sddmm.y = &t->e;
    t->spmm.val = &t->e;
    t->spmm.x = f->z;
    t->spmm.y = f->out;
    t->spmm.reduce = f->reduce;
}

/* The part of the workspace that holds the scores; the two calls share the rest. */
static size_t score_bytes(const fmm_call *call)
{
    const fmm_dense *x = fmm_fusion_of(call)->x;
    return fmm_vendor_part(call->a->nnz * x->heads, fmm_dtype_bytes(x->dtype));
}

/* Whether a call of fused is one of SDDMM and one of SpMM. */
static bool splits(const fmm_call *call)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    return f->pass == FMM_FORWARD && f->score == FMM_SCORE_DOT && f->z &&
           f->activation == FMM_ACT_NONE && !f->function && fmm_dtype_bytes(f->x->dtype) > 2;
}

/* Both calls must be possible for the algorithms that the name says. */
static bool supports(const fmm_call *call, two_numbers with)
{
    two_calls t;
    const fmm_algorithm *found;
    if (!splits(call)) return false;
    split(call, (void *)(uintptr_t)VENDOR_ALIGN, &t);
    return fmm_algorithm_find(FMM_SDDMM, FMM_CUDA, with.sddmm, &t.sddmm, &found) == FMM_OK &&
           fmm_algorithm_find(FMM_SPMM, FMM_CUDA, with.spmm, &t.spmm, &found) == FMM_OK;
}

/* The calls follow each other, so they share what they need beside the scores. */
static size_t workspace(const fmm_call *call, two_numbers with)
{
    two_calls t;
    const fmm_exec exec = {FMM_CUDA};
    size_t bytes = score_bytes(call), first = 0, second = 0;
    split(call, (void *)(uintptr_t)VENDOR_ALIGN, &t);
    (void)fmm_workspace(FMM_SDDMM, &exec, with.sddmm, &t.sddmm, &first);
    (void)fmm_workspace(FMM_SPMM, &exec, with.spmm, &t.spmm, &second);
    return __builtin_add_overflow(bytes, first > second ? first : second, &bytes) ? SIZE_MAX
                                                                                  : bytes;
}

/* A thread owns a score, and neighbouring threads neighbouring scores. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    weigh(const __grid_constant__ edge_program<T> edge, const edge_view val, int64_t count,
          int64_t heads, T *e)
{
    for (int64_t k = this_thread(); k < count; k += all_threads()) {
        const int64_t p = heads == 1 ? k : k / heads;
        const T s = e[k], a = edge_value<T>(val, edge_of(val, p), k - p * heads);
        e[k] = edge.kind == EDGE_PROGRAM ? edge_run(edge, s, a).w : edge_direct(edge, s, a).w;
    }
}

/* The pass between the two calls, over f32 or f64. The edge function travels as an argument, so
 * that it lies in constant memory. */
static fmm_status weigh_all(const fmm_exec *exec, const fmm_call *call, void *e)
{
    enum { BLOCKS = 1 << 14 }; /* enough to fill any card */
    const fmm_fusion *f = fmm_fusion_of(call);
    const int64_t heads = f->x->heads, count = call->a->nnz * heads;
    const unsigned grid = (unsigned)smaller(blocks_for(count), BLOCKS);
    if (!count) return FMM_OK;
    return on_device("fused", exec, [&] {
        for_wide_dtype(f->x->dtype, [&](auto element) {
            typedef decltype(element) T;
            weigh<T><<<grid, BLOCK, 0, stream_of(exec)>>>(edge_of_fusion<T>(f),
                                                          view_edges(call->a, call->val), count,
                                                          heads, static_cast<T *>(e));
        });
    });
}

/* An exec for both calls: the same stream, and what the scores leave of the workspace. */
static fmm_status run(const fmm_exec *exec, const fmm_call *call, two_numbers with)
{
    two_calls t;
    fmm_exec rest = *exec;
    const size_t scores = score_bytes(call);
    split(call, exec->workspace, &t);
    rest.workspace = static_cast<char *>(exec->workspace) + scores;
    rest.workspace_bytes -= scores;
    if (t.a.nnz) TRY(fmm_sddmm(&rest, &t.a, t.sddmm.val, t.sddmm.x, t.sddmm.b, &t.e, with.sddmm));
    if (!t.direct) TRY(weigh_all(exec, call, t.e.data));
    return fmm_spmm(&rest, &t.a, &t.e, t.spmm.x, t.spmm.y, t.spmm.reduce, with.spmm);
}

/* The three functions that the registry names for each pair of algorithms. */
#define TWO_CALLS(name, with)                                                                      \
    extern "C" bool fmm_fused_##name##_supports(const fmm_call *call)                              \
    {                                                                                              \
        return supports(call, with);                                                               \
    }                                                                                              \
    extern "C" size_t fmm_fused_##name##_workspace(const fmm_call *call)                           \
    {                                                                                              \
        return workspace(call, with);                                                              \
    }                                                                                              \
    extern "C" fmm_status fmm_fused_##name(const fmm_exec *exec, const fmm_call *call)             \
    {                                                                                              \
        return run(exec, call, with);                                                              \
    }
TWO_CALLS(back_to_back, OURS)
TWO_CALLS(cusparse, CUSPARSE)
TWO_CALLS(cublas, CUBLAS)
