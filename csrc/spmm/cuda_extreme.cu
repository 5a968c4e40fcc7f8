/* The gradients of max and min on CUDA: the forms of extreme.c.
 *
 * An entry (i, j) is chosen in channel c if val * x[j,h,c] gives y[i,h,c]. Each form sums something
 * over the chosen entries:
 *
 *     ROWS, COUNTS  out[i,h,c] = sum over the entries of row i      a thread owns (row, h, c)
 *     COLS          out[j,h,c] = the same over the transpose        a thread owns (row, h, c)
 *     EDGES         out[p,h]   = sum over the channels of entry p   a warp owns (p, h)
 *
 * For rows and columns the lanes of a warp take neighbouring channels, so every read of x, y, z and
 * g is a run of memory. For edges the lanes share the channels, and their sums meet in a fixed tree
 * of shuffles. Terms are added in the order of storage and in double, so that long sums of shorter
 * types lose nothing that the output could hold. */
#include "../cuda/reference.cuh"
#include "extreme.h"

template <class T> struct extreme_args { /* names as in extreme.h */
    csr_view a;
    edge_view val, weight;
    fmm_dense x, y, z, g; /* data NULL: ones */
    fmm_dense out;        /* of T; of COUNTS in the type of sums */
    int64_t heads, feat;
    int form;
};

template <class T>
static __device__ __forceinline__ typename sum_of<T>::type at(const fmm_dense &d, int64_t row,
                                                              int64_t h, int64_t c)
{
    if (!d.data) return 1;
    return widen(*element<T>(d, row, h, c));
}

/* Whether entry (i, j) is chosen. The product is rounded as y was, so that equal means equal. */
template <class T>
static __device__ __forceinline__ bool chosen(const extreme_args<T> &s,
                                              typename sum_of<T>::type val, int64_t i, int64_t j,
                                              int64_t h, int64_t c)
{
    return widen(narrow<T>(val * at<T>(s.x, j, h, c))) == at<T>(s.y, i, h, c);
}

/* ROWS, COUNTS and COLS. For COLS the matrix at hand is the transpose, so its rows are j. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    extreme_rows(const __grid_constant__ extreme_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const bool cols = s.form == FMM_EXTREME_COLS;
    const int64_t count = s.a.rows * s.heads * s.feat;
    for (int64_t k = this_thread(); k < count; k += all_threads()) {
        const int64_t c = k % s.feat, h = k / s.feat % s.heads, row = k / s.feat / s.heads;
        int64_t begin;
        const int64_t terms = row_range(s.a, row, &begin);
        double total = 0;
        for (int64_t p = begin; p < begin + terms; p++) {
            const int32_t col = __ldg(s.a.idx + p);
            if ((uint32_t)col >= (uint32_t)s.a.cols) continue;
            const int64_t edge = edge_of(s.val, p), i = cols ? col : row, j = cols ? row : col;
            if (!chosen<T>(s, edge_value<A>(s.val, edge, h), i, j, h, c)) continue;
            const A other = cols ? at<T>(s.g, i, h, c) : at<T>(s.z, j, h, c);
            total += double(edge_value<A>(s.weight, edge, h)) * double(other);
        }
        if (s.form == FMM_EXTREME_COUNTS)
            *element<A>(s.out, row, h, c) = A(total);
        else
            *element<T>(s.out, row, h, c) = narrow<T>(A(total));
    }
}

/* EDGES. An entry whose column lies outside gets 0. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    extreme_edges(const __grid_constant__ extreme_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int lane = threadIdx.x % WARP;
    const int64_t count = s.a.nnz * s.heads;
    for (int64_t k = this_thread() / WARP; k < count; k += all_threads() / WARP) {
        const int64_t p = k / s.heads, h = k % s.heads, edge = edge_at(s.val, p);
        if (!is_edge(s.val, edge)) continue;
        const int64_t i = row_of(s.a, p);
        const int32_t j = __ldg(s.a.idx + p);
        double sum = 0; /* of the lane's channels */
        if ((uint32_t)j < (uint32_t)s.a.cols) {
            const A val = edge_value<A>(s.val, edge, h);
            for (int64_t c = lane; c < s.feat; c += WARP)
                if (chosen<T>(s, val, i, j, h, c))
                    sum += double(at<T>(s.z, j, h, c)) * double(at<T>(s.g, i, h, c));
        }
        sum = lane_sum<WARP>(sum);
        if (!lane) *element<T>(s.out, edge, h, 0) = narrow<T>(A(sum));
    }
}

/* ---- on the host ---- */

/* A thread for each output of rows and columns, a warp for each of edges; both walk on from there.
 */
template <class T> static void launch(const fmm_exec *exec, const fmm_extreme_call *call)
{
    enum { BLOCKS_MAX = 1 << 20 };
    extreme_args<T> s;
    s.a = view_csr(call->a);
    s.val = view_edges(call->a, call->val), s.weight = view_edges(call->a, call->weight);
    s.x = *call->x, s.y = *call->y, s.z = *call->z, s.g = *call->g, s.out = *call->out;
    s.heads = call->x->heads, s.feat = call->x->feat, s.form = call->form;
    const bool edges = call->form == FMM_EXTREME_EDGES;
    const int64_t threads =
        edges ? call->a->nnz * s.heads * WARP : call->a->rows * s.heads * s.feat;
    const unsigned blocks = (unsigned)smaller(ceil_div(threads, BLOCK), BLOCKS_MAX);
    if (!blocks) return;
    if (edges)
        extreme_edges<T><<<blocks, BLOCK, 0, stream_of(exec)>>>(s);
    else
        extreme_rows<T><<<blocks, BLOCK, 0, stream_of(exec)>>>(s);
}

/* One launch, whatever the form. */
extern "C" fmm_status fmm_extreme_cuda(const fmm_exec *exec, const fmm_extreme_call *call)
{
    return on_device_as("extreme", exec, call->x->dtype,
                        [&](auto element) { launch<decltype(element)>(exec, call); });
}
