/* SDDMM `segments`: e[eid[p],h] = val[eid[p],h] * <a[i,h,:], b[idx[p],h,:]>, for one element type
 * T.
 *
 * Work is dealt as for SpMM (spmm/cuda.cuh): a piece of a long row, or a bundle of short ones, and
 * a head go to a group of LANES lanes. The group keeps its slice of a's row in registers and
 * gathers BATCH rows of b, FLY of them in flight; each lane has its share of BATCH dot products. A
 * transposing butterfly sums them: at each step a lane keeps half of the products and hands over
 * the other half, so that 8 products over 8 lanes take 7 shuffles instead of 24, and end one in
 * each lane, which fetched that entry and writes it. Every entry has one owner and one order of
 * addition: the same bits every time.
 *
 * Rows of more than a tile are taken tile by tile (WIDE): a's slice is read again for each batch,
 * from L1. No accumulator adds more than 512 terms: after CHAIN of them it goes to a second one. */
#ifndef FMM_CUDA_SDDMM_CUH
#define FMM_CUDA_SDDMM_CUH

#include "../cuda/segments.cuh"

template <class T> struct sddmm_args {
    csr_view s;
    edge_view val;
    plan_view plan;
    const T *a, *b;
    T *e;
    int64_t a_row, a_head, b_head, e_row, e_head, feat;
    uint64_t per_head;
    uint32_t b_row;       /* in bytes */
    int32_t heads, shift; /* bundles of at most 2^shift rows */
};

/* Sums `dot` over the group. Afterwards lane l holds, in its first BATCH / LANES elements (at least
 * one), the sums of the entries from l * BATCH / LANES on. */
template <class A, int LANES, int BATCH>
static __device__ __forceinline__ void transpose_sum(A *dot, int lane)
{
    int left = BATCH;
#pragma unroll
    for (int d = LANES / 2; d; d /= 2) {
        const bool upper = lane & d;
        if (left > 1) {
            left /= 2;
#pragma unroll
            for (int k = 0; k < left; k++) {
                const A give = upper ? dot[k] : dot[k + left];
                const A keep = upper ? dot[k + left] : dot[k];
                dot[k] = keep + __shfl_xor_sync(ALL, give, d);
            }
        } else {
            dot[0] += __shfl_xor_sync(ALL, dot[0], d);
        }
    }
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS, bool ANY, bool WIDE>
static __global__ void __launch_bounds__(BLOCK, BLOCKS)
    sddmm_segments(const __grid_constant__ sddmm_args<T> s)
{
    typedef typename sum_of<T>::type A;
    enum {
        BATCH = 8,
        EACH = LANES < BATCH ? BATCH / LANES : 1, /* entries of a chunk in a lane */
        CHUNK = LANES * EACH,
        TILE = LANES * PER * VEC,
        SHARE = LANES < BATCH ? 1 : LANES / BATCH, /* lanes with the same sum */
    };
    const int lane = threadIdx.x % LANES;
    const int64_t group = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES;

    const plan_counts counts = read_counts(s.s, s.plan);
    const int64_t k = item_of(group, s.heads, s.per_head);
    const int32_t head = int32_t(group - k * s.heads);
    const item_view item = find_item(counts, k, s.shift);
    const span mine = find_span(s.s, s.plan, item, lane);
    const int rows = most_in_warp<LANES>(max(item.count, item.count == 0));

    /* The lane's slice of a tile of a's row, packed: whoever unpacks it waits for it, so that is
     * done behind the gathers. And where it gathers b's: channels past the end are the same
     * zeros for every row. */
    PACK(T, VEC) left[PER];
    auto is_in = [&](int64_t tile, int i) { return tile + (i * LANES + lane) * VEC < s.feat; };
    auto read_left = [&](int32_t row, int64_t tile) {
        const T *const a = s.a + row * s.a_row + head * s.a_head + lane * VEC + tile;
#pragma unroll
        for (int i = 0; i < PER; i++)
            left[i] = load_if<T, VEC>(is_in(tile, i), a + i * LANES * VEC);
    };
    const char *b[PER];
    uint32_t b_row[PER];
    auto find_right = [&](int64_t tile) {
        const T *const at = s.b + head * s.b_head + lane * VEC + tile;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const bool there = s.s.cols > 0 && is_in(tile, i);
            b[i] = there ? reinterpret_cast<const char *>(at + i * LANES * VEC)
                         : reinterpret_cast<const char *>(&no_row);
            b_row[i] = there ? s.b_row : 0;
        }
    };

    /* Each lane fetches the entries of a chunk whose sums it will write: EACH in a row, or one of
     * each SHARE-th batch. Columns and edges come a chunk ahead and are looked at only where their
     * chunk begins; values, which are asked for there, behind the gathers. */
    const int own = SHARE > 1 ? lane % SHARE * BATCH + lane / SHARE : lane * EACH;
    int32_t near[EACH], near_next[EACH];
    uint32_t edge_next[EACH];
    int64_t from; /* where the lane fetches next, and how far its group's row goes on from there */
    int32_t rest;
    auto go_to = [&](int r) {
        from = __shfl_sync(ALL, mine.begin, r, LANES) + own;
        rest = __shfl_sync(ALL, mine.length, r, LANES);
        rest = (r < LANES ? rest : 0) - own;
    };
    auto fetch = [&] {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            near_next[e] = -1;
            if (ANY) edge_next[e] = 0;
            if (e >= rest) continue;
            near_next[e] = __ldg(s.s.idx + (from + e));
            if (ANY) edge_next[e] = edge_asked(s.val, from + e);
        }
    };
    /* Entries that are not there take the column of the group's first, whose lines are near: no
     * select stands between a column and its load, and what they give is not written. */
    auto arrive = [&](bool *there) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            there[e] = (uint32_t)near_next[e] < (uint32_t)s.s.cols;
            near[e] = there[e] ? near_next[e] : 0;
        }
        const int32_t first = __shfl_sync(ALL, near[0], 0, LANES);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (!there[e]) near[e] = first;
    };
    /* Adds the products of one tile of BATCH rows of b, or of half as many, from entry c of the
     * chunk. */
    auto multiply = [&](int c, bool few, A *dot) {
#pragma unroll
        for (int g = 0; g < BATCH; g += FLY) {
            if (g == BATCH / 2 && few) break;
            PACK(T, VEC) row[FLY][PER];
#pragma unroll
            for (int f = 0; f < FLY; f++) {
                const int at = c + g + f;
                const int32_t j =
                    SHARE > 1 ? __shfl_sync(ALL, near[0], at % BATCH * SHARE + at / BATCH, LANES)
                              : __shfl_sync(ALL, near[at % EACH], at / EACH, LANES);
#pragma unroll
                for (int i = 0; i < PER; i++)
                    row[f][i] = load<T, VEC>(
                        reinterpret_cast<const T *>(row_at(b[i], (uint32_t)j, b_row[i])));
            }
#pragma unroll
            for (int i = 0; i < PER; i++) {
                A of_a[VEC];
                unpack_here<T, VEC>(left[i], of_a);
#pragma unroll
                for (int f = 0; f < FLY; f++) {
                    A of_b[VEC];
                    unpack<T, VEC>(row[f][i], of_b);
#pragma unroll
                    for (int v = 0; v < VEC; v++) dot[g + f] += of_a[v] * of_b[v];
                }
            }
        }
    };

    if (!WIDE) find_right(0);
    go_to(0);
    fetch();
    for (int r = 0; r < rows; r++) {
        const int32_t row = __shfl_sync(ALL, mine.row, r, LANES);
        if (!WIDE) read_left(row, 0);
        const int longest = max(most_in_warp<LANES>(rest + own), 1);
        for (int done = 0; done < longest; done += CHUNK) {
            const int64_t here = from;
            const int32_t here_rest = rest;
            bool there[EACH];
            int64_t edge[EACH];
            WORD(A) value[EACH];
            arrive(there);
#pragma unroll
            for (int e = 0; ANY && e < EACH; e++) {
                edge[e] = -1, value[e] = 0;
                if (e >= rest) continue;
                edge[e] = edge_said(s.val, from + e, edge_next[e]);
                if (s.val.data)
                    value[e] = edge_bits<WORD(A)>(s.val, clamp(edge[e], 0, s.val.nnz - 1), head);
            }
            if (done + CHUNK < longest)
                from += CHUNK, rest -= CHUNK;
            else
                go_to(r + 1);
            fetch();

            A total[EACH];
#pragma unroll
            for (int c = 0; c < CHUNK; c += BATCH) {
                if (c && done + c >= longest) break;
                const bool few = done + c + BATCH / 2 >= longest;
                A dot[BATCH];
#pragma unroll
                for (int f = 0; f < BATCH; f++) dot[f] = A(0);
                if (!WIDE) {
                    multiply(c, few, dot);
                } else {
                    for (int64_t tile = 0; tile < s.feat;) {
                        A part[BATCH];
#pragma unroll
                        for (int f = 0; f < BATCH; f++) part[f] = A(0);
                        const int64_t end = min(s.feat, tile + int64_t(CHAIN) * LANES);
                        for (; tile < end; tile += TILE) {
                            read_left(row, tile);
                            find_right(tile);
                            multiply(c, few, part);
                        }
#pragma unroll
                        for (int f = 0; f < BATCH; f++) dot[f] += part[f];
                    }
                }
                transpose_sum<A, LANES, BATCH>(dot, lane);
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (c == 0 || lane % SHARE == c / BATCH) total[e] = dot[e];
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (!there[e]) total[e] = A(0);
                if (ANY && s.val.data) total[e] *= edge_number<A>(s.val, value[e]);
                if (ANY ? !is_edge(s.val, edge[e]) : e >= here_rest) continue;
                store<T, 1>(s.e + (ANY ? edge[e] : here + e) * s.e_row + head * s.e_head,
                            &total[e]);
            }
        }
    }
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS, bool WIDE>
static void launch_segments(cudaStream_t stream, sddmm_args<T> s)
{
    s.shift = bundle_shift(s.s.rows);
    while (1 << s.shift > LANES) s.shift--;
    const int64_t items = items_max(s.plan, s.s.rows, s.s.nnz, s.shift) * int64_t(s.heads);
    const unsigned grid = blocks_for(items * LANES);
    if (s.val.eid || s.val.data)
        sddmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, true, WIDE><<<grid, BLOCK, 0, stream>>>(s);
    else
        sddmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, false, WIDE><<<grid, BLOCK, 0, stream>>>(s);
}

/* Lanes and loads for a row of b; fewer lanes mean fewer steps of the butterfly. Small matrices
 * leave the card half empty: there all eight rows of a batch are in flight (K 128 on the smallest
 * graphs: 12 instead of 15 us). Packs of 16 bits unpack into twice the registers, which four blocks
 * do not have. */
template <class T> static void choose_lanes(cudaStream_t stream, const sddmm_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T), BLOCKS = V > 4 ? 3 : 4 };
    const int64_t n = ceil_div(s.feat, vec);
    if (vec == V && n <= 2) return launch_segments<T, V, 2, 1, 8, BLOCKS, false>(stream, s);
    if (vec == V && n <= 4) return launch_segments<T, V, 4, 1, 8, BLOCKS, false>(stream, s);
    if (vec == V && n <= 8) return launch_segments<T, V, 8, 1, 8, 4, false>(stream, s);
    if (vec == V && n <= 16) return launch_segments<T, V, 8, 2, 2, BLOCKS, false>(stream, s);
    if (vec == V && n > 16 && n <= 32 && is_small(s.s.nnz))
        return launch_segments<T, V, 16, 2, 8, 2, false>(stream, s);
    if (vec == V && n <= 32) return launch_segments<T, V, 16, 2, 2, BLOCKS, false>(stream, s);
    if (vec == V && n <= 64) return launch_segments<T, V, 32, 2, 2, BLOCKS, false>(stream, s);
    if (vec == V) return launch_segments<T, V, 32, 2, 4, 2, true>(stream, s);
    if (n <= 8) return launch_segments<T, 1, 8, 1, 8, 4, false>(stream, s);
    if (n <= 32) return launch_segments<T, 1, 32, 1, 8, 4, false>(stream, s);
    if (n <= 128) return launch_segments<T, 1, 32, 4, 4, 3, false>(stream, s);
    return launch_segments<T, 1, 32, 4, 4, 2, true>(stream, s);
}

template <class T> static fmm_status sddmm_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *m = call->a;
    const fmm_dense *a = call->x, *b = call->b, *e = call->y;
    int before;
    TRY(cuda_enter("sddmm", exec, &before));

    sddmm_args<T> s;
    s.s = view_csr(m);
    s.val = view_edges(m, call->val);
    s.plan = plan_for_call(exec, m);
    s.a = static_cast<const T *>(a->data);
    s.b = static_cast<const T *>(b->data);
    s.e = static_cast<T *>(e->data);
    s.a_row = a->row_stride;
    s.a_head = a->head_stride;
    s.b_row = uint32_t(b->row_stride * int64_t(sizeof(T)));
    s.b_head = b->head_stride;
    s.e_row = e->row_stride;
    s.e_head = e->head_stride;
    s.feat = a->feat;
    s.heads = (int32_t)a->heads;
    s.per_head = reciprocal(a->heads);

    const int full = 16 / sizeof(T);
    const bool packs = lies_in_packs(a, sizeof(T), full) && lies_in_packs(b, sizeof(T), full);
    choose_lanes(stream_of(exec), s, packs ? full : 1);
    return cuda_leave("sddmm", exec, before);
}

#endif
