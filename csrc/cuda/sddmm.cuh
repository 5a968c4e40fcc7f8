/* SDDMM `segments`: e[eid[p],h] = val[eid[p],h] * <a[i,h,:], b[idx[p],h,:]>, for one element type
 * T.
 *
 * Work is dealt as for SpMM (spmm.cuh): a piece of a long row, or a bundle of short ones, and a
 * head go to a group of LANES lanes. The group keeps its slice of a's row in registers and gathers
 * BATCH rows of b, FLY of them in flight; each lane has its share of BATCH dot products. A
 * transposing butterfly sums them: at each step a lane keeps half of the products and hands over
 * the other half, so that 8 products over 8 lanes take 7 shuffles instead of 24, and end one in
 * each lane, in the order of memory. Every entry has one owner and one order of addition: the same
 * bits every time.
 *
 * Rows of more than a tile are taken tile by tile (WIDE): a's slice is read again for each batch,
 * from L1. No accumulator adds more than 512 terms: after CHAIN of them it goes to a second one. */
#ifndef FMM_CUDA_SDDMM_CUH
#define FMM_CUDA_SDDMM_CUH

#include "segments.cuh"

template <class T> struct sddmm_args {
    csr_view s;
    edge_view val;
    plan_view plan;
    const T *a, *b;
    T *e;
    int64_t a_row, a_head, b_head, e_row, e_head, feat;
    uint64_t per_head;
    uint32_t b_row;
    int32_t heads, shift; /* bundles of at most 2^shift rows */
};

/* An entry of the matrix as a lane holds it; its column is -1 where there is none. */
template <class A> struct entry {
    A value;
    int32_t column;
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
        EACH = LANES < BATCH ? BATCH / LANES : 1,
        CHUNK = LANES * EACH,
        TILE = LANES * PER * VEC,
        HELD = LANES < BATCH ? BATCH / LANES : 1,  /* finished sums in a lane */
        SHARE = LANES < BATCH ? 1 : LANES / BATCH, /* lanes with the same sum */
    };
    const int lane = threadIdx.x % LANES;
    const int64_t group = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES;

    const plan_counts counts = read_counts(s.s, s.plan);
    const int64_t k = item_of(group, s.heads, s.per_head), head = group - k * s.heads;
    const item_view item = find_item(counts, k, s.shift);
    const span mine = find_span(s.s, s.plan, item, lane);
    const int rows = most_in_warp<LANES>(max(item.count, item.count == 0));

    const T *const b = s.b + head * s.b_head + lane * VEC;
    /* The lane's slice of a tile of a's row. */
    A left[PER][VEC];
    auto read_left = [&](int32_t row, int64_t tile) {
        const T *const a = s.a + row * s.a_row + head * s.a_head + lane * VEC + tile;
#pragma unroll
        for (int i = 0; i < PER; i++)
            unpack<T, VEC>(
                load_if<T, VEC>(tile + (i * LANES + lane) * VEC < s.feat, a + i * LANES * VEC),
                left[i]);
    };

    /* Lane l fetches entries l * EACH on of a chunk, those whose sums it ends up with, or lanes
     * next to it: values a chunk ahead cost no wait at the end. */
    entry<A> near[EACH], near_next[EACH];
    auto fetch = [&](const span &from, int at, entry<A> *to) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int p = at + lane * EACH + e;
            to[e].column = -1;
            to[e].value = A(0);
            if (p >= from.length) continue;
            const int32_t j = __ldg(s.s.idx + from.begin + p);
            if ((uint32_t)j < (uint32_t)s.s.cols) to[e].column = j;
            if (ANY) to[e].value = edge_value<A>(s.val, edge_of(s.val, from.begin + p), head);
        }
    };
    /* Adds the products of one tile of BATCH rows of b, from entry c of the chunk. */
    auto multiply = [&](int c, int64_t tile, A *dot) {
#pragma unroll
        for (int g = 0; g < BATCH; g += FLY) {
            PACK(T, VEC) row[FLY][PER];
#pragma unroll
            for (int f = 0; f < FLY; f++) {
                const int at = c + g + f;
                const int32_t j = __shfl_sync(ALL, near[at % EACH].column, at / EACH, LANES);
                const T *const from = b + uint64_t(uint32_t(j)) * s.b_row + tile;
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    /* Where a row takes several loads, not loading those of absent rows is worth
                     * more than loads that need not wait for each other: 10 % on short rows. */
                    const bool there = j >= 0 && tile + (i * LANES + lane) * VEC < s.feat;
                    if (PER == 1) {
                        row[f][i] = load_if<T, VEC>(there, from + i * LANES * VEC);
                    } else {
                        row[f][i] = {};
                        if (there) row[f][i] = load<T, VEC>(from + i * LANES * VEC);
                    }
                }
            }
#pragma unroll
            for (int f = 0; f < FLY; f++)
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    A right[VEC];
                    unpack<T, VEC>(row[f][i], right);
#pragma unroll
                    for (int v = 0; v < VEC; v++) dot[g + f] += left[i][v] * right[v];
                }
        }
    };

    span now = span_of_lane<LANES>(mine, 0);
    fetch(now, 0, near);
    for (int r = 0; r < rows; r++) {
        span next = span_of_lane<LANES>(mine, (r + 1) % LANES);
        if (r + 1 == LANES) next.length = 0;
        if (!WIDE) read_left(now.row, 0);
        const int longest = max(most_in_warp<LANES>(now.length), 1);
        for (int done = 0; done < longest; done += CHUNK) {
            if (done + CHUNK < longest)
                fetch(now, done + CHUNK, near_next);
            else
                fetch(next, 0, near_next);
#pragma unroll
            for (int c = 0; c < CHUNK; c += BATCH) {
                if (c && done + c >= longest) break;
                A dot[BATCH];
#pragma unroll
                for (int f = 0; f < BATCH; f++) dot[f] = A(0);
                if (!WIDE) {
                    multiply(c, 0, dot);
                } else {
                    for (int64_t tile = 0; tile < s.feat;) {
                        A part[BATCH];
#pragma unroll
                        for (int f = 0; f < BATCH; f++) part[f] = A(0);
                        const int64_t end = min(s.feat, tile + int64_t(CHAIN) * LANES);
                        for (; tile < end; tile += TILE) {
                            read_left(now.row, tile);
                            multiply(c, tile, part);
                        }
#pragma unroll
                        for (int f = 0; f < BATCH; f++) dot[f] += part[f];
                    }
                }
                transpose_sum<A, LANES, BATCH>(dot, lane);
#pragma unroll
                for (int h = 0; h < HELD; h++) {
                    const int at = c + lane / SHARE * HELD + h;
                    if (ANY) dot[h] *= __shfl_sync(ALL, near[h % EACH].value, at / EACH, LANES);
                    if (lane % SHARE || done + at >= now.length) continue;
                    const int64_t p = now.begin + done + at, edge = ANY ? edge_at(s.val, p) : p;
                    if (ANY && !is_edge(s.val, edge)) continue;
                    store<T, 1>(s.e + edge * s.e_row + head * s.e_head, &dot[h]);
                }
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) near[e] = near_next[e];
        }
        now = next;
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
 * graphs: 12 instead of 15 us). */
template <class T> static void choose_lanes(cudaStream_t stream, const sddmm_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T) };
    const int64_t n = ceil_div(s.feat, vec);
    if (vec == V && n <= 2) return launch_segments<T, V, 2, 1, 8, 4, false>(stream, s);
    if (vec == V && n <= 4) return launch_segments<T, V, 4, 1, 8, 4, false>(stream, s);
    if (vec == V && n <= 8) return launch_segments<T, V, 8, 1, 8, 4, false>(stream, s);
    if (vec == V && n <= 16) return launch_segments<T, V, 8, 2, 2, 4, false>(stream, s);
    if (vec == V && n > 16 && n <= 32 && is_small(s.s.nnz))
        return launch_segments<T, V, 16, 2, 8, 2, false>(stream, s);
    if (vec == V && n <= 32) return launch_segments<T, V, 16, 2, 2, 4, false>(stream, s);
    if (vec == V && n <= 64) return launch_segments<T, V, 32, 2, 2, 4, false>(stream, s);
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
    s.b_row = (uint32_t)b->row_stride;
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
