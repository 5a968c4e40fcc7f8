/* The forms of gat.c on CUDA.
 *
 * SCORES and DELTA: a power of two of lanes owns a node's head, takes its channels in turns and
 * meets in a tree of shuffles. SPREAD: a block owns COLUMNS channels of a part's nodes; each thread
 * writes its channel of every fourth node and keeps the two sums of the parameters' gradients,
 * which four threads then join in order. Neighbouring threads take neighbouring channels, so that
 * every operand is read once and in whole sectors. */
#include "common.cuh"

extern "C" {
#include "../gat.h"
}

enum { COLUMNS = 64, TURNS = BLOCK / COLUMNS };

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
    side<const T> x, value, att[2];
    side<T> score[2], out;
    side<const A> pos, pos_w, lse, glse;
    side<A> delta, parts;
    int64_t rows, heads, feat;
    int32_t lane_bits;
    A slope;
};

/* < a, b > over the group's lanes, the same in all of them. */
template <class T, class U>
static __device__ __forceinline__ typename sum_of<T>::type dot(const T *a, const U *b, int64_t feat,
                                                               int lane, int lanes)
{
    typedef typename sum_of<T>::type A;
    A total = 0;
    for (int64_t from = lane; from < feat; from += int64_t(lanes) * CHAIN) {
        const int64_t end = min(feat, from + int64_t(lanes) * CHAIN);
        A sum = 0;
#pragma unroll 4
        for (int64_t c = from; c < end; c += lanes) sum += A(widen(a[c])) * A(widen(b[c]));
        total += sum;
    }
    for (int d = lanes / 2; d; d /= 2) total += __shfl_xor_sync(ALL, total, d);
    return total;
}

template <class T, bool DELTA>
static __global__ void __launch_bounds__(BLOCK) gat_dots(const __grid_constant__ gat_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int lanes = 1 << s.lane_bits, lane = threadIdx.x & (lanes - 1);
    const int64_t step = int64_t(gridDim.x) * BLOCK >> s.lane_bits, count = s.rows * s.heads;
    const int64_t first = int64_t(blockIdx.x) * BLOCK + threadIdx.x >> s.lane_bits;
    /* Warps stay whole for the shuffles: groups past the end do the last one's work again. */
    const int64_t rounds = ceil_div(count, step);
    for (int64_t r = 0; r < rounds; r++) {
        const int64_t t = min(first + r * step, count - 1), i = t / s.heads, h = t - i * s.heads;
        const bool mine = lane == 0 && first + r * step < count;
        const T *const x = s.x.at(i, h);
        if (DELTA) {
            const A glse = s.glse.data ? *s.glse.at(i, h) : A(0);
            const A delta = dot(x, s.value.at(i, h), s.feat, lane, lanes) - glse;
            if (mine) *s.delta.at(i, h) = delta;
            if (!s.score[1].data) continue;
            const A above = dot(x, s.pos.at(i, h), s.feat, lane, lanes) - delta * *s.pos_w.at(i, h);
            const bool empty = *s.lse.at(i, h) == -A(INFINITY);
            if (mine)
                *s.score[1].at(i, h) =
                    narrow<T>(empty ? A(0) : (A(1) - s.slope) * above + s.slope * glse);
        } else {
            const A k = dot(x, s.att[0].at(0, h), s.feat, lane, lanes);
            const A q = dot(x, s.att[1].at(0, h), s.feat, lane, lanes);
            if (mine) *s.score[0].at(i, h) = narrow<T>(k), *s.score[1].at(i, h) = narrow<T>(q);
        }
    }
}

template <class T>
static __global__ void __launch_bounds__(BLOCK) gat_spread(const __grid_constant__ gat_args<T> s)
{
    typedef typename sum_of<T>::type A;
    __shared__ A meet[2][TURNS][COLUMNS];
    const int turn = threadIdx.x / COLUMNS, lane = threadIdx.x % COLUMNS;
    const int64_t width = s.heads * s.feat;
    const int64_t tiles = ceil_div(width, COLUMNS), part = blockIdx.x / tiles;
    const int64_t column = (blockIdx.x - part * tiles) * COLUMNS + lane;
    const bool live = column < width;
    const int64_t h = live ? column / s.feat : 0, c = live ? column - h * s.feat : 0;
    const A att_k = widen(s.att[0].at(0, h)[c]), att_q = widen(s.att[1].at(0, h)[c]);
    const int64_t end = min((part + 1) * FMM_GAT_ROWS, s.rows);
    A sum_k = 0, sum_q = 0;
    if (live) {
#pragma unroll 4
        for (int64_t i = part * FMM_GAT_ROWS + turn; i < end; i += TURNS) {
            const A gk = widen(*s.score[0].at(i, h)), gq = widen(*s.score[1].at(i, h));
            const A x = widen(s.x.at(i, h)[c]), gv = widen(s.value.at(i, h)[c]);
            sum_k += gk * x, sum_q += gq * x;
            s.out.at(i, h)[c] = narrow<T>(gv + gk * att_k + gq * att_q);
        }
    }
    meet[0][turn][lane] = sum_k, meet[1][turn][lane] = sum_q;
    __syncthreads();
    if (turn > 1 || !live) return;
    A total = 0;
    for (int k = 0; k < TURNS; k++) total += meet[turn][k][lane];
    s.parts.at(part, turn * s.heads + h)[c] = total;
}

template <class T> static fmm_status launch(const fmm_exec *exec, const fmm_gat_call *call)
{
    enum { BLOCKS_MAX = 1 << 20 };
    typedef typename sum_of<T>::type A;
    gat_args<T> s = {};
    s.x = side_of<const T>(call->x), s.value = side_of<const T>(call->value);
    for (int t = 0; t < 2; t++) {
        s.att[t] = side_of<const T>(call->att[t]);
        s.score[t] = side_of<T>(call->score[t]);
    }
    s.pos = side_of<const A>(call->pos), s.pos_w = side_of<const A>(call->pos_w);
    s.lse = side_of<const A>(call->lse), s.glse = side_of<const A>(call->glse);
    s.delta = side_of<A>(call->delta);
    s.out = side_of<T>(call->out), s.parts = side_of<A>(call->parts);
    s.rows = call->x.rows, s.heads = call->x.heads, s.feat = call->x.feat;
    s.slope = A(call->slope);
    while (s.lane_bits < 5 && int64_t(1) << s.lane_bits < s.feat) s.lane_bits++;
    const cudaStream_t stream = stream_of(exec);
    if (call->form == FMM_GAT_SPREAD) {
        const int64_t blocks = ceil_div(s.rows, FMM_GAT_ROWS) * ceil_div(s.heads * s.feat, COLUMNS);
        REQUIRE(blocks <= INT32_MAX, FMM_UNSUPPORTED, "gat: more nodes and channels than a grid");
        gat_spread<T><<<(unsigned)blocks, BLOCK, 0, stream>>>(s);
        return FMM_OK;
    }
    const int64_t groups = s.rows * s.heads;
    const unsigned blocks = (unsigned)smaller(ceil_div(groups << s.lane_bits, BLOCK), BLOCKS_MAX);
    if (call->form == FMM_GAT_DELTA)
        gat_dots<T, true><<<blocks, BLOCK, 0, stream>>>(s);
    else
        gat_dots<T, false><<<blocks, BLOCK, 0, stream>>>(s);
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
