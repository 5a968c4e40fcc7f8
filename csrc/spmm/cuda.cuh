/* SpMM `segments`: y[i,h,:] = reduce_p val[eid[p],h] * x[idx[p],h,:], for one element type T.
 *
 * The plan deals out items (cuda/segments.cuh): a piece of a long row, or a bundle of short ones.
 * An item and a head go to a group of LANES lanes. Each lane owns VEC neighbouring columns of the
 * row of y, PER times, and keeps their sums in registers. gridDim.y walks over tiles of columns.
 *
 *     row of y        | VEC | VEC | VEC | VEC |        one pack a lane, PER such stretches a group
 *     lane              0     1     2     3
 *     entries         p p p p                          each lane fetches one entry of a chunk ...
 *     rows of x       | x x | x x | x x | x x |  <- j  ... and hands it round; all gather its row
 *
 * The steps of a chunk of CHUNK entries:
 *   fetch       Each lane asks for idx and val of its entries, a chunk ahead.
 *   arrive      It makes them columns and weights, which waits for them.
 *   gather      Entry by entry, the lanes learn the column by a shuffle and load its row of x, FLY
 *               rows at a time, each lane the columns that it owns.
 *   accumulate  They learn the weights by a shuffle too, and add. Where S is STAGED, a chunk goes
 *               round in shared memory instead, four entries a read.
 * At the end of a row its sums go straight to y. Those of a piece go to its own slot of the
 * workspace, where the group that comes last adds up the slots of the row (cuda_meet.cuh).
 *
 * Heads that share values, or have values of their own in the matrix's order, are columns of one
 * row where they lie side by side. Else each head has groups of its own.
 *
 * Every sum has one owner and an order that depends on the matrix alone: the same bits every time.
 * No accumulator adds more than 512 terms. Gathering takes the time. What helps is to have many
 * loads in flight, and rows of one length together in a warp. */
#pragma once

#include "cuda_meet.cuh"
#include "cuda.h"

#include <type_traits>

/* Reads N values that all lanes of a group find in shared memory, 16 bytes at a time. */
template <int N, class V> static __device__ __forceinline__ void read_staged(const V *from, V *to)
{
    enum { EACH = 16 / sizeof(V) };
    UNROLLED(i, N / EACH)
        reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
}

/* S says how many lanes span a tile of columns (cuda/segments.cuh), VALUES how the values lie, and
 * Reduce how terms meet (both cuda_terms.cuh). */
template <class S, int VALUES, class Reduce>
static __global__ void __launch_bounds__(BLOCK, S::BLOCKS)
    spmm_segments(const __grid_constant__ spmm_args<typename S::T> s)
{
    typedef typename S::T T;
    typedef typename S::A A;
    constexpr int VEC = S::VEC, LANES = S::LANES, PER = S::PER, FLY = S::FLY, STEP = S::STEP;
    /* A chunk has EACH entries for each lane. */
    constexpr int EACH = LANES < 8 ? 8 / LANES : 1, CHUNK = LANES * EACH;
    constexpr bool ADDS = std::is_same<Reduce, reduce_sum>::value;
    typedef typename std::conditional<VALUES == HEADS, uint32_t, int64_t>::type position;
    const task<LANES> t = find_task<LANES, VALUES == ANY>(s);
    if (__all_sync(ALL, !t.rows && t.number)) return; /* behind the last item */
    const int lane = t.lane;
    const int32_t column = (int(blockIdx.y) * LANES * PER + lane) * VEC, feat = (int32_t)s.feat_out;
    const int32_t head = t.head;
    const char *const x =
        reinterpret_cast<const char *>(s.x + (VALUES == ANY ? head * s.x_head : 0) + column);
    T *const y = s.out + head * s.out_head + column;

    for_empty_rows(s, t, [&](int32_t row) {
        const A zeros[VEC] = {};
        UNROLLED(i, PER)
            if (column + i * STEP < feat) store<T, VEC>(y + row * s.out_row + i * STEP, zeros);
    });

    /* HEADS: where the values of each pack's head begin, less `lane` entries, by which next.from is
     * ahead of the first entry of the group's chunk. */
    const char *by[PER];
    if (VALUES == HEADS)
        UNROLLED(i, PER)
            by[i] = static_cast<const char *>(s.val.data) - int64_t(lane) * s.val_row +
                    min(column + i * STEP, feat - 1) / s.head_feat * s.val.head_stride *
                        int64_t(sizeof(T));

    int32_t near[EACH], near_next[EACH]; /* columns; -1 where there is no entry */
    A weight[EACH];
    WORD(A) weight_next[EACH];
    cursor<LANES, position> next = {};
    auto fetch = [&] {
        UNROLLED(e, EACH) {
            near_next[e] = -1, weight_next[e] = 0;
            if (e * LANES >= next.left) continue;
            near_next[e] = __ldg(s.a.idx + (next.from + e * LANES));
            weight_next[e] = value_at<T, VALUES, WORD(A)>(s, next.from + e * LANES, head);
        }
    };
    /* STAGED: where the chunk of the group lies in shared memory. */
    __shared__ __align__(16) int32_t nears[S::STAGED ? BLOCK : 1];
    __shared__ __align__(16) A weights[S::STAGED ? BLOCK : 1];
    const int chunk_at = S::STAGED ? threadIdx.x - lane : 0;
    auto arrive = [&] {
        UNROLLED(e, EACH) {
            const bool there = (uint32_t)near_next[e] < (uint32_t)s.a.cols;
            near[e] = there ? near_next[e] : -1;
            weight[e] = Reduce::weight(value_of<T, VALUES>(s, weight_next[e]), s.reduce);
            if (!there) weight[e] = Reduce::template absent<A>();
        }
        if (!S::STAGED) return;
        __syncwarp(); /* all have read the chunk before */
        nears[threadIdx.x] = near[0], weights[threadIdx.x] = weight[0];
        __syncwarp();
    };

    /* FLY rows of x from entry c of the chunk on; for HEADS the lanes' own values, too, which lie
     * from own_at on. */
    PACK(T, VEC) row[FLY][PER];
    PACK(T, 1) own[FLY][PER];
    const char *own_at[PER];
    auto gather = [&](int c) INLINED {
        __align__(16) int32_t columns[FLY];
        if constexpr (S::STAGED) read_staged<FLY>(nears + chunk_at + c, columns);
        UNROLLED(f, FLY) {
            const int32_t j = S::STAGED
                                  ? columns[f]
                                  : __shfl_sync(ALL, near[(c + f) / LANES], (c + f) % LANES, LANES);
            const T *const at = reinterpret_cast<const T *>(x + uint64_t(uint32_t(j)) * s.x_row);
            UNROLLED(i, PER) {
                const bool there = j >= 0 && column + i * STEP < feat;
                row[f][i] = load_if<T, VEC>(there, at + i * STEP, Reduce::template blank<T>());
                if (VALUES == HEADS)
                    own[f][i] = load_if<T, 1>(there, reinterpret_cast<const T *>(
                                                         own_at[i] + uint64_t(c + f) * s.val_row));
            }
        }
    };
    A sum[PER][VEC];
    auto accumulate = [&](int c) INLINED {
        __align__(16) A handed[FLY];
        if constexpr (S::STAGED && VALUES != HEADS)
            read_staged<FLY>(weights + chunk_at + c, handed);
        UNROLLED(f, FLY) {
            const A shared =
                VALUES == HEADS ? A(1)
                : S::STAGED     ? handed[f]
                                : __shfl_sync(ALL, weight[(c + f) / LANES], (c + f) % LANES, LANES);
            UNROLLED(i, PER) {
                A term[VEC];
                unpack<T, VEC>(row[f][i], term);
                A w = shared;
                if (VALUES == HEADS) unpack<T, 1>(own[f][i], &w);
                UNROLLED(v, VEC) sum[i][v] = Reduce::add(sum[i][v], w, term[v]);
            }
        }
    };

    /* The sums of row `to` of y, which has so many entries. */
    auto write = [&](int32_t to, int64_t terms) {
        UNROLLED(i, PER) {
            if (column + i * STEP >= feat) continue;
            UNROLLED(v, VEC) sum[i][v] = Reduce::finish(sum[i][v], terms, s.reduce);
            store<T, VEC>(y + to * s.out_row + i * STEP, sum[i]);
        }
    };

    next.go_to(t.mine, 0, lane);
    fetch();
    arrive();
    for (int r = 0; r < t.rows; r++) {
        const int32_t length = next.left + lane;
        if (r == 0 || t.item.count) /* a piece keeps its sums while other groups go on */
            UNROLLED(i, PER)
                UNROLLED(v, VEC) sum[i][v] = Reduce::template start<A>();

        /* At least one round, in which the next row's entries are fetched. */
        const int longest = max(most_in_warp<LANES>(length), 1);
        sums_aside<A, PER * VEC> aside;
        for (int done = 0; done < longest; done += CHUNK) {
            if (ADDS && done && done % CHAIN == 0) aside.put(sum[0], done == CHAIN);
#pragma unroll
            for (int i = 0; VALUES == HEADS && i < PER; i++)
                own_at[i] = by[i] + uint64_t(next.from) * s.val_row;
            if (done + CHUNK < longest)
                next.from += CHUNK, next.left -= CHUNK;
            else
                next.go_to(t.mine, r + 1, lane);
            fetch();
#pragma unroll
            for (int c = 0; c < CHUNK; c += FLY) {
                if (c && done + c >= longest) break;
                gather(c);
                accumulate(c);
            }
            arrive();
        }
        if (ADDS && longest > CHAIN) aside.take(sum[0]);

        const int32_t to = __shfl_sync(ALL, t.mine.row, r, LANES);
        if (r < t.item.count) write(to, length);
    }
    const int32_t to = __shfl_sync(ALL, t.mine.row, 0, LANES);
    const meeting<A> pieces = {s.partial, s.tickets, s.width, s.feat_out};
    const int64_t terms = meet<S, Reduce>(s, pieces, t, to, column, sum);
    if (terms >= 0) write(to, terms);
}

/* Chooses by how the values lie. */
template <class S, class Reduce>
static void launch_values(const fmm_exec *exec, dim3 grid, const spmm_args<typename S::T> &s)
{
    typedef typename S::T T;
    typedef typename S::template flying<(S::PER < 4 ? S::FLY : S::FLY / 2)> short_of_registers;
    const bool in_order = !s.val.eid && s.val.dtype == dtype_of<T>();
    auto kernel = spmm_segments<S, ANY, Reduce>;
    if (s.head_feat) /* only sums */
        kernel = spmm_segments<short_of_registers, HEADS, reduce_sum>;
    else if (s.heads == 1 && !s.val.data)
        kernel = spmm_segments<S, ONES, Reduce>;
    else if (s.heads == 1 && in_order && s.val.row_stride == 1)
        kernel = spmm_segments<S, PLAIN, Reduce>;
    launch_meeting(exec, kernel, grid, s, s.tickets, int64_t(grid.y) * s.heads);
}

/* Chooses the reduction, and launches as many tiles of columns as x has. */
template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS>
static void launch_segments(const fmm_exec *exec, spmm_args<T> s)
{
    typedef group_shape<T, VEC, LANES, PER, FLY, BLOCKS> S;
    const int64_t tiles = ceil_div(s.feat_out, LANES * PER * VEC);
    const dim3 grid(deal_blocks(exec, &s, LANES, tiles), (unsigned)tiles);
    if (s.reduce == FMM_SUM || s.reduce == FMM_MEAN)
        launch_values<S, reduce_sum>(exec, grid, s);
    else
        launch_values<S, reduce_extreme>(exec, grid, s);
}

/* The same where packs have less than 16 bytes. */
template <class T, int VEC>
static void choose_narrow(const fmm_exec *exec, const spmm_args<T> &s, int64_t n)
{
    if (n <= 8) return launch_segments<T, VEC, 8, 1, 8, 4>(exec, s);
    if (n <= 32) return launch_segments<T, VEC, 32, 1, 8, 4>(exec, s);
    launch_segments<T, VEC, 32, VEC == 1 ? 4 : 2, 4, 4>(exec, s);
}

/* Whether tiles of 128 bytes pay, which read idx and values four times as often as those of 512. On
 * 38 to 124 M entries, with tables of x beyond the second cache, they took 0.54 to 0.62 of the time
 * on a uniform graph of 233,000 nodes, 0.76 to 0.90 on one of 133,000 and on R-MAT graphs of 0.2
 * and 2.4 million, and 0.92 to 0.97 on two others (H100; f32 and bf16, 96 to 256 columns). On a
 * uniform graph of 2.4 million nodes they took 1.02 to 1.05. Without hubs, whose rows stay in the
 * cache, all rows of a tile have to fit. Values behind an eid cost a sector for each tile. */
template <class T> static bool narrow_tiles_pay(const fmm_exec *exec, const spmm_args<T> &s)
{
    const int64_t row = s.feat_out * s.heads * int64_t(sizeof(T));
    return !(s.val.data && s.val.eid) && few_columns_pay(exec->index, s.a.nnz, s.a.cols, row) &&
           (s.plan.long_rows_max || s.a.cols <= fmm_cuda_second_cache(exec->index) / 128);
}

/* Chooses lanes and loads for a row of x. The fewest lanes span it with one load each up to 256
 * bytes, then with two loads each, which leaves fewer lanes to hand idx and val to. Wider rows are
 * taken in tiles of 512 bytes, one after the other: of a table beyond L2, more of the tile stays
 * there (K 256, 117 M entries: 17.0 instead of 19.3 ms), and no graph measured was slower. Where
 * narrow tiles pay they have 128 bytes. Where the card holds a group for each row at once, more
 * lanes keep more of it busy.
 *
 * Long rows fill eight loads in flight, which pays for fewer warps (2 M entries, 500 a row: 46
 * instead of 54 us at K 32); with 7 entries a row they cost 5 to 15 percent. In full matrices they
 * find most rows of x in L1, and wide groups share them the better (the same graph: 77 instead of
 * 96 us at K 128, 143 instead of 158 at K 256). Where there are few rows, 16 entries a row are
 * enough for eight loads (4,000 to 8,000 rows of 19 to 31 entries: 0.94 to 0.99 of the time), and
 * wider ones of x take two loads each (4,000 rows, K 256: 20.2 instead of 21.0 us, H100).
 *
 * Between these, rows of 16 entries fill four loads twice, in matrices of few entries rows of eight
 * (0.16 M, 9 a row: 22.0 instead of 23.3 us at K 128, 34.8 instead of 36.7 at K 256, H100). Rows of
 * 64 entries fill groups of eight lanes, of which more share L1 (1.0 M, 88 a row: 104 instead of
 * 107 us at K 256, 192 instead of 197 at K 512). */
template <class T> static void choose_lanes(const fmm_exec *exec, const spmm_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T), LONG_ROWS = 256, FULL = 32, FLY = 32 / V, BLOCKS = V == 4 ? 3 : 4 };
    const int64_t n = ceil_div(s.feat_out, vec); /* loads that span a row */
    const bool few = card_fills(exec, s.a.rows, ceil_div(n, 32), 16) < 1;
    if constexpr (sizeof(T) < 8)
        if (vec == V && n > 16 && n % 8 == 0 && narrow_tiles_pay(exec, s)) /* all are full */
            return launch_segments<T, V, 8, 1, FLY, BLOCKS>(exec, s);
    if constexpr (sizeof(T) == 4)
        if (vec == V && n > 4 && s.a.nnz >= (few && n > 8 ? 16 : LONG_ROWS) * s.a.rows) {
            if (few && n > 32) return launch_segments<T, V, 32, 2, 4, 3>(exec, s);
            if (n <= 16 || few || s.a.nnz * FULL >= s.a.rows * int64_t(s.a.cols))
                return for_least<8, 16, 32>(
                    n, [&](auto lanes) { launch_segments<T, V, lanes, 1, 8, 3>(exec, s); });
            return launch_segments<T, V, 16, 2, 4, 3>(exec, s);
        }
    if (vec == V && n <= 16)
        return for_least<2, 4, 8, 16>(
            n, [&](auto lanes) { launch_segments<T, V, lanes, 1, 4, 4>(exec, s); });
    if (vec == V && few) return launch_segments<T, V, 32, 1, 4, 4>(exec, s);
    const bool small = s.a.nnz < 1 << 18;
    if constexpr (sizeof(T) == 4) /* rows of middling length */
        if (vec == V && (small || n > 32) && s.a.nnz < 1 << 20 &&
            s.a.nnz >= (small ? 8 : 16) * s.a.rows)
            return s.a.nnz >= 64 * s.a.rows ? launch_segments<T, V, 8, 2, 4, 3>(exec, s)
                                            : launch_segments<T, V, 16, 2, 4, 3>(exec, s);
    if (vec == V) return launch_segments<T, V, 16, 2, 2, 4>(exec, s);
    if (vec == V / 2) return choose_narrow<T, V / 2>(exec, s, n);
    choose_narrow<T, 1>(exec, s, n);
}

/* What int32 columns and the grid's second axis surely hold. */
enum { FEAT_MOST = 65535 * 8 };

/* Whether a sum over values of each head can be one of HEADS: values lie in the matrix's order and
 * have x's type, and entries and strides are 32-bit factors. */
template <class T> static bool has_own_values(const fmm_csr *a, const fmm_call *call)
{
    const fmm_dense *const val = call->val;
    return (call->reduce == FMM_SUM || call->reduce == FMM_MEAN) && !a->eid &&
           (int)val->dtype == dtype_of<T>() && a->nnz <= INT32_MAX &&
           val->row_stride <= int64_t(UINT32_MAX / sizeof(T));
}

/* Heads become columns of one row where that is possible, which is what `flat` says. The workspace
 * holds the plan, if the matrix brought none, and then the slots. */
template <class T> static fmm_status spmm_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const bool shared = !call->val || !call->val->data || call->val->heads == 1;
    const bool each = !shared && has_own_values<T>(a, call);
    const bool flat = (shared || each) && can_be_flat(call->x) && can_be_flat(call->y) &&
                      call->x->heads * call->x->feat <= FEAT_MOST;
    /* What the kernels see as one row. */
    const fmm_dense x = flat ? flat_heads(call->x) : *call->x;
    const fmm_dense y = flat ? flat_heads(call->y) : *call->y;
    int before;
    TRY(cuda_enter("spmm", exec, &before));

    spmm_args<T> s;
    static_cast<dealt &>(s) = deal(exec, a, call->val, x.heads);
    s.x = static_cast<const T *>(x.data);
    s.out = static_cast<T *>(y.data);
    s.partial = reinterpret_cast<typename sum_of<T>::type *>(static_cast<char *>(exec->workspace) +
                                                             plan_workspace(a));
    s.x_row = uint32_t(x.row_stride * int64_t(sizeof(T)));
    s.x_head = x.head_stride;
    s.out_row = y.row_stride;
    s.out_head = y.head_stride;
    s.feat_out = x.feat;
    s.width = quads(x.feat);
    s.tickets = reinterpret_cast<uint32_t *>(s.partial + plan_slots(a) * x.heads * s.width);
    s.reduce = call->reduce;
    s.head_feat = flat && each ? (int32_t)call->x->feat : 0;
    s.val_row = s.head_feat ? uint32_t(s.val.row_stride * int64_t(sizeof(T))) : 0;

    const int full = 16 / sizeof(T);
    int vec = full;
    while (vec > 1 && !(lies_in_packs(&x, sizeof(T), vec) && lies_in_packs(&y, sizeof(T), vec) &&
                        call->x->feat % (s.head_feat ? vec : 1) == 0))
        vec = vec == full ? full / 2 : 1;
    choose_lanes(exec, s, vec);
    return cuda_leave("spmm", exec, before);
}
