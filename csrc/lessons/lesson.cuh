/* What the lessons share: their operands, sums that stay short, and how one is listed and launched.
 *
 * A lesson is one published way to share out the work of SpMM, SDDMM or fused (lesson_fused.cuh),
 * for f32 and f64, kept close to how its paper draws it. None is tuned: the point is to see what
 * one idea gives. All of them take edge values of any dtype, an edge order, heads (grid z) and
 * strides as given, compute sums only, and own every output once: no atomics, so each is
 * deterministic, save blocks_atomic and gather_wall, which add by them.
 *
 * Nothing here trusts the content of an array: an entry whose column lies outside is skipped. */
#ifndef FMM_LESSON_CUH
#define FMM_LESSON_CUH

#include "../cuda/common.cuh"

enum { GRID_YZ = 65535 /* blocks along y or z; x takes 2^31 - 1 */ };

/* ---- on the device ---- */

/* N sums of many terms. After every tile of at most 512 terms the caller folds, so that no
 * accumulator adds more than about 2 * 512 terms in a row: single-precision sums of a million equal
 * terms would otherwise drift. */
template <class T, int N = 1> struct sums {
    T part[N], whole[N];
    int terms;
    __device__ __forceinline__ void start(void)
    {
#pragma unroll
        for (int k = 0; k < N; k++) part[k] = whole[k] = T(0);
        terms = 0;
    }
    __device__ __forceinline__ void fold(int added)
    {
        if ((terms += added) < CHAIN) return;
#pragma unroll
        for (int k = 0; k < N; k++) whole[k] += part[k], part[k] = T(0);
        terms = 0;
    }
    __device__ __forceinline__ T total(int k = 0) const { return whole[k] + part[k]; }
};

/* A sum over the lanes of a group of WIDTH neighbours; every lane of the warp calls it. */
template <int WIDTH, class T> static __device__ __forceinline__ T lane_sum(T v)
{
#pragma unroll
    for (int d = WIDTH / 2; d; d /= 2) v += __shfl_xor_sync(ALL, v, d);
    return v;
}

template <class T> struct spmm_args {
    csr_view a;
    edge_view val;
    const T *x;
    T *y;
    int64_t feat, x_row, x_head, y_row, y_head;
    __device__ __forceinline__ const T *x_at(int64_t j, int64_t h) const
    {
        return x + j * x_row + h * x_head;
    }
    __device__ __forceinline__ T *y_at(int64_t i, int64_t h) const
    {
        return y + i * y_row + h * y_head;
    }
};

/* An entry of the matrix as SpMM uses it; j < 0: skip it. */
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

template <class T> struct sddmm_args {
    csr_view s;
    edge_view val;
    const T *a, *b;
    T *e;
    int64_t feat, a_row, a_head, b_row, b_head, e_row, e_head;
};

/* The row of entry p, found by bisection: the last whose first entry is not past it. */
static __device__ __forceinline__ int64_t row_of(const csr_view &s, int64_t p)
{
    int64_t low = 0, high = s.rows - 1;
    while (low < high) {
        const int64_t middle = high - (high - low) / 2;
        if (__ldg(s.ptr + middle) <= p)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

template <class T>
static __device__ __forceinline__ void finish(const sddmm_args<T> &s, int64_t p, int64_t h, T dot)
{
    const int64_t edge = edge_at(s.val, p);
    if (is_edge(s.val, edge))
        s.e[edge * s.e_row + h * s.e_head] = dot * edge_value<T>(s.val, edge, h);
}

/* Entry p of row i by one thread, from start to end. */
template <class T>
static __device__ __forceinline__ void one_entry(const sddmm_args<T> &s, int64_t p, int64_t i,
                                                 int64_t h)
{
    const int32_t j = __ldg(s.s.idx + p);
    sums<T> dot;
    dot.start();
    if ((uint32_t)j < (uint32_t)s.s.cols) {
        const T *const a = s.a + i * s.a_row + h * s.a_head;
        const T *const b = s.b + j * s.b_row + h * s.b_head;
        for (int64_t c = 0; c < s.feat; c++) {
            dot.part[0] += __ldg(a + c) * __ldg(b + c);
            dot.fold(1);
        }
    }
    finish(s, p, h, dot.total());
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

template <class T> static spmm_args<T> spmm_of(const fmm_call *call, T)
{
    const fmm_dense *x = call->x, *y = call->y;
    return spmm_args<T>{view_csr(call->a),
                        view_edges(call->a, call->val),
                        static_cast<const T *>(x->data),
                        static_cast<T *>(y->data),
                        x->feat,
                        x->row_stride,
                        x->head_stride,
                        y->row_stride,
                        y->head_stride};
}

template <class T> static sddmm_args<T> sddmm_of(const fmm_call *call, T)
{
    const fmm_dense *a = call->x, *b = call->b, *e = call->y;
    return sddmm_args<T>{view_csr(call->a),
                         view_edges(call->a, call->val),
                         static_cast<const T *>(a->data),
                         static_cast<const T *>(b->data),
                         static_cast<T *>(e->data),
                         a->feat,
                         a->row_stride,
                         a->head_stride,
                         b->row_stride,
                         b->head_stride,
                         e->row_stride,
                         e->head_stride};
}

/* Runs launch(operands) for the call's dtype with its device current. */
template <class Launch>
static fmm_status run_spmm(const fmm_exec *exec, const fmm_call *call, Launch launch)
{
    int before;
    TRY(cuda_enter("spmm", exec, &before));
    if (call->x->dtype == FMM_F32)
        launch(spmm_of(call, float()));
    else
        launch(spmm_of(call, double()));
    return cuda_leave("spmm", exec, before);
}

template <class Launch>
static fmm_status run_sddmm(const fmm_exec *exec, const fmm_call *call, Launch launch)
{
    if (!call->a->rows || !call->a->nnz) return FMM_OK;
    int before;
    TRY(cuda_enter("sddmm", exec, &before));
    if (call->x->dtype == FMM_F32)
        launch(sddmm_of(call, float()));
    else
        launch(sddmm_of(call, double()));
    return cuda_leave("sddmm", exec, before);
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

#endif
