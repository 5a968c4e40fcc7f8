/* What the lessons share: their operands, sums that stay short, and how one is listed and launched.
 *
 *     lessons.cu ---- loads ----> a lesson's list ---- run(exec, call) ----> run_spmm, run_sddmm
 *                                                                                 |
 *     kernel<<<grid>>>(operands) <---- launch(operands), the lesson's own <--- the call's dtype
 *
 * A lesson is one published way to share out the work of SpMM, SDDMM or fused (lesson_fused.cuh),
 * for f32 and f64, kept close to how its paper draws it. None is tuned: the point is to see what
 * one idea gives. All of them take edge values of any dtype, an edge order, heads (grid z) and
 * strides as given, compute sums only, and own every output once: no atomics, so each is
 * deterministic, save blocks_atomic and gather_wall, which add by them.
 *
 * Nothing here trusts the content of an array: an entry whose column lies outside is skipped. */
#pragma once

#include "../cuda/search.cuh"

enum { GRID_YZ = 65535 /* blocks along y or z; x takes 2^31 - 1 */ };

/* ---- on the device ---- */

/* N sums of many terms. After every tile of at most 512 terms the caller folds, so that no
 * accumulator adds more than about 2 * 512 terms in a row: single-precision sums of a million equal
 * terms would otherwise drift. They begin as {}. */
template <class T, int N = 1> struct sums {
    T part[N], whole[N];
    int terms;
    __device__ __forceinline__ void fold(int added)
    {
        if ((terms += added) < CHAIN) return;
        UNROLLED(k, N) whole[k] += part[k], part[k] = T(0);
        terms = 0;
    }
    __device__ __forceinline__ T total(int k = 0) const { return whole[k] + part[k]; }
};

/* < x, y > over the channels first, first + step, ... before feat. */
template <class T>
static __device__ __forceinline__ T dot_of(const T *x, const T *y, int64_t feat, int64_t first = 0,
                                           int64_t step = 1)
{
    sums<T> dot = {};
    for (int64_t c = first; c < feat; c += step) {
        dot.part[0] += __ldg(x + c) * __ldg(y + c);
        dot.fold(1);
    }
    return dot.total();
}

/* y = A x, of `feat` channels a head. */
template <class T> struct spmm_args {
    csr_view a;
    edge_view val;
    dense_view<const T> x;
    dense_view<T> y;
    int64_t feat;
};

/* An entry of the matrix as SpMM uses it; j < 0: skip it. Column and value travel together, since
 * whoever needs one needs the other. */
template <class T> struct entry {
    int32_t j;
    T w;
};

template <class T>
static __device__ __forceinline__ entry<T> fetch(const spmm_args<T> &s, int64_t p, int64_t h)
{
    const int32_t j = __ldg(s.a.idx + p);
    if ((uint32_t)j >= (uint32_t)s.a.cols) return entry<T>{-1, T(0)};
    return entry<T>{j, edge_value<T>(s.val, edge_of(s.val, p), h)};
}

/* e = val times a b^T at the entries of s. */
template <class T> struct sddmm_args {
    csr_view s;
    edge_view val;
    dense_view<const T> a, b;
    dense_view<T> e;
    int64_t feat;
};

/* The result of entry p. Where it goes is the caller's order, which is checked like an index: two
 * entries never share a place, so there is one owner and no atomic. */
template <class T>
static __device__ __forceinline__ void finish(const sddmm_args<T> &s, int64_t p, int64_t h, T dot)
{
    const int64_t edge = edge_at(s.val, p);
    if (is_edge(s.val, edge)) *s.e.at(edge, h) = dot * edge_value<T>(s.val, edge, h);
}

/* Entry p of row i by one thread, from start to end. */
template <class T>
static __device__ __forceinline__ void one_entry(const sddmm_args<T> &s, int64_t p, int64_t i,
                                                 int64_t h)
{
    const int32_t j = __ldg(s.s.idx + p);
    const bool inside = (uint32_t)j < (uint32_t)s.s.cols;
    finish(s, p, h, inside ? dot_of<T>(s.a.at(i, h), s.b.at(j, h), s.feat) : T(0));
}

/* ---- on the host ---- */

/* The guard of every lesson: f32 and f64, sums, and sizes that its grids can span. */
static inline bool lesson_supports(const fmm_call *call)
{
    const fmm_dense *x = call->x;
    return (x->dtype == FMM_F32 || x->dtype == FMM_F64) && call->reduce == FMM_SUM &&
           x->heads <= GRID_YZ && x->feat <= GRID_YZ * (int64_t)WARP &&
           call->a->rows <= INT32_MAX && call->a->nnz <= INT32_MAX * (int64_t)WARP;
}

/* A call's operands for kernels of one type, which is that of the last argument. */
template <class T> static spmm_args<T> spmm_of(const fmm_call *call, T)
{
    return spmm_args<T>{view_csr(call->a), view_edges(call->a, call->val),
                        view_dense<const T>(call->x), view_dense<T>(call->y), call->x->feat};
}

template <class T> static sddmm_args<T> sddmm_of(const fmm_call *call, T)
{
    const fmm_dense *a = call->x, *b = call->b;
    return sddmm_args<T>{view_csr(call->a),      view_edges(call->a, call->val),
                         view_dense<const T>(a), view_dense<const T>(b),
                         view_dense<T>(call->y), a->feat};
}

/* Runs launch(a number of the dtype) with the call's device current. */
template <class Launch>
static fmm_status run_lesson(const char *op, const fmm_exec *exec, fmm_dtype dtype, Launch launch)
{
    return on_device(op, exec, [&] { for_wide_dtype(dtype, launch); });
}

/* The same with launch(operands). */
template <class Launch>
static fmm_status run_spmm(const fmm_exec *exec, const fmm_call *call, Launch launch)
{
    return run_lesson("spmm", exec, call->x->dtype, [&](auto t) { launch(spmm_of(call, t)); });
}

template <class Launch>
static fmm_status run_sddmm(const fmm_exec *exec, const fmm_call *call, Launch launch)
{
    if (!call->a->rows || !call->a->nnz) return FMM_OK;
    return run_lesson("sddmm", exec, call->x->dtype, [&](auto t) { launch(sddmm_of(call, t)); });
}

/* x blocks along x; y and z are heads and tiles, which lesson_supports bounds. */
static inline dim3 grid_of(int64_t x, int64_t y, int64_t z)
{
    return dim3((unsigned)smaller(x, INT32_MAX), (unsigned)smaller(y, GRID_YZ), (unsigned)z);
}

typedef fmm_status lesson_run(const fmm_exec *, const fmm_call *);
typedef size_t lesson_workspace(const fmm_call *);
typedef bool lesson_guard(const fmm_call *);

/* An entry of a lesson's list; a list ends with {}, and lessons.cu registers it. */
static inline fmm_algorithm lesson(const char *name, const char *about, const char *source,
                                   lesson_run *run, lesson_guard *guard = lesson_supports,
                                   lesson_workspace *workspace = NULL, bool deterministic = true)
{
    return fmm_algorithm{0, name, about, source, deterministic, guard, workspace, run};
}
