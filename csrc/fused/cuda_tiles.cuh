/* fused `tiles`: out[i,:] = sum_p w(<x[i,:], y[idx[p],:]>, val[p]) y[idx[p],:] for rows that share
 * many columns, as those of pruned networks do.
 *
 *     windows of y    [ w - 3 ][ w - 2 ][ w - 1 ][  w  ]  | w + 1     READY windows to gather from,
 *                       leaves next                         copied    one on its way
 *     group 0         row 0: p p p p   LANES entries of a chunk, one to a lane
 *     group 1         row 1: p p p p   its channels of x and of the sum in registers
 *     a step          BATCH rows of y -> scores by a butterfly -> weights -> added to the sums
 *
 * Windows of y go through shared memory (cuda/tiles.cuh), where the rows of a block find what
 * `segments` gathers from L2. A group of LANES lanes has a row, or shares it with neighbours that
 * take its chunks in turn, and keeps its slices of x and of the sum in registers. Each lane holds
 * one entry of a chunk of LANES, read a chunk ahead. BATCH rows of y at a time come from shared
 * memory, once for both uses: a transposing butterfly (sddmm/cuda.cuh) leaves the scores spread
 * over the group, the lanes turn them into weights side by side, and the rows, still in registers,
 * are added under them.
 *
 * READY windows can be read at once. A warp takes a step, a chunk of each of its groups, when all
 * of their entries are there, or when one lies in the window that leaves next. So groups may be
 * some windows apart, and their steps are full where rows are about equally dense (98 % of the
 * places at 8,192 columns and 30 % entries, 93 % at 10 %). What a group meets too late, because
 * columns do not rise, comes from global memory: right for any content, fast for sorted rows.
 *
 * At 128 columns an entry costs shared memory 4 cycles for y, 0.8 for shuffles (13 for 16 entries:
 * addresses, butterfly, value, weights) and 0.2 to 1.3 for copying, where it is 30 or 10 % full and
 * 64 or 32 rows share a window, which bounds it to 26 TFLOP/s on an H200. The four schedulers need
 * 4 cycles for its 16 instructions, 8 of them multiply-adds, and L2 hands over 27 to 160 bytes.
 *
 * A row has an order of addition that depends on the matrix and, through the groups that share a
 * row, on the number of multiprocessors. Before an accumulator has more than CHAIN terms, the
 * groups' sums meet in a fixed tree and are added to out. */
#pragma once

#include "cuda_edge.cuh"
#include "../sddmm/cuda.cuh"
#include "../cuda/tiles.cuh"

struct fused_tiles_args {
    csr_view a;
    edge_view val;
    dense_view<const float> x, y; /* of one head */
    dense_view<float> out;
    int64_t feat, step; /* step: rows of a warp, see share_of */
    int32_t shift;      /* 2^shift groups share a row */
    bool packs;         /* rows of y can be read 16 bytes at a time */
    bool mean, linear;
    edge_program<float> edge;
};

template <int LANES_, int PER_, int BATCH_, int W_>
struct fused_shape : tiles_base<float, LANES_, PER_, W_, 1, 6> {
    typedef tiles_base<float, LANES_, PER_, W_, 1, 6> B;
    enum {
        BATCH = BATCH_,
        READY = 4,
        BARRIERS_AT = B::LISTS_AT,
        BYTES = BARRIERS_AT + 2 * B::STAGES * sizeof(uint64_t),
    };
    static_assert(int(READY) < int(B::STAGES), "one window is on its way");
};

/* By a 32-bit address, which the compiler would else put together anew before each use. */
static __device__ __forceinline__ uint4 load_shared(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* PLAIN: values are float, in the matrix's own order. */
template <class S, bool PLAIN>
static __global__ void __launch_bounds__(S::WARPS *WARP, 1)
    fused_tiles(const __grid_constant__ fused_tiles_args s)
{
#if TILES_POSSIBLE(__CUDA_ARCH__)
    enum { LANES = S::LANES, PER = S::PER, VEC = S::VEC, BATCH = S::BATCH };
    enum { SHARE = int(LANES) / int(BATCH) }; /* lanes with the same score */
    enum { ROW = S::STRIP * 4 };              /* bytes */
    static constexpr uint32_t NONE = ~0u;
    extern __shared__ __align__(16) char memory[];
    const int lane = threadIdx.x % WARP, group = lane / LANES, place = lane % LANES;
    auto column = [&](int i) { return (i * LANES + place) * VEC; };
    uint32_t own_at = uint32_t(__cvta_generic_to_shared(memory)) + place * 16;
    asm volatile("" : "+r"(own_at));
    const row_share own = share_of(s.step * S::WARPS, blockIdx.x);
    const int team = threadIdx.x / LANES, member = team & ((1 << s.shift) - 1);
    const int row = own.begin + (team >> s.shift) < own.end ? own.begin + (team >> s.shift) : -1;
    const int feat = int(s.feat), stride = LANES << s.shift;

    const tiles_ring<float, S> windows =
        make_ring<float, S>(memory, s.y.data, s.y.row, s.a.cols, 0, s.feat, s.packs, true);

    /* The lane's channels of a row in global memory. */
    auto read = [&](const float *from, bool there, float(&part)[PER][VEC]) {
        UNROLLED(k, PER * VEC) {
            const int at = column(k / VEC) + k % VEC;
            part[k / VEC][k % VEC] = there && at < feat ? __ldg(from + at) : 0;
        }
    };

    int64_t begin = 0, length = 0;
    if (row >= 0) length = row_range(s.a, row, &begin);
    const int end = int(begin + length);
    int at = int(begin) + member * LANES; /* of the chunk in near_next */
    uint32_t near = NONE, near_next = NONE;
    float value = 1, value_next = 1;
    const bool valued = s.val.data && s.edge.valued;
    /* Always loads, from the first entry where there is none: what a load may leave as it was would
     * be copied, and who copies it waits for it. */
    auto fetch = [&] {
        const int p = at + place < end ? at + place : 0;
        near_next = __ldg(s.a.idx + p);
        if (PLAIN)
            value_next = __ldg(static_cast<const float *>(s.val.data) + p);
        else if (valued)
            value_next = edge_value<float>(s.val, edge_of(s.val, p), 0);
    };
    /* A group without entries goes on to its next chunk, if there is one. */
    auto refill = [&] {
        const unsigned left = __ballot_sync(ALL, near != NONE) >> group * LANES;
        const bool over = !(left << (WARP - LANES)) && at < end;
        const bool there = at + place < end && near_next < uint32_t(s.a.cols);
        near = over && there ? near_next : near;
        value = over ? value_next : value;
        at += over ? stride : 0;
        fetch();
        return over;
    };

    float sum[PER][VEC] = {}, mine[PER][VEC];
    int terms = 0; /* at most, in each accumulator since it was empty */
    bool added = false;
    /* The sums of groups that share a row meet in a tree; the first of them adds to what it wrote
     * before, and the last time it divides a mean. */
    auto flush = [&](bool last) {
        const float share = last && s.mean && length ? float(length) : 1.f;
        float *const to = s.out.at(row, 0);
        UNROLLED(c, PER * VEC) {
            float *const all = &sum[c / VEC][c % VEC];
            for (int d = LANES; d < stride; d *= 2) *all += __shfl_xor_sync(ALL, *all, d);
            const int k = column(c / VEC) + c % VEC;
            if (member == 0 && row >= 0 && k < feat) to[k] = ((added ? to[k] : 0.f) + *all) / share;
            *all = 0;
        }
        added = true;
        terms = 0;
    };
    /* What most calls ask for comes first. */
    auto weigh = [&](float score, float a) {
        if (!s.linear) return edge_direct(s.edge, score, a).w;
        const float w = fma(score, s.edge.scale, s.edge.shift) * s.edge.factor;
        return s.edge.valued ? w * a : w;
    };
    auto multiply = [&](const float(&other)[PER][VEC]) {
        float dot = 0;
        UNROLLED(k, PER * VEC) dot = fma(mine[k / VEC][k % VEC], other[k / VEC][k % VEC], dot);
        return dot;
    };
    auto add = [&](float by, const float(&other)[PER][VEC]) {
        UNROLLED(k, PER * VEC)
            sum[k / VEC][k % VEC] = fma(by, other[k / VEC][k % VEC], sum[k / VEC][k % VEC]);
    };
    /* Entries below `top`, whose windows are all there. */
    auto take = [&](uint32_t top) {
        const bool here = near < top;
        const unsigned taken = __ballot_sync(ALL, here) >> group * LANES;
        const uint32_t found = near / S::W % S::STAGES * (S::WINDOW * 4) + near % S::W * ROW;
        const uint32_t slot = here ? found : uint32_t(S::W * ROW); /* of zeros */
        if (here) near = NONE;
#pragma unroll
        for (int c = 0; c < LANES; c += BATCH) {
            float other[BATCH][PER][VEC], dot[BATCH];
            UNROLLED(f, BATCH) {
                const uint32_t from = __shfl_sync(ALL, slot, c + f, LANES) + own_at;
                UNROLLED(i, PER)
                    unpack<float, VEC>(load_shared(from + i * LANES * 16), other[f][i]);
            }
            UNROLLED(f, BATCH) dot[f] = multiply(other[f]);
            transpose_sum<float, LANES, BATCH>(dot, place);
            /* Entry c + place / SHARE is this lane's. */
            const int own = c + place / SHARE;
            const float a = SHARE == 1 ? value : __shfl_sync(ALL, value, own, LANES);
            const float all = weigh(dot[0], a), weight = taken >> own & 1 ? all : 0.f;
            UNROLLED(f, BATCH) add(__shfl_sync(ALL, weight, f * SHARE, LANES), other[f]);
        }
    };
    /* Entries below `base`, whose windows have left. */
    auto take_late = [&](uint32_t base) {
#pragma unroll 1
        for (int c = 0; c < LANES; c++) {
            const uint32_t j = __shfl_sync(ALL, near, c, LANES);
            const float a = __shfl_sync(ALL, value, c, LANES);
            float other[PER][VEC];
            read(s.y.at(j < base ? j : 0, 0), j < base, other);
            const float dot = lane_sum<LANES>(multiply(other));
            add(j < base ? weigh(dot, a) : 0.f, other);
        }
        if (near < base) near = NONE;
    };

    fetch();
    windows.copy_window(0);
    read(s.x.at(max(row, 0), 0), true, mine);
    for (int w = 0; w < windows.windows; w++) {
        const int leaving = w - S::READY + 1;
        const uint32_t base = uint32_t(max(leaving, 0)) * S::W;
        const uint32_t top = min(uint32_t(s.a.cols), uint32_t(w + 1) * S::W);
        const uint32_t until = w + 1 == windows.windows ? top : leaving < 0 ? 0 : base + S::W;
        windows.copy_window(w + 1);
        wait_for(windows.full + w % S::STAGES, w / S::STAGES);
        for (;;) {
            const bool over = refill();
            const uint32_t low = __reduce_min_sync(ALL, near);
            const bool wait = __reduce_max_sync(ALL, near + 1) > top; /* NONE + 1 is 0 */
            if (low >= (wait ? until : top)) {
                if (__any_sync(ALL, over)) continue; /* to chunks whose columns are all forged */
                break;
            }
            if (terms + LANES > CHAIN) flush(false);
            terms += LANES;
            if (low < base)
                take_late(base);
            else
                take(top);
        }
        if (leaving >= 0) (void)__mbarrier_arrive(windows.empty + leaving % S::STAGES);
    }
    flush(true);
#endif
}
