/* SpMM `segments`: y[i,h,:] = reduce_p val[eid[p],h] * x[idx[p],h,:], for one element type T.
 *
 * Work is dealt by the plan (plan.cuh): a short row, or a piece of a long one, and one head go to a
 * group of LANES lanes. The group reads idx and val of CHUNK entries at once, hands them round by
 * shuffles, and gathers several rows of x at a time, VEC elements (16 bytes, if x lies so) a lane
 * and load, PER loads a row; the sums stay in registers. Groups of one row, different in head, are
 * neighbours in a warp, so their loads fall together. gridDim.y walks over tiles of columns.
 *
 * A whole row is written once, straight to y. A piece goes to its own slot of the workspace, and a
 * second kernel, one block per long row, adds its slots. Every sum has one owner and an order that
 * depends on the matrix alone: the same bits every time. No accumulator adds more than 512 terms:
 * pieces end there, and so do the stretches of slots in the second kernel.
 *
 * Gathering is what takes the time: nnz * feat elements through L2. What helps is more loads in
 * flight, warps without idle groups (rows of one length side by side), and no second read. */
#ifndef FMM_CUDA_SPMM_CUH
#define FMM_CUDA_SPMM_CUH

#include "segments.cuh"

template <class T> struct spmm_args {
    csr_view a;
    edge_view val;
    plan_view plan;
    const T *x;
    T *y;
    typename sum_of<T>::type *partial; /* [segments][heads][width], width: feat in whole vectors */
    int64_t x_head, y_row, y_head, feat, width;
    uint64_t per_head; /* 2^64 / heads, rounded up */
    uint32_t x_row;
    int32_t heads;
    int reduce;
};

/* How terms meet. max and min are one: a minimum is the maximum of negated terms. A term that is not
 * there (past the end, or its column outside the matrix) is weight() times blank(). */
struct reduce_sum {
    template <class A> static __device__ A start(void) { return A(0); }
    template <class A> static __device__ A absent(void) { return A(0); }
    template <class T> static __device__ T blank(void) { return T(0.f); }
    template <class A> static __device__ A weight(A w, int) { return w; }
    static __device__ float add(float sum, float w, float x) { return fmaf(w, x, sum); }
    static __device__ double add(double sum, double w, double x) { return fma(w, x, sum); }
    template <class A> static __device__ A join(A a, A b) { return a + b; }
    template <class A> static __device__ A finish(A sum, int64_t terms, int reduce)
    {
        return reduce == FMM_MEAN && terms ? sum / A(terms) : sum;
    }
};
struct reduce_extreme {
    template <class A> static __device__ A start(void) { return -A(INFINITY); }
    template <class A> static __device__ A absent(void) { return A(1); }
    template <class T> static __device__ T blank(void) { return T(-INFINITY); }
    template <class A> static __device__ A weight(A w, int reduce)
    {
        return reduce == FMM_MIN ? -w : w;
    }
    /* NaN, once there, stays. */
    template <class A> static __device__ A join(A a, A b) { return b > a || b != b ? b : a; }
    template <class A> static __device__ A add(A most, A w, A x) { return join(most, w * x); }
    template <class A> static __device__ A finish(A most, int64_t terms, int reduce)
    {
        return !terms ? A(0) : reduce == FMM_MIN ? -most : most;
    }
};

/* What the kernel is compiled for: values absent; [nnz] of type T in the matrix's own order; or any,
 * per head, of any type, through eid. */
enum values { ONES, PLAIN, ANY };

template <class T, int VALUES>
static __device__ __forceinline__ typename sum_of<T>::type value_at(const spmm_args<T> &s, int64_t p,
                                                                    int64_t head)
{
    typedef typename sum_of<T>::type A;
    if (VALUES == ONES) return A(1);
    if (VALUES == PLAIN) return widen(__ldg(static_cast<const T *>(s.val.data) + p));
    return edge_value<A>(s.val, edge_of(s.val, p), head);
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS, int VALUES, class Reduce>
static __global__ void __launch_bounds__(BLOCK, BLOCKS)
    spmm_segments(const __grid_constant__ spmm_args<T> s)
{
    typedef typename sum_of<T>::type A;
    enum { EACH = LANES < 8 ? 8 / LANES : 1, CHUNK = LANES * EACH };
    const int lane = threadIdx.x % LANES;
    const int64_t item = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES;
    const int64_t column = (int64_t(blockIdx.y) * LANES * PER + lane) * VEC;

    int32_t segments, long_rows, filled;
    plan_counts(s.a, s.plan, &segments, &long_rows, &filled);
    const int64_t items = segments + s.a.rows - long_rows;
    const int64_t k = VALUES == ANY ? item_of(item, s.heads, s.per_head) : item;
    const int64_t head = VALUES == ANY ? item - k * s.heads : 0;
    const bool mine = k < items;
    work w = {0, 0, 0};
    if (mine) w = plan_item(s.a, s.plan, k, segments, long_rows, filled);
    const int longest = longest_in_warp<LANES>(w.length);
    const T *const x = s.x + (VALUES == ANY ? head * s.x_head : 0) + column;

    A sum[PER][VEC];
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int v = 0; v < VEC; v++) sum[i][v] = Reduce::template start<A>();

    __align__(16) T blanks[VEC];
#pragma unroll
    for (int v = 0; v < VEC; v++) blanks[v] = Reduce::template blank<T>();
    const PACK(T, VEC) blank = *reinterpret_cast<const PACK(T, VEC) *>(blanks);

    int32_t near[EACH], near_next[EACH];
    A weight[EACH], weight_next[EACH];
    auto fetch = [&](int from, int32_t *to, A *by) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int at = from + e * LANES + lane;
            to[e] = -1;
            by[e] = Reduce::template absent<A>();
            if (at < w.length) {
                const int32_t j = __ldg(s.a.idx + w.begin + at);
                if ((uint32_t)j < (uint32_t)s.a.cols) {
                    to[e] = j;
                    by[e] = Reduce::weight(value_at<T, VALUES>(s, w.begin + at, head), s.reduce);
                }
            }
        }
    };

    fetch(0, near, weight);
    for (int done = 0; done < longest; done += CHUNK) {
        fetch(done + CHUNK, near_next, weight_next);
#pragma unroll
        for (int c = 0; c < CHUNK; c += FLY) {
            if (c && done + c >= longest) break;
            PACK(T, VEC) row[FLY][PER];
#pragma unroll
            for (int f = 0; f < FLY; f++) {
                const int32_t j = __shfl_sync(ALL, near[(c + f) / LANES], (c + f) % LANES, LANES);
                const T *const from = x + uint64_t(uint32_t(j)) * s.x_row;
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    row[f][i] = blank;
                    if (j >= 0 && column + i * LANES * VEC < s.feat)
                        row[f][i] = load<T, VEC>(from + i * LANES * VEC);
                }
            }
#pragma unroll
            for (int f = 0; f < FLY; f++) {
                const A by = __shfl_sync(ALL, weight[(c + f) / LANES], (c + f) % LANES, LANES);
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    A term[VEC];
                    unpack<T, VEC>(row[f][i], term);
#pragma unroll
                    for (int v = 0; v < VEC; v++)
                        sum[i][v] = Reduce::add(sum[i][v], by, term[v]);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) near[e] = near_next[e], weight[e] = weight_next[e];
    }

    if (!mine) return;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int64_t c = column + i * LANES * VEC;
        if (c >= s.feat) continue;
        if (k < segments) {
            A *const to = s.partial + (k * s.heads + head) * s.width + c;
#pragma unroll
            for (int v = 0; v < VEC; v++) to[v] = sum[i][v];
        } else {
#pragma unroll
            for (int v = 0; v < VEC; v++)
                sum[i][v] = Reduce::finish(sum[i][v], w.length, s.reduce);
            store<T, VEC>(s.y + w.row * s.y_row + head * s.y_head + c, sum[i]);
        }
    }
}

/* Adds the slots of long rows. A block takes a row and head: `across` threads span the columns, the
 * others split its slots; they meet in shared memory, in a tree of fixed shape. */
template <class T, class Reduce>
static __global__ void __launch_bounds__(BLOCK)
    spmm_join(const __grid_constant__ spmm_args<T> s, int across)
{
    typedef typename sum_of<T>::type A;
    __shared__ A meet[BLOCK];
    cudaGridDependencySynchronize();
    int32_t segments, long_rows, filled;
    plan_counts(s.a, s.plan, &segments, &long_rows, &filled);
    const int stretch = threadIdx.x / across, stretches = BLOCK / across;
    const int64_t stride = s.heads * s.width;

    for (int64_t task = blockIdx.x; task < int64_t(long_rows) * s.heads; task += gridDim.x) {
        const int64_t k = task / s.heads, head = task % s.heads;
        const int64_t row = clamp(__ldg(s.plan.order + k), 0, s.a.rows - 1);
        const int64_t first = clamp(__ldg(s.plan.first + k), 0, segments);
        int64_t begin;
        const int64_t length = row_range(s.a, row, &begin);
        const int64_t pieces = min(pieces_of(length, s.plan.segment), segments - first);
        for (int64_t tile = 0; tile < s.feat; tile += across) {
            const int64_t c = tile + threadIdx.x % across;
            A total = Reduce::template start<A>();
            if (c < s.feat) {
                const A *const from = s.partial + first * stride + head * s.width + c;
                for (int64_t p = stretch; p < pieces; p += int64_t(CHAIN) * stretches) {
                    const int64_t end = min(pieces, p + int64_t(CHAIN) * stretches);
                    A sum = Reduce::template start<A>();
#pragma unroll 8
                    for (int64_t q = p; q < end; q += stretches)
                        sum = Reduce::join(sum, __ldcs(from + q * stride));
                    total = Reduce::join(total, sum);
                }
            }
            for (int half = stretches / 2; half; half /= 2) {
                meet[threadIdx.x] = total;
                __syncthreads();
                if (stretch < half) total = Reduce::join(total, meet[threadIdx.x + half * across]);
                __syncthreads();
            }
            if (stretch == 0 && c < s.feat)
                s.y[row * s.y_row + head * s.y_head + c] =
                    narrow<T>(Reduce::finish(total, length, s.reduce));
        }
    }
}

/* Launches `join` so that its blocks are ready when the last block of `segments` ends. */
template <class T, class Reduce>
static void launch_join(cudaStream_t stream, const spmm_args<T> &s)
{
    int across = 32;
    while (across < BLOCK / 4 && across < s.feat) across *= 2;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)smaller(s.plan.long_rows_max * int64_t(s.heads), 1024));
    config.blockDim = dim3(BLOCK);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, spmm_join<T, Reduce>, s, across);
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS>
static void launch_segments(cudaStream_t stream, const spmm_args<T> &s)
{
    const int64_t items = (s.plan.segments_max + s.a.rows) * int64_t(s.heads);
    const dim3 grid(blocks_for(items * LANES), (unsigned)ceil_div(s.feat, LANES * PER * VEC));
    const bool sum = s.reduce == FMM_SUM || s.reduce == FMM_MEAN;
    if (!sum)
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, ANY, reduce_extreme><<<grid, BLOCK, 0, stream>>>(s);
    else if (s.heads == 1 && !s.val.data)
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, ONES, reduce_sum><<<grid, BLOCK, 0, stream>>>(s);
    else if (s.heads == 1 && !s.val.eid && s.val.dtype == dtype_of<T>() && s.val.row_stride == 1)
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, PLAIN, reduce_sum><<<grid, BLOCK, 0, stream>>>(s);
    else
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, ANY, reduce_sum><<<grid, BLOCK, 0, stream>>>(s);
    if (!s.plan.long_rows_max) return;
    if (sum)
        launch_join<T, reduce_sum>(stream, s);
    else
        launch_join<T, reduce_extreme>(stream, s);
}

/* Lanes and loads for a row of x: the fewest lanes that span it with one load each up to 256 bytes,
 * then two loads each, which leaves fewer lanes to hand idx and val to. */
template <class T>
static void choose_lanes(cudaStream_t stream, const spmm_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T) };
    const int64_t n = ceil_div(s.feat, vec);
    if (vec == V && n <= 2) return launch_segments<T, V, 2, 1, 8, 4>(stream, s);
    if (vec == V && n <= 4) return launch_segments<T, V, 4, 1, 8, 4>(stream, s);
    if (vec == V && n <= 8) return launch_segments<T, V, 8, 1, 8, 4>(stream, s);
    if (vec == V && n <= 16) return launch_segments<T, V, 16, 1, 8, 4>(stream, s);
    if (vec == V && n <= 32) return launch_segments<T, V, 16, 2, 4, 3>(stream, s);
    if (vec == V) return launch_segments<T, V, 32, 2, 4, 3>(stream, s);
    if (n <= 8) return launch_segments<T, 1, 8, 1, 8, 4>(stream, s);
    if (n <= 32) return launch_segments<T, 1, 32, 1, 8, 4>(stream, s);
    return launch_segments<T, 1, 32, 4, 4, 4>(stream, s);
}

static inline int64_t partial_width(int64_t feat) { return ceil_div(feat, 4) * 4; }

template <class T> static fmm_status spmm_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const bool shared = !call->val || !call->val->data || call->val->heads == 1;
    const bool flat = shared && can_be_flat(call->x) && can_be_flat(call->y);
    const fmm_dense x = flat ? flat_heads(call->x) : *call->x;
    const fmm_dense y = flat ? flat_heads(call->y) : *call->y;
    int before;
    TRY(cuda_enter("spmm", exec, &before));

    spmm_args<T> s;
    s.a = view_csr(a);
    s.val = view_edges(a, call->val);
    s.plan = plan_for_call(exec, a);
    s.x = static_cast<const T *>(x.data);
    s.y = static_cast<T *>(y.data);
    s.partial = reinterpret_cast<typename sum_of<T>::type *>(static_cast<char *>(exec->workspace) +
                                                             plan_workspace(a));
    s.x_row = (uint32_t)x.row_stride;
    s.x_head = x.head_stride;
    s.y_row = y.row_stride;
    s.y_head = y.head_stride;
    s.feat = x.feat;
    s.width = partial_width(x.feat);
    s.heads = (int32_t)x.heads;
    s.per_head = reciprocal(x.heads);
    s.reduce = call->reduce;

    const int full = 16 / sizeof(T);
    const bool packs = lies_in_packs(&x, sizeof(T), full) && lies_in_packs(&y, sizeof(T), full);
    const cudaStream_t stream = stream_of(exec);
    choose_lanes(stream, s, packs ? full : 1);
    return cuda_leave("spmm", exec, before);
}

#endif
