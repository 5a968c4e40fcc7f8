/* SDDMM `segments`: e[eid[p],h] = val[eid[p],h] * <a[i,h,:], b[idx[p],h,:]>, for one element type
 * T.
 *
 * Work is dealt as for SpMM (cuda/segments.cuh): a piece of a long row, or a bundle of short ones,
 * and a head go to a group of LANES lanes. The group keeps its slice of the own row, a[i], in
 * registers and gathers far rows, b[j], BATCH of them for a batch of entries. Each lane multiplies
 * its columns, and so has a share of BATCH dot products; the butterfly (transpose_sum) adds up the
 * shares and leaves each sum in one lane.
 *
 *     columns     | VEC | VEC | VEC | VEC |     one pack a lane, PER such stretches a group
 *     own row     | l 0 | l 1 | l 2 | l 3 |     in registers for all entries of the row
 *     far row 0   | * + | * + | * + | * + | --> lane 0 writes entry 0
 *     far row 1   | * + | * + | * + | * + | --> lane 1 writes entry 1
 *        ...                                    BATCH of them, FLY in flight at a time
 *
 * The steps of a chunk of CHUNK entries:
 *   fetch     Each lane asks for idx and eid of the entries that it will write, a chunk ahead.
 *   arrive    It checks that they are columns, and asks for val.
 *   multiply  The lanes gather a batch of far rows and multiply them with the own row.
 *   join      The butterfly adds up what the lanes have.
 *   write     The lane that fetched an entry multiplies by its value and writes it.
 * Every entry has one owner and one order of addition: the same bits every time.
 *
 * A row that is wider than the group's tile is taken tile by tile (WIDE), and then a's slice is
 * read again for each batch, from L1. No accumulator adds more than 512 terms: after CHAIN of them
 * it is added to a second one. */
#pragma once

#include "../cuda/segments.cuh"
#include "cuda.h"

template <class T> struct sddmm_args : dealt {
    dense_view<const T> own, far; /* a and b */
    dense_view<T> e;              /* the result, a number for each edge and head */
    int64_t feat;                 /* columns of a and b */
    uint32_t far_row;             /* from row to row of b, in bytes */
};

/* Sums `dot` over the group. Afterwards lane l holds, in its first BATCH / LANES elements (at least
 * one), the sums of the entries from l * BATCH / LANES on.
 *
 * At each step a lane keeps half of the products and hands the other half to the lane that keeps
 * those, so that 8 products over 8 lanes take 7 shuffles instead of 24. Two lanes and two products:
 *
 *     lane 0: p q  --- q --->  lane 0: p + p'
 *     lane 1: p' q' <-- p' --- lane 1: q + q'
 */
template <class A, int LANES, int BATCH>
static __device__ __forceinline__ void transpose_sum(A *dot, int lane)
{
    int left = BATCH;
#pragma unroll
    for (int d = LANES / 2; d; d /= 2) {
        const bool upper = lane & d;
        if (left > 1) {
            left /= 2;
            UNROLLED(k, left) {
                const A give = upper ? dot[k] : dot[k + left];
                const A stay = upper ? dot[k + left] : dot[k];
                dot[k] = stay + __shfl_xor_sync(ALL, give, d);
            }
        } else {
            dot[0] += __shfl_xor_sync(ALL, dot[0], d);
        }
    }
}

/* ANY: there are values, or another order of edges. Else entries are written in the matrix's order.
 */
template <class S, bool ANY, bool WIDE>
static __global__ void __launch_bounds__(BLOCK, S::BLOCKS)
    sddmm_segments(const __grid_constant__ sddmm_args<typename S::T> s)
{
    typedef typename S::T T;
    typedef typename S::A A;
    constexpr int VEC = S::VEC, LANES = S::LANES, PER = S::PER, FLY = S::FLY, STEP = S::STEP;
    constexpr int BATCH = 8, TILE = PER * STEP;
    constexpr int EACH = LANES < BATCH ? BATCH / LANES : 1; /* entries of a chunk in a lane */
    constexpr int CHUNK = LANES * EACH;
    constexpr int SHARE = LANES < BATCH ? 1 : LANES / BATCH; /* lanes with the same sum */
    const task<LANES> t = find_task<LANES>(s);
    const int lane = t.lane;
    const int32_t head = t.head;

    /* The lane's slice of a tile of the own row, packed. To unpack it is to wait for its load, so
     * that is done once the gathers are on their way. */
    PACK(T, VEC) own[PER];
    auto is_in = [&](int64_t tile, int i) { return tile + (i * LANES + lane) * VEC < s.feat; };
    auto read_own = [&](int32_t row, int64_t tile) {
        const T *const from = s.own.at(row, head, lane * VEC + tile);
        UNROLLED(i, PER) own[i] = load_if<T, VEC>(is_in(tile, i), from + i * STEP);
    };
    /* Where it gathers far rows. Channels past the end are the same zeros for every row. */
    const char *far[PER];
    uint32_t far_row[PER];
    auto find_far = [&](int64_t tile) {
        const T *const at = s.far.at(0, head, lane * VEC + tile);
        UNROLLED(i, PER) {
            const bool there = s.a.cols > 0 && is_in(tile, i);
            far[i] = there ? reinterpret_cast<const char *>(at + i * STEP)
                           : reinterpret_cast<const char *>(&no_row);
            far_row[i] = there ? s.far_row : 0;
        }
    };

    /* The lane's first entry in a chunk. A lane fetches those entries whose sums the butterfly will
     * leave in it, since it multiplies them by their values and writes them. In a group of fewer
     * lanes than a batch has entries these are EACH neighbours. In a wider group SHARE lanes end
     * with the same sum, and each of them takes it from another batch of the chunk.
     *
     * Columns and edges are asked for a chunk ahead, values where their chunk begins. Each is used
     * as late as possible, since a warp waits where it first uses what it loads. */
    const int place = SHARE > 1 ? lane % SHARE * BATCH + lane / SHARE : lane * EACH;
    int32_t near[EACH], near_next[EACH];
    uint32_t edge_next[EACH];
    cursor<LANES> next = {};
    auto fetch = [&] {
        UNROLLED(e, EACH) {
            near_next[e] = -1;
            if (ANY) edge_next[e] = 0;
            if (e >= next.left) continue;
            near_next[e] = __ldg(s.a.idx + (next.from + e));
            if (ANY) edge_next[e] = edge_asked(s.val, next.from + e);
        }
    };
    bool there[EACH];
    int64_t edge[EACH];
    WORD(A) value[EACH];
    /* Entries that are not there take the column of the group's first, whose lines are near: no
     * select stands between a column and its load, and what they give is not written. */
    auto arrive = [&] {
        UNROLLED(e, EACH) {
            there[e] = (uint32_t)near_next[e] < (uint32_t)s.a.cols;
            near[e] = there[e] ? near_next[e] : 0;
        }
        const int32_t first = __shfl_sync(ALL, near[0], 0, LANES);
        UNROLLED(e, EACH)
            if (!there[e]) near[e] = first;
#pragma unroll
        for (int e = 0; ANY && e < EACH; e++) {
            edge[e] = -1, value[e] = 0;
            if (e >= next.left) continue;
            edge[e] = edge_said(s.val, next.from + e, edge_next[e]);
            if (s.val.data)
                value[e] = edge_bits<WORD(A)>(s.val, clamp(edge[e], 0, s.val.nnz - 1), head);
        }
    };
    /* Adds the products of one tile of BATCH far rows, or of half as many, from entry c of the
     * chunk. */
    auto multiply = [&](int c, bool few, A *dot) {
#pragma unroll
        for (int g = 0; g < BATCH; g += FLY) {
            if (g == BATCH / 2 && few) break;
            PACK(T, VEC) row[FLY][PER];
            UNROLLED(f, FLY) {
                const int at = c + g + f;
                const int32_t j =
                    SHARE > 1 ? __shfl_sync(ALL, near[0], at % BATCH * SHARE + at / BATCH, LANES)
                              : __shfl_sync(ALL, near[at % EACH], at / EACH, LANES);
                UNROLLED(i, PER)
                    row[f][i] = load<T, VEC>(
                        reinterpret_cast<const T *>(row_at(far[i], (uint32_t)j, far_row[i])));
            }
            UNROLLED(i, PER) {
                A of_own[VEC];
                unpack_here<T, VEC>(own[i], of_own);
                UNROLLED(f, FLY) {
                    A of_far[VEC];
                    unpack<T, VEC>(row[f][i], of_far);
                    UNROLLED(v, VEC) dot[g + f] += of_own[v] * of_far[v];
                }
            }
        }
    };
    /* The same for rows of any width, at most CHAIN terms in one accumulator. */
    auto multiply_tiles = [&](int32_t row, int c, bool few, A *dot) {
        for (int64_t tile = 0; tile < s.feat;) {
            A part[BATCH];
            UNROLLED(f, BATCH) part[f] = A(0);
            const int64_t end = min(s.feat, tile + int64_t(CHAIN) * LANES);
            for (; tile < end; tile += TILE) {
                read_own(row, tile);
                find_far(tile);
                multiply(c, few, part);
            }
            UNROLLED(f, BATCH) dot[f] += part[f];
        }
    };

    if (!WIDE) find_far(0);
    next.go_to(t.mine, 0, place);
    fetch();
    for (int r = 0; r < t.rows; r++) {
        const int32_t row = __shfl_sync(ALL, t.mine.row, r, LANES);
        if (!WIDE) read_own(row, 0);
        const int longest = max(most_in_warp<LANES>(next.left + place), 1);
        for (int done = 0; done < longest; done += CHUNK) {
            const cursor<LANES> here = next;
            arrive();
            if (done + CHUNK < longest)
                next.from += CHUNK, next.left -= CHUNK;
            else
                next.go_to(t.mine, r + 1, place);
            fetch();

            A total[EACH];
#pragma unroll
            for (int c = 0; c < CHUNK; c += BATCH) {
                if (c && done + c >= longest) break;
                const bool few = done + c + BATCH / 2 >= longest;
                A dot[BATCH];
                UNROLLED(f, BATCH) dot[f] = A(0);
                if (WIDE)
                    multiply_tiles(row, c, few, dot);
                else
                    multiply(c, few, dot);
                transpose_sum<A, LANES, BATCH>(dot, lane);
                UNROLLED(e, EACH)
                    if (c == 0 || lane % SHARE == c / BATCH) total[e] = dot[e];
            }
            UNROLLED(e, EACH) {
                if (!there[e]) total[e] = A(0);
                if (ANY && s.val.data) total[e] *= edge_number<A>(s.val, value[e]);
                if (ANY ? !is_edge(s.val, edge[e]) : e >= here.left) continue;
                store<T, 1>(s.e.at(ANY ? edge[e] : here.from + e, head), &total[e]);
            }
        }
    }
}

template <class S, bool WIDE> static void launch(const fmm_exec *exec, sddmm_args<typename S::T> s)
{
    const unsigned grid = deal_blocks(exec, &s, S::LANES, 1);
    const auto kernel =
        s.val.eid || s.val.data ? sddmm_segments<S, true, WIDE> : sddmm_segments<S, false, WIDE>;
    kernel<<<grid, BLOCK, 0, stream_of(exec)>>>(s);
}

/* Chooses lanes and loads for a row of b. Fewer lanes mean fewer steps of the butterfly, and more
 * short rows side by side. Where rows are long, a load for each lane and more lanes took 0.72 to
 * 0.98 of the time at 64 columns of f32 and 0.77 to 1.04 at 128 (H100). A small matrix leaves the
 * card half empty, so there all eight rows of a batch are in flight (K 128 on the smallest graphs:
 * 12 instead of 15 us). Packs of 16 bits unpack into twice the registers, which four blocks do not
 * have. The order of a sum depends on the lanes, so lanes are chosen from the whole matrix. */
template <class T>
static void choose_lanes(const fmm_exec *exec, const fmm_csr *a, const sddmm_args<T> &s, bool packs)
{
    enum { V = 16 / sizeof(T), BLOCKS = V > 4 ? 3 : 4, FLY = V == 4 ? 4 : 2, FEW = V == 2 ? 4 : 3 };
    const int64_t n = ceil_div(s.feat, packs ? V : 1);
    const bool small = is_small(whole_nnz(a)), few = !small && whole_nnz(a) < 32 * whole_rows(a);
    if (packs && n <= 2) return launch<group_shape<T, V, 2, 1, 8, BLOCKS>, false>(exec, s);
    if (packs && n <= 4) return launch<group_shape<T, V, 4, 1, 8, BLOCKS>, false>(exec, s);
    if (packs && n <= 8) return launch<group_shape<T, V, 8, 1, 8, 4>, false>(exec, s);
    if (packs && n <= 16 && few) return launch<group_shape<T, V, 8, 2, FLY, FEW>, false>(exec, s);
    if (packs && n <= 16) return launch<group_shape<T, V, 16, 1, 8, 4>, false>(exec, s);
    if (packs && n <= 32 && few) return launch<group_shape<T, V, 16, 2, FLY, FEW>, false>(exec, s);
    if (packs && n <= 32 && small) return launch<group_shape<T, V, 16, 2, 8, 2>, false>(exec, s);
    if (packs && n <= 32) return launch<group_shape<T, V, 32, 1, 4, 4>, false>(exec, s);
    if (packs && n <= 64) return launch<group_shape<T, V, 32, 2, 2, BLOCKS>, false>(exec, s);
    if (packs && n <= 128) return launch<group_shape<T, V, 32, 4, FLY, 2>, false>(exec, s);
    if constexpr (V == 4) /* a's row stays in registers here too, 32 of them */
        if (packs && n <= 256) return launch<group_shape<T, V, 32, 8, 1, 2>, false>(exec, s);
    if (packs) return launch<group_shape<T, V, 32, 2, 4, 2>, true>(exec, s);
    if (n <= 8) return launch<group_shape<T, 1, 8, 1, 8, 4>, false>(exec, s);
    if (n <= 32) return launch<group_shape<T, 1, 32, 1, 8, 4>, false>(exec, s);
    if (n <= 128) return launch<group_shape<T, 1, 32, 4, 4, 3>, false>(exec, s);
    return launch<group_shape<T, 1, 32, 4, 4, 2>, true>(exec, s);
}

template <class T> static fmm_status sddmm_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_dense *a = call->x, *b = call->b;
    const int full = 16 / sizeof(T);
    const bool packs = lies_in_packs(a, sizeof(T), full) && lies_in_packs(b, sizeof(T), full);
    return on_device("sddmm", exec, [&] {
        sddmm_args<T> s;
        static_cast<dealt &>(s) = deal(exec, call->a, call->val, a->heads);
        s.own = view_dense<const T>(a), s.far = view_dense<const T>(b);
        s.e = view_dense<T>(call->y);
        s.feat = a->feat;
        s.far_row = uint32_t(s.far.row * int64_t(sizeof(T)));
        choose_lanes(exec, call->a, s, packs);
    });
}
