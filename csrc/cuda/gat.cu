/* The forms of gat.c on CUDA.
 *
 * SCORES and DELTA: a power of two of lanes owns a node's head, takes its channels in turns and
 * meets in a tree of shuffles. SPREAD: a block owns COLUMNS channels of a part's nodes; each thread
 * writes its channel of every eighth node and keeps the sums of the parameters' gradients, which
 * the first threads then join in order. The last block to finish adds up the parts, whichever it
 * is, in their order. Neighbouring threads take neighbouring channels, so that every operand is
 * read once and in whole sectors. */
#include "attention.cuh"

extern "C" {
#include "../gat.h"
}

enum { COLUMNS = FMM_GAT_COLUMNS, TURNS = BLOCK / COLUMNS, PLANES = 3 };
static_assert(FMM_GAT_PACKED == planes_of(FMM_ADDITIVE), "DELTA packs what COLS gathers");

template <class T> struct side {
    T *data;
    int64_t row, head;
    __device__ __forceinline__ T *at(int64_t i, int64_t h) const
    {
        return data + i * row + h * head;
    }
};
template <class T> static side<T> side_of(const fmm_dense &d)
{
    return side<T>{static_cast<T *>(d.data), d.row_stride, d.heads > 1 ? d.head_stride : 0};
}

template <class T> struct gat_args {
    typedef typename sum_of<T>::type A;
    side<const T> x, value, gout, att[2];
    side<T> score[2], out, total[PLANES];
    side<const A> pos, pos_w, lse, glse;
    side<A> delta, parts;
    A *packed;
    uint32_t *arrived;
    int64_t rows, feat, each, count; /* nodes to a part, parts */
    uint64_t per_head;
    int32_t heads, lane_bits;
    A slope;
};

/* < a, b > and < a, c > over the group's lanes, the same in all of them; c may be NULL. Both are
 * read before either is summed over the lanes: a small graph's call lasts as long as its waits. */
template <class T, class U> struct dots {
    typedef typename sum_of<T>::type A;
    A with_b, with_c;
    __device__ __forceinline__ dots(const T *a, const T *b, const U *c, int64_t feat, int lane,
                                    int lanes)
    {
        with_b = 0, with_c = 0;
        for (int64_t from = lane; from < feat; from += int64_t(lanes) * CHAIN) {
            const int64_t end = min(feat, from + int64_t(lanes) * CHAIN);
            A sum_b = 0, sum_c = 0;
#pragma unroll 2
            for (int64_t k = from; k < end; k += lanes) {
                const A v = widen(__ldg(a + k));
                sum_b += v * A(widen(__ldg(b + k)));
                if (c) sum_c += v * A(widen(__ldg(c + k)));
            }
            with_b += sum_b, with_c += sum_c;
        }
        for (int d = lanes / 2; d; d /= 2) {
            with_b += __shfl_xor_sync(ALL, with_b, d);
            with_c += __shfl_xor_sync(ALL, with_c, d);
        }
    }
};

template <class T, bool DELTA>
static __global__ void __launch_bounds__(BLOCK) gat_dots(const __grid_constant__ gat_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int lanes = 1 << s.lane_bits, lane = threadIdx.x & (lanes - 1);
    const int64_t step = int64_t(gridDim.x) * BLOCK >> s.lane_bits, count = s.rows * s.heads;
    const int64_t first = int64_t(blockIdx.x) * BLOCK + threadIdx.x >> s.lane_bits;
    wait_for_previous();
    let_next_start(); /* what the next kernel reads before it waits was there before this one */
    if (DELTA && s.arrived && blockIdx.x == 0)
        for (int64_t k = threadIdx.x; k < ceil_div(s.heads * s.feat, COLUMNS); k += BLOCK)
            s.arrived[k] = 0;
    /* Warps stay whole for the shuffles: groups past the end do the last one's work again. */
    for (int64_t begin = first - first % (WARP >> s.lane_bits); begin < count; begin += step) {
        const int64_t mine = begin + first % (WARP >> s.lane_bits), t = min(mine, count - 1);
        const int64_t i = item_of(t, s.heads, s.per_head), h = t - i * s.heads;
        const bool writes = lane == 0 && mine < count;
        if (DELTA) {
            const bool q = s.score[1].data;
            const A glse = s.glse.data ? __ldg(s.glse.at(i, h)) : A(0);
            const A pos_w = q ? __ldg(s.pos_w.at(i, h)) : A(0),
                    lse = q || s.packed ? __ldg(s.lse.at(i, h)) : A(0);
            const dots<T, A> sum(s.x.at(i, h), s.value.at(i, h), q ? s.pos.at(i, h) : NULL, s.feat,
                                 lane, lanes);
            const A delta = sum.with_b - glse, above = sum.with_c - delta * pos_w;
            const A gq = (A(1) - s.slope) * above + s.slope * glse;
            if (writes) *s.delta.at(i, h) = delta;
            if (writes && q) *s.score[1].at(i, h) = narrow<T>(lse == -A(INFINITY) ? A(0) : gq);
            if (writes && s.packed) {
                A *const to = s.packed + i * FMM_GAT_PACKED * s.heads;
                to[2 * h] = lse_base2(lse), to[2 * h + 1] = delta;
                to[2 * s.heads + h] = widen(*s.score[0].at(i, h));
            }
        } else {
            const dots<T, T> sum(s.x.at(i, h), s.att[0].at(0, h), s.att[1].at(0, h), s.feat, lane,
                                 lanes);
            if (writes) *s.score[0].at(i, h) = narrow<T>(sum.with_b);
            if (writes) *s.score[1].at(i, h) = narrow<T>(sum.with_c);
        }
    }
}

template <class T>
static __global__ void __launch_bounds__(BLOCK) gat_spread(const __grid_constant__ gat_args<T> s)
{
    typedef typename sum_of<T>::type A;
    __shared__ A meet[PLANES][TURNS][COLUMNS];
    __shared__ bool last;
    const int turn = threadIdx.x / COLUMNS, lane = threadIdx.x % COLUMNS;
    const int64_t width = s.heads * s.feat;
    const int64_t tiles = ceil_div(width, COLUMNS), part = blockIdx.x / tiles;
    const int64_t tile = blockIdx.x - part * tiles, column = tile * COLUMNS + lane;
    const bool live = column < width;
    const int64_t h = live ? column / s.feat : 0, c = live ? column - h * s.feat : 0;
    const int64_t end = live ? min((part + 1) * s.each, s.rows) : 0;
    const int planes = s.total[2].data ? PLANES : PLANES - 1;
    wait_for_previous();
    const A att_k = widen(__ldg(s.att[0].at(0, h) + c)),
            att_q = widen(__ldg(s.att[1].at(0, h) + c));
    A sums[PLANES] = {};
#pragma unroll 4
    for (int64_t i = part * s.each + turn; i < end; i += TURNS) {
        const A gk = widen(__ldg(s.score[0].at(i, h))), gq = widen(__ldg(s.score[1].at(i, h)));
        const A x = widen(__ldg(s.x.at(i, h) + c)), gv = widen(__ldg(s.value.at(i, h) + c));
        if (planes == PLANES) sums[2] += A(widen(__ldg(s.gout.at(i, h) + c)));
        sums[0] += gk * x, sums[1] += gq * x;
        s.out.at(i, h)[c] = narrow<T>(gv + gk * att_k + gq * att_q);
    }
    auto join = [&](void) {
        A total = 0;
        for (int p = 0; p < PLANES; p++) meet[p][turn][lane] = sums[p];
        __syncthreads();
        for (int k = 0; turn < PLANES && k < TURNS; k++) total += meet[turn][k][lane];
        return total;
    };
    const bool writes = live && turn < planes;
    const int64_t plane = turn * int64_t(s.heads) + h;
    const A mine = join();
    if (writes) s.parts.at(part, plane)[c] = mine;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(s.arrived + tile, 1) == s.count - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int p = 0; p < PLANES; p++) sums[p] = 0;
    for (int64_t from = turn; live && from < s.count; from += int64_t(TURNS) * CHAIN) {
        const int64_t until = min(s.count, from + int64_t(TURNS) * CHAIN);
        A some[PLANES] = {};
#pragma unroll 4
        for (int64_t k = from; k < until; k += TURNS)
            for (int p = 0; p < PLANES; p++)
                if (p < planes) some[p] += __ldcg(s.parts.at(k, p * int64_t(s.heads) + h) + c);
        for (int p = 0; p < PLANES; p++) sums[p] += some[p];
    }
    const A all = join();
    if (writes) s.total[turn].at(0, h)[c] = narrow<T>(all);
}

/* Single elements, or VEC at a time of operands that lie so; x may be out. */
template <class T, int VEC>
static __global__ void __launch_bounds__(BLOCK) gat_add(const __grid_constant__ gat_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int64_t across = s.heads * (s.feat / VEC), count = s.rows * across;
    wait_for_previous();
    for (int64_t t = int64_t(blockIdx.x) * BLOCK + threadIdx.x; t < count;
         t += int64_t(gridDim.x) * BLOCK) {
        const int64_t i = t / across, rest = t - i * across, h = rest / (s.feat / VEC);
        const int64_t c = (rest - h * (s.feat / VEC)) * VEC;
        A sums[VEC], add[VEC];
        unpack<T, VEC>(*reinterpret_cast<const PACK(T, VEC) *>(s.x.at(i, h) + c), sums);
        unpack<T, VEC>(load<T, VEC>(s.att[0].at(0, h) + c), add);
#pragma unroll
        for (int v = 0; v < VEC; v++) sums[v] += add[v];
        store<T, VEC>(s.out.at(i, h) + c, sums);
    }
}

template <class T> static fmm_status launch(const fmm_exec *exec, const fmm_gat_call *call)
{
    enum { BLOCKS_MAX = 1 << 20 };
    typedef typename sum_of<T>::type A;
    gat_args<T> s = {};
    s.x = side_of<const T>(call->x), s.value = side_of<const T>(call->value);
    s.gout = side_of<const T>(call->gout);
    for (int t = 0; t < 2; t++) {
        s.att[t] = side_of<const T>(call->att[t]);
        s.score[t] = side_of<T>(call->score[t]);
    }
    s.pos = side_of<const A>(call->pos), s.pos_w = side_of<const A>(call->pos_w);
    s.lse = side_of<const A>(call->lse), s.glse = side_of<const A>(call->glse);
    s.delta = side_of<A>(call->delta);
    s.out = side_of<T>(call->out), s.parts = side_of<A>(call->parts);
    for (int p = 0; p < PLANES; p++) s.total[p] = side_of<T>(call->total[p]);
    s.packed = static_cast<A *>(call->packed), s.arrived = call->arrived;
    s.rows = call->x.rows, s.heads = (int32_t)call->x.heads, s.feat = call->x.feat;
    s.each = fmm_gat_rows(FMM_CUDA, s.rows), s.count = fmm_gat_parts(FMM_CUDA, s.rows);
    s.per_head = reciprocal(s.heads);
    s.slope = A(call->slope);
    while (s.lane_bits < 5 && int64_t(1) << s.lane_bits < s.feat) s.lane_bits++;
    REQUIRE(call->x.heads <= INT32_MAX, FMM_UNSUPPORTED, "gat: more heads than int counts");
    const cudaStream_t stream = stream_of(exec);
    if (call->form == FMM_GAT_SPREAD) {
        const int64_t blocks = s.count * ceil_div(s.heads * s.feat, COLUMNS);
        REQUIRE(blocks <= INT32_MAX, FMM_UNSUPPORTED, "gat: more nodes and channels than a grid");
        launch_early(exec->index, stream, gat_spread<T>, dim3((unsigned)blocks), s);
        return FMM_OK;
    }
    if (call->form == FMM_GAT_ADD) {
        enum { VEC = 16 / sizeof(T), MOST = 132 * 32 };
        const bool packs = lies_in_packs(&call->x, sizeof(T), VEC) &&
                           lies_in_packs(&call->out, sizeof(T), VEC) &&
                           lies_in_packs(&call->att[0], sizeof(T), VEC);
        const int64_t count = s.rows * s.heads * s.feat / (packs ? VEC : 1);
        launch_early(exec->index, stream, packs ? gat_add<T, VEC> : gat_add<T, 1>,
                     dim3((unsigned)smaller(ceil_div(count, BLOCK), MOST)), s);
        return FMM_OK;
    }
    const int64_t groups = s.rows * s.heads;
    const int64_t whole = groups ? ceil_div(groups << s.lane_bits, BLOCK) : 1;
    const unsigned blocks = (unsigned)smaller(whole, BLOCKS_MAX);
    launch_early(exec->index, stream,
                 call->form == FMM_GAT_DELTA ? gat_dots<T, true> : gat_dots<T, false>, dim3(blocks),
                 s);
    return FMM_OK;
}

extern "C" fmm_status fmm_cuda_gat(const fmm_exec *exec, const fmm_gat_call *call)
{
    int before;
    TRY(cuda_enter("gat", exec, &before));
    const fmm_status status = call->x.dtype == FMM_F64    ? launch<double>(exec, call)
                              : call->x.dtype == FMM_F16  ? launch<__half>(exec, call)
                              : call->x.dtype == FMM_BF16 ? launch<__nv_bfloat16>(exec, call)
                                                          : launch<float>(exec, call);
    const fmm_status left = cuda_leave("gat", exec, before);
    return status == FMM_OK ? left : status;
}
