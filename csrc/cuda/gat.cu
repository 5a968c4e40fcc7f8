/* The forms of gat.c on CUDA.
 *
 * SCORES and DELTA: a power of two of lanes owns a node's head, takes its channels in turns, 16
 * bytes at a time where all operands lie so, and meets in a tree of shuffles. SPREAD: a block owns
 * COLUMNS channels of a part's nodes; each thread writes its channel of every eighth node and keeps
 * the sums of the parameters' gradients, which the first threads then join in order. Neighbouring
 * threads take neighbouring channels, so that every operand is read once and in whole sectors. */
#include "segments.cuh"

extern "C" {
#include "../gat.h"
}

enum { COLUMNS = 32, TURNS = BLOCK / COLUMNS, PLANES = 3 };
enum { SCORES, DELTA, DELTA_AND_Q }; /* gat_dots */
template <class T> static constexpr int wide_of(void) { return 16 / sizeof(T); }

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
    side<T> score[2], out;
    side<const A> pos, pos_w, lse, glse;
    side<A> delta, parts;
    int64_t rows, feat;
    uint64_t per_head;
    int32_t heads, lane_bits;
    A slope;
};

/* N numbers in as few accesses as 16 bytes each make. */
template <class U, int N>
static __device__ __forceinline__ void read(const U *from, typename sum_of<U>::type *to)
{
    enum { EACH = sizeof(U) * N < 16 ? N : 16 / sizeof(U) };
#pragma unroll
    for (int i = 0; i < N; i += EACH) unpack<U, EACH>(load<U, EACH>(from + i), to + i);
}

/* < a, b > and, with TWO, < a, c > over the group's lanes, the same in all of them. Both are read
 * before either is summed: a small graph's call lasts as long as its waits. */
template <class T, class U, bool TWO, int VEC> struct dots {
    typedef typename sum_of<T>::type A;
    A with_b, with_c;
    __device__ __forceinline__ dots(const T *a, const T *b, const U *c, int64_t feat, int lane,
                                    int lanes)
    {
        with_b = 0, with_c = 0;
        const int64_t step = int64_t(lanes) * VEC, chain = step * (CHAIN / VEC);
        for (int64_t from = lane * VEC; from < feat; from += chain) {
            const int64_t end = min(feat, from + chain);
            A sum_b = 0, sum_c = 0;
#pragma unroll 2
            for (int64_t k = from; k < end; k += step) {
                A v[VEC], by_b[VEC], by_c[VEC] = {};
                read<T, VEC>(a + k, v);
                read<T, VEC>(b + k, by_b);
                if (TWO) read<U, VEC>(c + k, by_c);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    sum_b += v[i] * by_b[i];
                    if (TWO) sum_c += v[i] * by_c[i];
                }
            }
            with_b += sum_b, with_c += sum_c;
        }
        for (int d = lanes / 2; d; d /= 2) {
            with_b += __shfl_xor_sync(ALL, with_b, d);
            with_c += __shfl_xor_sync(ALL, with_c, d);
        }
    }
};

template <class T, int FORM, int VEC>
static __global__ void __launch_bounds__(BLOCK) gat_dots(const __grid_constant__ gat_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int lanes = 1 << s.lane_bits, lane = threadIdx.x & (lanes - 1);
    const int64_t step = int64_t(gridDim.x) * BLOCK >> s.lane_bits, count = s.rows * s.heads;
    const int64_t first = int64_t(blockIdx.x) * BLOCK + threadIdx.x >> s.lane_bits;
    wait_for_previous();
    /* Warps stay whole for the shuffles: groups past the end do the last one's work again. */
    for (int64_t begin = first - first % (WARP >> s.lane_bits); begin < count; begin += step) {
        const int64_t mine = begin + first % (WARP >> s.lane_bits), t = min(mine, count - 1);
        const int64_t i = item_of(t, s.heads, s.per_head), h = t - i * s.heads;
        const bool writes = lane == 0 && mine < count;
        if (FORM != SCORES) {
            constexpr bool q = FORM == DELTA_AND_Q;
            const A glse = s.glse.data ? __ldg(s.glse.at(i, h)) : A(0);
            const A pos_w = q ? __ldg(s.pos_w.at(i, h)) : A(0),
                    lse = q ? __ldg(s.lse.at(i, h)) : A(0);
            const dots<T, A, q, VEC> sum(s.x.at(i, h), s.value.at(i, h), q ? s.pos.at(i, h) : NULL,
                                         s.feat, lane, lanes);
            const A delta = sum.with_b - glse, above = sum.with_c - delta * pos_w;
            const A gq = (A(1) - s.slope) * above + s.slope * glse;
            if (writes) *s.delta.at(i, h) = delta;
            if (writes && q) *s.score[1].at(i, h) = narrow<T>(lse == -A(INFINITY) ? A(0) : gq);
        } else {
            const dots<T, T, true, VEC> sum(s.x.at(i, h), s.att[0].at(0, h), s.att[1].at(0, h),
                                            s.feat, lane, lanes);
            if (writes) *s.score[0].at(i, h) = narrow<T>(sum.with_b);
            if (writes) *s.score[1].at(i, h) = narrow<T>(sum.with_c);
        }
    }
}

/* GOUT: there is gout; not a branch, at which each turn would wait. */
template <class T, bool GOUT>
static __global__ void __launch_bounds__(BLOCK) gat_spread(const __grid_constant__ gat_args<T> s)
{
    typedef typename sum_of<T>::type A;
    __shared__ A meet[PLANES][TURNS][COLUMNS];
    const int turn = threadIdx.x / COLUMNS, lane = threadIdx.x % COLUMNS;
    const int64_t width = s.heads * s.feat;
    const int64_t tiles = ceil_div(width, COLUMNS), part = blockIdx.x / tiles;
    const int64_t column = (blockIdx.x - part * tiles) * COLUMNS + lane;
    const bool live = column < width;
    const int64_t h = live ? column / s.feat : 0, c = live ? column - h * s.feat : 0;
    const int64_t end = live ? min((part + 1) * FMM_GAT_ROWS, s.rows) : 0;
    wait_for_previous();
    const A att_k = widen(__ldg(s.att[0].at(0, h) + c)),
            att_q = widen(__ldg(s.att[1].at(0, h) + c));
    A sums[PLANES] = {};
#pragma unroll 4
    for (int64_t i = part * FMM_GAT_ROWS + turn; i < end; i += TURNS) {
        const A gk = widen(__ldg(s.score[0].at(i, h))), gq = widen(__ldg(s.score[1].at(i, h)));
        const A x = widen(__ldg(s.x.at(i, h) + c)), gv = widen(__ldg(s.value.at(i, h) + c));
        if (GOUT) sums[2] += A(widen(__ldg(s.gout.at(i, h) + c)));
        sums[0] += gk * x, sums[1] += gq * x;
        s.out.at(i, h)[c] = narrow<T>(gv + gk * att_k + gq * att_q);
    }
    for (int p = 0; p < PLANES; p++) meet[p][turn][lane] = sums[p];
    __syncthreads();
    if (turn >= (GOUT ? PLANES : PLANES - 1) || !live) return;
    A total = 0;
    for (int k = 0; k < TURNS; k++) total += meet[turn][k][lane];
    s.parts.at(part, turn * int64_t(s.heads) + h)[c] = total;
}

template <class T, int FORM> static auto dots_of(bool packed)
{
    return packed ? gat_dots<T, FORM, wide_of<T>()> : gat_dots<T, FORM, 1>;
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
    s.rows = call->x.rows, s.heads = (int32_t)call->x.heads, s.feat = call->x.feat;
    s.per_head = reciprocal(s.heads);
    s.slope = A(call->slope);
    const fmm_dense *const packs[] = {&call->x, &call->value, &call->att[0], &call->att[1]};
    bool packed = lies_in_packs(&call->pos, sizeof(A), 16 / sizeof(A)) || !call->pos.data;
    for (const fmm_dense *d : packs)
        packed = packed && (!d->data || lies_in_packs(d, sizeof(T), wide_of<T>()));
    const int vec = packed ? wide_of<T>() : 1;
    while (s.lane_bits < 5 && int64_t(vec) << s.lane_bits < s.feat) s.lane_bits++;
    REQUIRE(call->x.heads <= INT32_MAX, FMM_UNSUPPORTED, "gat: more heads than int counts");
    const cudaStream_t stream = stream_of(exec);
    if (call->form == FMM_GAT_SPREAD) {
        const int64_t blocks = ceil_div(s.rows, FMM_GAT_ROWS) * ceil_div(s.heads * s.feat, COLUMNS);
        REQUIRE(blocks <= INT32_MAX, FMM_UNSUPPORTED, "gat: more nodes and channels than a grid");
        launch_early(exec->index, stream, s.gout.data ? gat_spread<T, true> : gat_spread<T, false>,
                     dim3((unsigned)blocks), s);
        return FMM_OK;
    }
    const int64_t groups = s.rows * s.heads;
    const unsigned blocks = (unsigned)smaller(ceil_div(groups << s.lane_bits, BLOCK), BLOCKS_MAX);
    launch_early(exec->index, stream,
                 call->form != FMM_GAT_DELTA ? dots_of<T, SCORES>(packed)
                 : s.score[1].data           ? dots_of<T, DELTA_AND_Q>(packed)
                                             : dots_of<T, DELTA>(packed),
                 dim3(blocks), s);
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
