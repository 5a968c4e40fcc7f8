/* The forms of node_sums.c on CUDA. These passes do nothing but read, add and write, so a thread
 * starts all its loads before it waits for one, and neighbouring threads take neighbouring
 * channels: every operand is read once and in whole sectors. VEC fills 16 bytes where all operands
 * are aligned to them, and is 1 elsewhere.
 *
 * SCORES, DELTA   a group of lanes owns a node's head:
 *
 *     lanes of the group     0        1        2        3
 *     channels               0..V-1   V..2V-1  ...               then a turn further on
 *     the sum                a tree of shuffles; lane 0 writes
 *
 * SPREAD   a block owns a tile of channels of the nodes of one part:
 *
 *     channels of all heads   | tile 0      | tile 1      | ...
 *     nodes of part 0         | block 0     | block 1     |
 *     nodes of part 1         | block T     | block T+1   |        (T tiles)
 *
 *     A thread writes its VEC channels of each node of its turn and sums up the parameters'
 *     gradients for them. The turns' sums meet in shared memory, in order, and are the part's. The
 *     last block of a tile to finish adds up the tile's parts in their order. A counter says which
 *     block that is, and the order of the parts does not depend on it.
 *
 * ADD   a thread owns VEC channels of a node's head. */
#include "cuda_node_sums.cuh"
#include "../cuda/device.h"

/* SCORES, DELTA and DELTA_POS. Each group takes N items at once, which are as far apart as the grid
 * has groups. */
template <class T, int FORM, int VEC, int N>
static __global__ void __launch_bounds__(BLOCK) node_dots(const __grid_constant__ node_args<T> s)
{
    typedef typename sum_of<T>::type A;
    /* first is the group's first item, of_warp the group's place in its warp. */
    const int lanes = 1 << s.lane_bits, lane = threadIdx.x & (lanes - 1);
    const int64_t step = all_threads() >> s.lane_bits, count = s.rows * s.heads;
    const int64_t first = this_thread() >> s.lane_bits;
    const int64_t of_warp = first & ((WARP >> s.lane_bits) - 1);
    wait_for_previous();
    /* The next kernel may start at once: what it reads before it waits for this one was there
     * before this one started. */
    let_next_start();
    /* SPREAD, which comes later in the stream, counts its blocks from zero. */
    if (FORM != SCORES && s.arrived && blockIdx.x == 0)
        for (int64_t k = threadIdx.x; k < ceil_div(s.heads * s.feat, FMM_NODE_COLUMNS); k += BLOCK)
            s.arrived[k] = 0;
    /* Warps stay whole for the shuffles: groups past the end do the last item's work again and
     * write nothing. */
    for (int64_t begin = first - of_warp; begin < count; begin += N * step) {
        /* Statistics are read before the channels, whose loads are more. A form reads only what its
         * call has: the conditions are the same for all threads. */
        int64_t i[N], h[N];
        bool writes[N];
        const T *a[N], *b[N], *att[N];
        const A *pos[N];
        A glse[N], pos_w[N], lse[N], rest[N], q[N];
        UNROLLED(n, N) {
            const int64_t mine = begin + n * step + of_warp, t = min(mine, count - 1);
            i[n] = item_of(t, s.heads, s.per_head), h[n] = t - i[n] * s.heads;
            writes[n] = lane == 0 && mine < count;
            a[n] = at<VEC>(s.x, i[n], h[n]);
            b[n] = FORM == SCORES ? at<VEC>(s.att[0], 0, h[n]) : at<VEC>(s.value, i[n], h[n]);
            if (FORM == SCORES) att[n] = at<VEC>(s.att[1], 0, h[n]);
            if (FORM == DELTA_POS) pos[n] = at<VEC>(s.pos, i[n], h[n]);
            glse[n] = FORM != SCORES && s.glse.data ? __ldg(at<VEC>(s.glse, i[n], h[n])) : A(0);
            pos_w[n] = FORM == DELTA_POS ? __ldg(at<VEC>(s.pos_w, i[n], h[n])) : A(0);
            lse[n] = FORM == DELTA_POS || (FORM == DELTA && s.packed)
                         ? __ldg(at<VEC>(s.lse, i[n], h[n]))
                         : A(0);
            rest[n] = FORM != SCORES && s.packed && s.lse_rest.data
                          ? __ldg(at<VEC>(s.lse_rest, i[n], h[n]))
                          : A(0);
            q[n] = FORM != SCORES && s.packed ? widen(*at<VEC>(s.score[0], i[n], h[n])) : A(0);
        }
        /* k and q, or delta and what follows from it. */
        if constexpr (FORM == SCORES) {
            const dots<T, T, VEC, false, N> sum(a, b, att, s.feat, lane, lanes);
            UNROLLED(n, N) {
                if (writes[n]) *at<VEC>(s.score[0], i[n], h[n]) = narrow<T>(sum.with_b[n]);
                if (writes[n]) *at<VEC>(s.score[1], i[n], h[n]) = narrow<T>(sum.with_c[n]);
            }
        } else {
            const dots<T, A, VEC, FORM == DELTA, N> sum(a, b, pos, s.feat, lane, lanes);
            UNROLLED(n, N) {
                if (!writes[n]) continue;
                /* The formulas of node_sums.c; a row without weights has no gradient. */
                const A delta = sum.with_b[n] - glse[n];
                const A above = sum.with_c[n] - delta * pos_w[n];
                const A gq = (A(1) - s.slope) * above + s.slope * glse[n];
                *at<VEC>(s.delta, i[n], h[n]) = delta;
                if (FORM == DELTA_POS)
                    *at<VEC>(s.score[1], i[n], h[n]) =
                        narrow<T>(lse[n] == -A(INFINITY) ? A(0) : gq);
                /* COLS gathers these four numbers of a row and head from one place. */
                if (s.packed) {
                    A *const to = s.packed + (i[n] * s.heads + h[n]) * FMM_NODE_PACKED;
                    to[0] = lse_of_weights(lse[n]), to[1] = delta, to[2] = q[n], to[3] = rest[n];
                }
            }
        }
    }
}

/* Adds up the sums of the block's threads, channel by channel, turn after turn. Afterwards the
 * threads of turn p have in `total` the sums of plane p. */
template <class A, int VEC>
static __device__ __forceinline__ void join(const A (*sums)[VEC], int lane_bits, A *total)
{
    __shared__ A meet[PLANES][BLOCK][VEC];
    const int turn = threadIdx.x >> lane_bits, lane = threadIdx.x & ((1 << lane_bits) - 1);
    __syncthreads(); /* an earlier join has read what it left here */
    UNROLLED(p, PLANES)
        UNROLLED(v, VEC) meet[p][threadIdx.x][v] = sums[p][v];
    __syncthreads();
    UNROLLED(v, VEC) total[v] = A(0);
    for (int k = 0; turn < PLANES && k < BLOCK >> lane_bits; k++)
        UNROLLED(v, VEC) total[v] += meet[turn][(k << lane_bits) + lane][v];
}

/* Adds sums that another block of the same launch has left in memory. They are read past L1, which
 * may hold what was there before. */
template <class A, int N> static __device__ __forceinline__ void add_part(const A *from, A *sums)
{
    enum { EACH = sizeof(A) * N < 16 ? N : 16 / sizeof(A) };
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        A some[EACH];
        unpack<A, EACH>(__ldcg(reinterpret_cast<const PACK(A, EACH) *>(from + i)), some);
        UNROLLED(v, EACH) sums[i + v] += some[v];
    }
}

/* SPREAD: the gradient of SCORES for each node, and the sums over nodes for the parameters. */
template <class T, int VEC>
static __global__ void __launch_bounds__(BLOCK) node_spread(const __grid_constant__ node_args<T> s)
{
    typedef typename sum_of<T>::type A;
    enum { AT_ONCE = VEC > 1 ? 2 : 1 }; /* how many nodes a thread has under way */
    __shared__ bool last;
    /* A thread's place: which turn of the block, which channel, of which part and tile. */
    const int lanes = 1 << s.lane_bits, turns = BLOCK >> s.lane_bits;
    const int turn = threadIdx.x >> s.lane_bits, lane = threadIdx.x & (lanes - 1);
    const int64_t width = s.heads * s.feat, tiles = ceil_div(width, int64_t(lanes) * VEC);
    const int64_t part = blockIdx.x / tiles, tile = blockIdx.x - part * tiles;
    const int64_t column = (tile * lanes + lane) * VEC;
    const bool live = column < width;
    const int64_t h = live ? column / s.feat : 0, c = live ? column - h * s.feat : 0;
    const int64_t end = live ? min((part + 1) * s.each, s.rows) : 0;
    /* Where no sum of gout is asked for, x is read in its place: a load under a branch would wait
     * for the loads before it. */
    const bool third = s.total[2].data;
    const int planes = third ? PLANES : PLANES - 1;
    const dense_view<const T> added = third ? s.gout : s.x;
    wait_for_previous();
    A att_k[VEC], att_q[VEC], sums[PLANES][VEC] = {}, total[VEC];
    read<T, VEC>(at<VEC>(s.att[0], 0, h) + c, att_k);
    read<T, VEC>(at<VEC>(s.att[1], 0, h) + c, att_q);
    for (int64_t first = part * s.each + turn; first < end; first += AT_ONCE * turns) {
        items_of<T, VEC> of_x[AT_ONCE], of_gv[AT_ONCE], of_gout[AT_ONCE];
        A gk[AT_ONCE], gq[AT_ONCE];
        UNROLLED(n, AT_ONCE) { /* past the end a thread reads the last node again */
            const int64_t i = min(first + n * turns, end - 1);
            of_x[n].fetch(at<VEC>(s.x, i, h) + c);
            of_gv[n].fetch(at<VEC>(s.value, i, h) + c);
            of_gout[n].fetch(at<VEC>(added, i, h) + c);
            gk[n] = widen(__ldg(at<VEC>(s.score[0], i, h)));
            gq[n] = widen(__ldg(at<VEC>(s.score[1], i, h)));
        }
        UNROLLED(n, AT_ONCE) {
            if (first + n * turns >= end) continue;
            A x[VEC], gv[VEC], gout[VEC];
            of_x[n].arrive(x);
            of_gv[n].arrive(gv);
            of_gout[n].arrive(gout);
            UNROLLED(v, VEC) {
                sums[0][v] += gk[n] * x[v], sums[1][v] += gq[n] * x[v], sums[2][v] += gout[v];
                gv[v] += gk[n] * att_k[v] + gq[n] * att_q[v];
            }
            store<T, VEC>(at<VEC>(s.out, first + n * turns, h) + c, gv);
        }
    }
    /* The block's sums of this part. */
    const bool writes = live && turn < planes;
    const int64_t plane = turn * int64_t(s.heads) + h;
    join<A, VEC>(sums, s.lane_bits, total);
    if (writes) keep<A, VEC>(at<VEC>(s.parts, part, plane) + c, total);

    /* The part's sums are visible to all blocks before the block counts itself. */
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(s.arrived + tile, 1) == s.count - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    UNROLLED(p, PLANES)
        UNROLLED(v, VEC) sums[p][v] = A(0);
    /* The turns share the parts; no accumulator adds more than CHAIN of them. */
    for (int64_t from = turn; live && from < s.count; from += int64_t(turns) * CHAIN) {
        const int64_t until = min(s.count, from + int64_t(turns) * CHAIN);
        A some[PLANES][VEC] = {};
#pragma unroll 4
        for (int64_t k = from; k < until; k += turns)
            UNROLLED(p, PLANES) /* for an absent plane the first is read, and unused */
                add_part<A, VEC>(
                    at<VEC>(s.parts, k, (p < planes ? p : 0) * int64_t(s.heads) + h) + c, some[p]);
        UNROLLED(p, PLANES)
            UNROLLED(v, VEC) sums[p][v] += some[p][v];
    }
    join<A, VEC>(sums, s.lane_bits, total);
    if (writes) store<T, VEC>(at<VEC>(s.total[turn], 0, h) + c, total);
}

/* ADD. out may be x: a thread writes only what it has read itself. */
template <class T, int VEC>
static __global__ void __launch_bounds__(BLOCK) node_add(const __grid_constant__ node_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const int64_t across = s.heads * (s.feat / VEC), count = s.rows * across;
    wait_for_previous();
    for (int64_t t = this_thread(); t < count; t += all_threads()) {
        const int64_t i = t / across, rest = t - i * across, h = rest / (s.feat / VEC);
        const int64_t c = (rest - h * (s.feat / VEC)) * VEC;
        A sums[VEC], add[VEC];
        unpack<T, VEC>(*reinterpret_cast<const PACK(T, VEC) *>(at<VEC>(s.x, i, h) + c), sums);
        if (s.value.data) {
            unpack<T, VEC>(load<T, VEC>(at<VEC>(s.value, i, h) + c), add);
            UNROLLED(v, VEC) sums[v] += add[v];
        }
        store<T, VEC>(at<VEC>(s.out, i, h) + c, sums);
    }
}

/* lies_near says whether `at` finds rows and heads with 32 bits, aligned whether packs of 16 bytes
 * may be read as well. An absent operand never stands in the way. */
template <class T> static bool lies_near(const dense_view<T> &d)
{
    return !d.data || (d.row <= UINT32_MAX && d.head <= UINT32_MAX);
}
template <class T> static bool aligned(const dense_view<T> &d)
{
    const uint64_t bytes = uint64_t(d.row | d.head) * sizeof(T);
    return !d.data || (lies_near(d) && (((uintptr_t)d.data | bytes) & 15) == 0);
}
template <class T> static bool aligned(const node_args<T> &s)
{
    return aligned(s.x) && aligned(s.value) && aligned(s.gout) && aligned(s.att[0]) &&
           aligned(s.att[1]) && aligned(s.pos) && aligned(s.out) && aligned(s.parts) &&
           aligned(s.total[0]) && aligned(s.total[1]) && aligned(s.total[2]) &&
           lies_near(s.score[0]) && lies_near(s.score[1]) && lies_near(s.pos_w) &&
           lies_near(s.lse) && lies_near(s.lse_rest) && lies_near(s.glse) && lies_near(s.delta) &&
           s.rows <= UINT32_MAX;
}

/* Chooses lanes, blocks and the kernel of a form. All launches are early: the kernel may start
 * while the one before it still runs, and waits for it before it reads. */
template <class T, int VEC>
static void launch_form(const fmm_exec *exec, fmm_node_form form, node_args<T> s)
{
    enum { MOST = 1 << 20, MANY = 1 << 20, SEVERAL = 2 };
    const cudaStream_t stream = stream_of(exec);
    const int64_t groups = s.rows * s.heads, width = s.heads * s.feat;
    /* Threads of ADD loop, so its grid need not grow with the operands. */
    if (form == FMM_NODE_ADD) {
        const int64_t blocks = ceil_div(groups * (s.feat / VEC), BLOCK);
        launch_early(exec->index, stream, node_add<T, VEC>,
                     dim3((unsigned)smaller(blocks, 32 * fmm_cuda_processors(exec->index))), s);
        return;
    }
    /* As many lanes, a power of two, as have channels to own. SPREAD's tiles go on over the heads.
     */
    const int64_t across = form == FMM_NODE_SPREAD ? width : s.feat;
    while (s.lane_bits < 5 && int64_t(VEC) << s.lane_bits < across) s.lane_bits++;
    if (form == FMM_NODE_SPREAD) {
        const int64_t blocks = s.count * ceil_div(width, int64_t(VEC) << s.lane_bits);
        launch_early(exec->index, stream, node_spread<T, VEC>, dim3((unsigned)blocks), s);
        return;
    }
    /* A group has SEVERAL items under way where groups of one item would make MANY threads. With
     * fewer, half as many threads would not fill the card. */
    const int64_t threads = groups << s.lane_bits;
    const bool several = VEC > 1 && threads >= MANY;
    const int64_t blocks = ceil_div(ceil_div(threads, BLOCK), several ? SEVERAL : 1);
    constexpr int N = VEC > 1 ? SEVERAL : 1;
    launch_early(exec->index, stream,
                 form == FMM_NODE_SCORES
                     ? several ? node_dots<T, SCORES, VEC, N> : node_dots<T, SCORES, VEC, 1>
                 : s.score[1].data
                     ? several ? node_dots<T, DELTA_POS, VEC, N> : node_dots<T, DELTA_POS, VEC, 1>
                 : several ? node_dots<T, DELTA, VEC, N>
                           : node_dots<T, DELTA, VEC, 1>,
                 dim3((unsigned)(blocks < 1 ? 1 : smaller(blocks, MOST))), s);
}

/* From the operands of the call to the kernels' arguments. */
template <class T> static void launch(const fmm_exec *exec, const fmm_node_call *call)
{
    enum { VEC = 16 / sizeof(T) };
    typedef typename sum_of<T>::type A;
    node_args<T> s = {};
    s.x = view_dense<const T>(&call->x), s.value = view_dense<const T>(&call->value);
    s.gout = view_dense<const T>(&call->gout);
    for (int t = 0; t < 2; t++) {
        s.att[t] = view_dense<const T>(&call->att[t]);
        s.score[t] = view_dense<T>(&call->score[t]);
    }
    s.pos = view_dense<const A>(&call->pos), s.pos_w = view_dense<const A>(&call->pos_w);
    s.lse = view_dense<const A>(&call->lse), s.lse_rest = view_dense<const A>(&call->lse_rest);
    s.glse = view_dense<const A>(&call->glse);
    s.delta = view_dense<A>(&call->delta);
    s.out = view_dense<T>(&call->out), s.parts = view_dense<A>(&call->parts);
    for (int p = 0; p < PLANES; p++) s.total[p] = view_dense<T>(&call->total[p]);
    s.packed = static_cast<A *>(call->packed), s.arrived = call->arrived;
    s.rows = call->x.rows, s.heads = (int32_t)call->x.heads, s.feat = call->x.feat;
    s.each = fmm_node_rows(FMM_CUDA, s.rows), s.count = fmm_node_parts(FMM_CUDA, s.rows);
    s.per_head = reciprocal(s.heads);
    s.slope = A(call->slope);
    if (s.feat % VEC == 0 && aligned(s))
        launch_form<T, VEC>(exec, call->form, s);
    else
        launch_form<T, 1>(exec, call->form, s);
}

/* What the grid cannot count is an error, not a wrong result. The kernels of all element types are
 * in this file, since they compile quickly. */
extern "C" fmm_status fmm_node_sums_cuda(const fmm_exec *exec, const fmm_node_call *call)
{
    const fmm_dense *x = &call->x;
    const int64_t parts = fmm_node_parts(FMM_CUDA, x->rows);
    REQUIRE(x->heads <= INT32_MAX, FMM_UNSUPPORTED, "node_sums: more heads than int counts");
    REQUIRE(call->form != FMM_NODE_SPREAD ||
                parts * ceil_div(x->heads * x->feat, FMM_NODE_COLUMNS) <= INT32_MAX,
            FMM_UNSUPPORTED, "node_sums: more nodes and channels than a grid");
    return on_device_as("node_sums", exec, x->dtype,
                        [&](auto element) { launch<decltype(element)>(exec, call); });
}
