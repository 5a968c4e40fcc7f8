/* SpMM `segments`: y[i,h,:] = reduce_p val[eid[p],h] * x[idx[p],h,:], for one element type T.
 *
 * The plan (segments.cuh) deals out items: a piece of a long row, or a bundle of short ones. An
 * item and a head go to a group of LANES lanes, which reads idx and val of CHUNK entries at once,
 * one chunk ahead, hands them round by shuffles, and gathers FLY rows of x at a time, VEC elements
 * (16 bytes, if x lies so) a lane and load, PER loads a row; the sums stay in registers. Heads that
 * share values, or have values of their own in the matrix's order, are columns of one row where
 * they lie side by side; else groups of one item, different in head, are neighbours in a warp, so
 * that their loads fall together. gridDim.y walks over tiles of columns.
 *
 * A whole row is written once, straight to y; empty rows are dealt out evenly and written while the
 * first loads are under way. A piece goes to its own slot of the workspace, and a second kernel
 * adds the slots of each long row. Every sum has one owner and an order that depends on the matrix
 * alone: the same bits every time. No accumulator adds more than 512 terms, here or there.
 * Gathering takes the time; what helps is loads in flight and rows of one length together. */
#ifndef FMM_CUDA_SPMM_CUH
#define FMM_CUDA_SPMM_CUH

#include "cuda_join.cuh"

#include <type_traits>

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS, int VALUES, class Reduce>
static __global__ void __launch_bounds__(BLOCK, BLOCKS)
    spmm_segments(const __grid_constant__ spmm_args<T> s)
{
    typedef typename sum_of<T>::type A;
    typedef typename std::conditional<VALUES == HEADS, uint32_t, int64_t>::type position;
    enum { EACH = LANES < 8 ? 8 / LANES : 1, CHUNK = LANES * EACH };
    let_next_start();
    const int lane = threadIdx.x % LANES;
    const int64_t group = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES;
    const int32_t column = (int(blockIdx.y) * LANES * PER + lane) * VEC, feat = (int32_t)s.feat;

    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t k = VALUES == ANY ? item_of(group, s.heads, s.per_head) : group;
    const int32_t head = VALUES == ANY ? (int32_t)(group - k * s.heads) : 0;
    const item_view item = find_item(counts, k, s.shift);
    span mine = find_span(s.a, s.plan, item, lane);
    mine.begin = position(mine.begin);
    const int rows = most_in_warp<LANES>(max(item.count, item.count == 0));
    const char *const x =
        reinterpret_cast<const char *>(s.x + (VALUES == ANY ? head * s.x_head : 0) + column);
    T *const y = s.y + head * s.y_head + column;

    /* Empty rows: as many to each item. */
    for (int64_t e = k, items = count_items(counts, s.shift); e < s.a.rows - counts.ends[BUNDLES];
         e += max(items, int64_t(1))) {
        if (k >= items && k) break;
        const int32_t row =
            (int32_t)clamp(__ldg(s.plan.order + counts.ends[BUNDLES] + e), 0, s.a.rows - 1);
        const A zeros[VEC] = {};
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (column + i * LANES * VEC < feat)
                store<T, VEC>(y + row * s.y_row + i * LANES * VEC, zeros);
    }

    /* HEADS: what the lane's head has for the entry `lane` before the one that is asked for. */
    const char *by[PER];
    if (VALUES == HEADS)
#pragma unroll
        for (int i = 0; i < PER; i++)
            by[i] = static_cast<const char *>(s.val.data) - int64_t(lane) * s.val_row +
                    min(column + i * LANES * VEC, feat - 1) / s.head_feat * s.val.head_stride *
                        int64_t(sizeof(T));

    int32_t near[EACH], near_next[EACH];
    A weight[EACH];
    WORD(A) weight_next[EACH];
    position from; /* where the lane fetches next, and how far its group's row goes on from there */
    int32_t left;
    auto fetch = [&] {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            near_next[e] = -1, weight_next[e] = 0;
            if (e * LANES >= left) continue;
            near_next[e] = __ldg(s.a.idx + (from + e * LANES));
            weight_next[e] = value_at<T, VALUES, WORD(A)>(s, from + e * LANES, head);
        }
    };
    auto arrive = [&] {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const bool there = (uint32_t)near_next[e] < (uint32_t)s.a.cols;
            near[e] = there ? near_next[e] : -1;
            weight[e] = Reduce::weight(value_of<T, VALUES>(s, weight_next[e]), s.reduce);
            if (!there) weight[e] = Reduce::template absent<A>();
        }
    };

    auto go_to = [&](int r) { /* lanes are counted modulo LANES */
                              from =
                                  position(__shfl_sync(ALL, position(mine.begin), r, LANES)) + lane;
                              left = __shfl_sync(ALL, mine.length, r, LANES);
                              left = (r < LANES ? left : 0) - lane;
    };
    go_to(0);
    fetch();
    arrive();
    for (int r = 0; r < rows; r++) {
        const int32_t length = left + lane;
        A sum[PER][VEC];
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int v = 0; v < VEC; v++) sum[i][v] = Reduce::template start<A>();

        const int longest = max(most_in_warp<LANES>(length), 1);
        constexpr bool ADDS = std::is_same<Reduce, reduce_sum>::value;
        sums_aside<A, PER * VEC> aside;
        for (int done = 0; done < longest; done += CHUNK) {
            if (ADDS && done && done % CHAIN == 0) aside.put(sum[0], done == CHAIN);
            const char *own_at[PER];
#pragma unroll
            for (int i = 0; VALUES == HEADS && i < PER; i++)
                own_at[i] = by[i] + uint64_t(from) * s.val_row;
            if (done + CHUNK < longest)
                from += CHUNK, left -= CHUNK;
            else
                go_to(r + 1);
            fetch();
#pragma unroll
            for (int c = 0; c < CHUNK; c += FLY) {
                if (c && done + c >= longest) break;
                PACK(T, VEC) row[FLY][PER];
                PACK(T, 1) own[FLY][PER];
#pragma unroll
                for (int f = 0; f < FLY; f++) {
                    const int32_t j =
                        __shfl_sync(ALL, near[(c + f) / LANES], (c + f) % LANES, LANES);
                    const T *const at =
                        reinterpret_cast<const T *>(x + uint64_t(uint32_t(j)) * s.x_row);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        const bool there = j >= 0 && column + i * LANES * VEC < feat;
                        row[f][i] = load_if<T, VEC>(there, at + i * LANES * VEC,
                                                    Reduce::template blank<T>());
                        if (VALUES == HEADS)
                            own[f][i] =
                                load_if<T, 1>(there, reinterpret_cast<const T *>(
                                                         own_at[i] + uint64_t(c + f) * s.val_row));
                    }
                }
#pragma unroll
                for (int f = 0; f < FLY; f++) {
                    const A shared = VALUES == HEADS ? A(1)
                                                     : __shfl_sync(ALL, weight[(c + f) / LANES],
                                                                   (c + f) % LANES, LANES);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        A term[VEC];
                        unpack<T, VEC>(row[f][i], term);
                        A w = shared;
                        if (VALUES == HEADS) unpack<T, 1>(own[f][i], &w);
#pragma unroll
                        for (int v = 0; v < VEC; v++)
                            sum[i][v] = Reduce::add(sum[i][v], w, term[v]);
                    }
                }
            }
            arrive();
        }
        if (ADDS && longest > CHAIN) aside.take(sum[0]);

        const int32_t row = __shfl_sync(ALL, mine.row, r, LANES);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (column + i * LANES * VEC >= feat) continue;
            if (item.count == 0 && r == 0) {
                keep<A, VEC>(s.partial + (int64_t(item.from) * s.heads + head) * s.width + column +
                                 i * LANES * VEC,
                             sum[i]);
            } else if (r < item.count) {
#pragma unroll
                for (int v = 0; v < VEC; v++)
                    sum[i][v] = Reduce::finish(sum[i][v], length, s.reduce);
                store<T, VEC>(y + row * s.y_row + i * LANES * VEC, sum[i]);
            }
        }
    }
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS, class Reduce>
static void launch_values(const fmm_exec *exec, dim3 grid, const spmm_args<T> &s)
{
    const cudaStream_t stream = stream_of(exec);
    const bool in_order = !s.val.eid && s.val.dtype == dtype_of<T>();
    if (s.head_feat) { /* only sums */
        constexpr int fly = PER < 4 ? FLY : FLY / 2;
        spmm_segments<T, VEC, LANES, PER, fly, BLOCKS, HEADS, reduce_sum>
            <<<grid, BLOCK, 0, stream>>>(s);
    } else if (s.heads == 1 && !s.val.data)
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, ONES, Reduce><<<grid, BLOCK, 0, stream>>>(s);
    else if (s.heads == 1 && in_order && s.val.row_stride == 1)
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, PLAIN, Reduce>
            <<<grid, BLOCK, 0, stream>>>(s);
    else
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, ANY, Reduce><<<grid, BLOCK, 0, stream>>>(s);
    if (s.plan.long_rows_max) launch_join<T, Reduce>(exec, s);
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS>
static void launch_segments(const fmm_exec *exec, spmm_args<T> s)
{
    s.shift = bundle_shift(s.a.rows);
    while (1 << s.shift > LANES) s.shift--;
    const int64_t items = items_max(s.plan, s.a.rows, s.a.nnz, s.shift) * int64_t(s.heads);
    const dim3 grid(blocks_for(items * LANES), (unsigned)ceil_div(s.feat, LANES * PER * VEC));
    if (s.reduce == FMM_SUM || s.reduce == FMM_MEAN)
        launch_values<T, VEC, LANES, PER, FLY, BLOCKS, reduce_sum>(exec, grid, s);
    else
        launch_values<T, VEC, LANES, PER, FLY, BLOCKS, reduce_extreme>(exec, grid, s);
}

/* Lanes and loads for a row of x: the fewest lanes that span it with one load each up to 256 bytes,
 * then two loads each, which leaves fewer lanes to hand idx and val to. Wider rows are taken in
 * tiles of 512 bytes, one after the other: of a table beyond L2, more of the tile stays there
 * (K 256, 117 M entries: 17.0 instead of 19.3 ms), and no graph measured was slower. Long rows fill
 * eight loads in flight, which pays for fewer warps (2 M entries, 500 a row: 46 instead of 54 us at
 * K 32, 98 instead of 113 at K 128); with 7 entries a row they cost 5 to 15 percent. */
template <class T> static void choose_lanes(const fmm_exec *exec, const spmm_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T), LONG_ROWS = 256 };
    const int64_t n = ceil_div(s.feat, vec);
    if constexpr (sizeof(T) == 4)
        if (vec == V && n > 4 && s.a.nnz >= LONG_ROWS * s.a.rows) {
            if (n <= 8) return launch_segments<T, V, 8, 1, 8, 3>(exec, s);
            if (n <= 16) return launch_segments<T, V, 16, 1, 8, 3>(exec, s);
            if (is_small(s.a.nnz)) return launch_segments<T, V, 32, 1, 8, 3>(exec, s);
            return launch_segments<T, V, 16, 2, 4, 3>(exec, s);
        }
    if (vec == V && n <= 2) return launch_segments<T, V, 2, 1, 4, 4>(exec, s);
    if (vec == V && n <= 4) return launch_segments<T, V, 4, 1, 4, 4>(exec, s);
    if (vec == V && n <= 8) return launch_segments<T, V, 8, 1, 4, 4>(exec, s);
    if (vec == V && n <= 16) return launch_segments<T, V, 16, 1, 4, 4>(exec, s);
    if (vec == V && is_small(s.a.nnz)) return launch_segments<T, V, 32, 1, 4, 4>(exec, s);
    if (vec == V) return launch_segments<T, V, 16, 2, 2, 4>(exec, s);
    if (n <= 8) return launch_segments<T, 1, 8, 1, 8, 4>(exec, s);
    if (n <= 32) return launch_segments<T, 1, 32, 1, 8, 4>(exec, s);
    return launch_segments<T, 1, 32, 4, 4, 4>(exec, s);
}

/* What int32 columns and the grid's second axis surely hold. */
enum { FEAT_MOST = 65535 * 8 };

/* Slots of partial sums begin at 16 bytes and hold whole groups of WIDTH columns. */
static inline int64_t partial_width(int64_t feat) { return ceil_div(feat, WIDTH) * WIDTH; }

/* Whether a sum over values of each head is one of HEADS: entries and strides are 32-bit factors.
 */
template <class T> static bool has_own_values(const fmm_csr *a, const fmm_call *call)
{
    const fmm_dense *const val = call->val;
    return (call->reduce == FMM_SUM || call->reduce == FMM_MEAN) && !a->eid &&
           (int)val->dtype == dtype_of<T>() && a->nnz <= INT32_MAX &&
           val->row_stride <= int64_t(UINT32_MAX / sizeof(T));
}

template <class T> static fmm_status spmm_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const bool shared = !call->val || !call->val->data || call->val->heads == 1;
    const bool each = !shared && has_own_values<T>(a, call);
    const bool flat = (shared || each) && can_be_flat(call->x) && can_be_flat(call->y) &&
                      call->x->heads * call->x->feat <= FEAT_MOST;
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
    s.x_row = uint32_t(x.row_stride * int64_t(sizeof(T)));
    s.x_head = x.head_stride;
    s.y_row = y.row_stride;
    s.y_head = y.head_stride;
    s.feat = x.feat;
    s.width = partial_width(x.feat);
    s.heads = (int32_t)x.heads;
    s.per_head = reciprocal(x.heads);
    s.reduce = call->reduce;
    s.head_feat = flat && each ? (int32_t)call->x->feat : 0;
    s.val_row = s.head_feat ? uint32_t(s.val.row_stride * int64_t(sizeof(T))) : 0;

    const int full = 16 / sizeof(T);
    const bool packs = lies_in_packs(&x, sizeof(T), full) && lies_in_packs(&y, sizeof(T), full) &&
                       call->x->feat % (s.head_feat ? full : 1) == 0;
    choose_lanes(exec, s, packs ? full : 1);
    return cuda_leave("spmm", exec, before);
}

#endif
