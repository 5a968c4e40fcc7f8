/* The three forms of extreme.c on CUDA.
 *
 * ROWS and COLS: a thread owns one channel of one row of the matrix at hand; a warp's lanes take
 * neighbouring channels, so every read of x, y, z, g is a run of memory. EDGES: a warp owns an
 * entry and its lanes share the channels, which meet in a fixed tree of shuffles; the entry's row
 * is found by bisection. Terms are added in storage order, at most CHAIN to an accumulator. */
#include "../cuda/common.cuh"

extern "C" {
#include "extreme.h"
}

struct operand {
    const void *data; /* NULL: ones */
    int64_t row_stride, head_stride;
};

template <class T> struct select_args {
    csr_view a;
    edge_view val, weight;
    operand x, y, z, g;
    T *out;
    typename sum_of<T>::type *counts; /* out of COUNTS */
    int64_t out_row, out_head;
    int64_t heads, feat;
    int form;
};

template <class T>
static __device__ __forceinline__ typename sum_of<T>::type at(const operand &d, int64_t row,
                                                              int64_t h, int64_t c)
{
    if (!d.data) return 1;
    return widen(static_cast<const T *>(d.data)[row * d.row_stride + h * d.head_stride + c]);
}

/* M[p,h,c] of entry (i, j): the product is rounded as y was. */
template <class T>
static __device__ __forceinline__ bool chosen(const select_args<T> &s, typename sum_of<T>::type val,
                                              int64_t i, int64_t j, int64_t h, int64_t c)
{
    return widen(narrow<T>(val * at<T>(s.x, j, h, c))) == at<T>(s.y, i, h, c);
}

template <class T>
static __global__ void __launch_bounds__(BLOCK)
    select_rows(const __grid_constant__ select_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const bool cols = s.form == FMM_SELECT_COLS;
    const int64_t count = s.a.rows * s.heads * s.feat, step = int64_t(gridDim.x) * BLOCK;
    for (int64_t k = int64_t(blockIdx.x) * BLOCK + threadIdx.x; k < count; k += step) {
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
        const int64_t to = row * s.out_row + h * s.out_head + c;
        if (s.counts)
            s.counts[to] = A(total);
        else
            s.out[to] = narrow<T>(A(total));
    }
}

template <class T>
static __global__ void __launch_bounds__(BLOCK)
    select_edges(const __grid_constant__ select_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int lane = threadIdx.x % WARP;
    const int64_t count = s.a.nnz * s.heads, step = int64_t(gridDim.x) * (BLOCK / WARP);
    for (int64_t k = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / WARP; k < count; k += step) {
        const int64_t p = k / s.heads, h = k % s.heads, edge = edge_at(s.val, p);
        if (!is_edge(s.val, edge)) continue;
        const int32_t j = __ldg(s.a.idx + p);
        int64_t low = 0, high = s.a.rows - 1; /* the last row that begins at or before p */
        while (low < high) {
            const int64_t middle = (low + high + 1) / 2;
            if (__ldg(s.a.ptr + middle) <= p)
                low = middle;
            else
                high = middle - 1;
        }
        double sum = 0;
        if ((uint32_t)j < (uint32_t)s.a.cols) {
            const A val = edge_value<A>(s.val, edge, h);
            for (int64_t c = lane; c < s.feat; c += WARP)
                if (chosen<T>(s, val, low, j, h, c))
                    sum += double(at<T>(s.z, j, h, c)) * double(at<T>(s.g, low, h, c));
        }
#pragma unroll
        for (int far = WARP / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        if (!lane) s.out[edge * s.out_row + h * s.out_head] = narrow<T>(A(sum));
    }
}

static operand view(const fmm_dense *d) { return operand{d->data, d->row_stride, d->head_stride}; }

template <class T> static void launch(const fmm_exec *exec, const fmm_select_call *call)
{
    enum { BLOCKS_MAX = 1 << 20 };
    select_args<T> s;
    s.a = view_csr(call->a);
    s.val = view_edges(call->a, call->val);
    s.weight = view_edges(call->a, call->weight);
    s.x = view(call->x), s.y = view(call->y), s.z = view(call->z), s.g = view(call->g);
    s.out = static_cast<T *>(call->out->data);
    s.counts = call->form == FMM_SELECT_COUNTS
                   ? static_cast<typename sum_of<T>::type *>(call->out->data)
                   : NULL;
    s.out_row = call->out->row_stride, s.out_head = call->out->head_stride;
    s.heads = call->x->heads, s.feat = call->x->feat;
    s.form = call->form;
    const bool edges = call->form == FMM_SELECT_EDGES;
    const int64_t threads =
        edges ? call->a->nnz * s.heads * WARP : call->a->rows * s.heads * s.feat;
    const unsigned blocks = (unsigned)smaller(ceil_div(threads, BLOCK), BLOCKS_MAX);
    if (!blocks) return;
    if (edges)
        select_edges<T><<<blocks, BLOCK, 0, stream_of(exec)>>>(s);
    else
        select_rows<T><<<blocks, BLOCK, 0, stream_of(exec)>>>(s);
}

extern "C" fmm_status fmm_cuda_select(const fmm_exec *exec, const fmm_select_call *call)
{
    int before;
    TRY(cuda_enter("select", exec, &before));
    switch (call->x->dtype) {
    case FMM_F64:
        launch<double>(exec, call);
        break;
    case FMM_F16:
        launch<__half>(exec, call);
        break;
    case FMM_BF16:
        launch<__nv_bfloat16>(exec, call);
        break;
    default:
        launch<float>(exec, call);
        break;
    }
    return cuda_leave("select", exec, before);
}
