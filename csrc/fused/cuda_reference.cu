/* fused in its plain form, which says what it means and takes everything: any score, edge function,
 * message, shape and type, and both gradient passes.
 *
 * A warp has a row and a head. It walks over the row's entries one by one: lanes split the channels
 * of the score, meet in a butterfly, all run the edge program, and each adds the message of its own
 * channels, 256 channels at a time; wider outputs take the row again.
 *
 *     warp        one row and head; the next one is grid * BLOCK / 32 further on
 *     score       lane l: channels l, l + 32, l + 64, ... of x and y, then the sum of all lanes
 *     output      lane l: channels tile + l + 32 k, k < HELD, in registers
 *
 * Sums go through three levels of at most 512 terms. One owner per output: the same bits every
 * time. */
#include "cuda_edge.cuh"
#include "../cuda/reference.cuh"

#include "cuda.h"

enum { HELD = 8, TILE = HELD * WARP };

/* The call as a kernel's argument. Each absent operand is a view without data, so that the kernel
 * has one form for all passes. */
template <class T> struct plain_args {
    typedef typename sum_of<T>::type A;
    csr_view a;
    edge_view val;
    fmm_dense x, y, z, g, out, out2; /* data NULL: absent */
    int pass, score, message, activation, reduce;
    int64_t heads;
    edge_program<A> edge;
};

/* The sides of entry (i, j), head h. */
template <class T> struct pair_at {
    typedef typename sum_of<T>::type A;
    const plain_args<T> &s;
    int64_t i, j, h;
    /* Channels of either side, in the type of sums. */
    __device__ A x(int64_t c) const { return widen(*element<T>(s.x, i, h, c)); }
    __device__ A y(int64_t c) const { return widen(*element<T>(s.y, j, h, c)); }
    __device__ A g(int64_t c) const { return widen(*element<T>(s.g, i, h, c)); }
    /* act(message) in channel c. */
    __device__ A message(int64_t c) const
    {
        const A m = s.message == FMM_MESSAGE_SCALE ? A(widen(*element<T>(s.z, j, h, c)))
                                                   : message_raw<A>(s.message, x(c), y(c));
        return activated<A>(s.activation, m);
    }
    /* s, in every lane. Squares and magnitudes go through the same multiply-add as products. */
    __device__ A score(int lane) const
    {
        if (s.score == FMM_SCORE_NONE) return A(1);
        if (s.score == FMM_SCORE_ADDITIVE) return x(0) + y(0);
        long_sum<A> sum;
        sum.start();
        for (int64_t c = lane; c < s.x.feat; c += WARP) {
            const A d = x(c) - y(c);
            if (s.score == FMM_SCORE_DOT)
                sum.add(x(c), y(c));
            else
                sum.add(s.score == FMM_SCORE_SQDIST ? d : A(1),
                        s.score == FMM_SCORE_SQDIST ? d : absolute(d));
        }
        return lane_sum<WARP>(sum.total());
    }
    /* dL/dw = < g, act(message) >, in every lane */
    __device__ A product(int lane) const
    {
        long_sum<A> sum;
        sum.start();
        for (int64_t c = lane; c < s.g.feat; c += WARP) sum.add(g(c), message(c));
        return lane_sum<WARP>(sum.total());
    }
    /* What the entry adds to channel c of out, or of out2, the gradient of z. */
    __device__ A term(int64_t c, bool second, A w, A ds) const
    {
        const bool by_y = s.pass == FMM_COLS, scale = s.message == FMM_MESSAGE_SCALE;
        if (s.pass == FMM_FORWARD) return w * message(c);
        if (second) return w * g(c) * activation_slope<A>(s.activation, A(1), message(c));
        /* With z the message has no part in x and y, only the score has. */
        const A own = by_y ? y(c) : x(c), other = by_y ? x(c) : y(c);
        A sum = A(0);
        if (!scale)
            sum = w * g(c) * activation_slope<A>(s.activation, A(1), message(c)) *
                  message_slope<A>(s.message, by_y, A(1), own, other);
        if (s.score != FMM_SCORE_NONE) sum += ds * score_slope<A>(s.score, A(1), own, other);
        return sum;
    }
};

/* Channels tile + lane, tile + lane + 32, ... of a row's output. Gradients of values are written
 * once, by the first tile's walk. A minimum is the negated maximum of negated terms. */
template <class T>
static __device__ void plain_tile(const plain_args<T> &s, const fmm_dense &out, bool second,
                                  int64_t row, int64_t h, int64_t tile, int lane)
{
    typedef typename sum_of<T>::type A;
    /* Extremes belong to the forward pass; gradients are sums. */
    const bool forward = s.pass == FMM_FORWARD, extreme = forward && s.reduce >= FMM_MAX;
    const bool values = s.pass == FMM_ROWS && s.out2.data && tile == 0;
    const A sign = A(s.reduce == FMM_MIN ? -1 : 1);
    int64_t begin;
    const int64_t entries = row_range(s.a, row, &begin);
    /* Level 0 takes CHAIN terms, level 1 as many of those, level 2 the rest; extremes use level 0.
     */
    A sum[3][HELD];
    UNROLLED(k, HELD) {
        sum[0][k] = extreme ? -A(INFINITY) : A(0);
        sum[1][k] = sum[2][k] = A(0);
    }
    for (int64_t n = 0; n < entries; n++) {
        /* An index out of range is skipped: nothing outside of the operands is read. */
        const int32_t far = s.a.idx[begin + n];
        if ((uint32_t)far < (uint32_t)s.a.cols) {
            /* In COLS the matrix is the transpose, and x belongs to its columns. */
            const bool cols = s.pass == FMM_COLS;
            const pair_at<T> at = {s, cols ? far : row, cols ? row : far, h};
            const int64_t edge = edge_of(s.val, begin + n);
            const edge_result<A> found =
                edge_run<A>(s.edge, at.score(lane), edge_value<A>(s.val, edge, h));
            /* The gradient of z needs no score's, so its products are not taken. */
            A ds = A(0);
            if (!forward && !(cols && second)) {
                const A product = at.product(lane);
                ds = product * found.by_s;
                if (values && lane == 0)
                    *element<T>(s.out2, edge, h, 0) = narrow<T>(product * found.by_a);
            }
            UNROLLED(k, HELD) {
                const int64_t c = tile + k * WARP + lane;
                if (c >= out.feat) continue;
                const A t = at.term(c, second, found.w, ds);
                if (!extreme)
                    sum[0][k] += t;
                else if (sign * t > sum[0][k] || t != t)
                    sum[0][k] = sign * t; /* NaN, once there, stays */
            }
        }
        /* A full level moves up, in the same steps whatever the row holds. */
        if (extreme || (n + 1) % CHAIN) continue;
        UNROLLED(k, HELD) {
            sum[1][k] += sum[0][k];
            sum[0][k] = A(0);
            if ((n + 1) % (CHAIN * CHAIN)) continue;
            sum[2][k] += sum[1][k];
            sum[1][k] = A(0);
        }
    }
    UNROLLED(k, HELD) {
        const int64_t c = tile + k * WARP + lane;
        if (c >= out.feat) continue;
        /* A row without entries is 0, for extremes too. */
        A value = A(0);
        if (entries) value = extreme ? sign * sum[0][k] : sum[2][k] + (sum[1][k] + sum[0][k]);
        if (entries && forward && s.reduce == FMM_MEAN) value /= A(entries);
        *element<T>(out, row, h, c) = narrow<T>(value);
    }
}

/* Warps go over rows and heads in turn, as many as the grid has at a time. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    fused_reference(const __grid_constant__ plain_args<T> s)
{
    const int lane = threadIdx.x % WARP;
    for (int64_t k = this_thread() / WARP; k < s.a.rows * s.heads; k += all_threads() / WARP) {
        const int64_t row = k / s.heads, h = k % s.heads;
        /* One round without channels where the gradient of val is all that is wanted. */
        if (s.out.data || s.pass == FMM_ROWS)
            for (int64_t tile = 0; tile == 0 || tile < s.out.feat; tile += TILE)
                plain_tile<T>(s, s.out, false, row, h, tile, lane);
        if (s.out2.data && s.pass == FMM_COLS)
            for (int64_t tile = 0; tile < s.out2.feat; tile += TILE)
                plain_tile<T>(s, s.out2, true, row, h, tile, lane);
    }
}

/* A grid no larger than fills the device; a function in C cannot run there. */
extern "C" fmm_status fmm_fused_reference_cuda(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_fusion *f = fmm_fusion_of(call);
    /* Absent operands become views without data. */
    const auto view = [](const fmm_dense *d) { return d ? *d : fmm_dense{}; };
    REQUIRE(!f->function, FMM_UNSUPPORTED, "fused: a function in C runs on the CPU only");
    /* The host turns the edge program to its form once, for all rows. */
    const int64_t warps = call->a->rows * f->x->heads;
    const unsigned grid = (unsigned)smaller(ceil_div(warps, BLOCK / WARP), REFERENCE_BLOCKS);
    return on_device_as("fused", exec, f->x->dtype, [&](auto element_of) {
        typedef decltype(element_of) T;
        plain_args<T> s;
        s.a = view_csr(call->a), s.val = view_edges(call->a, call->val);
        s.x = view(f->x), s.y = view(f->y), s.z = view(f->z), s.g = view(f->g);
        s.out = view(f->out), s.out2 = view(f->out2);
        s.pass = f->pass, s.score = f->score, s.message = f->message;
        s.activation = f->activation, s.reduce = f->reduce;
        s.heads = f->x->heads;
        s.edge = edge_of_fusion<typename sum_of<T>::type>(f);
        if (grid) fused_reference<T><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
    });
}
