/* The join: how the slots are added up that the pieces of long rows left in the workspace.
 *
 * A thread owns a QUAD of neighbouring columns of one head. A row of up to HUB_PIECES pieces has
 * one thread for each QUAD, which adds the slots from the first to the last. A hub, which has more
 * pieces, has a block for each head; its threads divide the slots and meet in shared memory:
 *
 *     long row    slot 0 + slot 1 + slot 2 + ...              by one thread
 *
 *     hub         stretch 0: slots 0, n, 2n, ...   --+
 *                 stretch 1: slots 1, n + 1, ...   --+--+     n stretches of threads, which add
 *                 stretch 2: slots 2, n + 2, ...   --+  |     to each other in a tree of fixed
 *                 stretch 3: slots 3, n + 3, ...   --+--+     shape
 *
 * What a slot holds, how two sums meet, and where a total goes is the operator's own. Which thread
 * adds what follows from the matrix alone, so the bits are the same every time. No accumulator
 * takes more than CHAIN slots in a row. */
#pragma once

#include "segments.cuh"

/* The columns of a thread. Slots consist of QUADs, the last one padded. */
enum { QUAD = 4 };
static inline int64_t quads(int64_t feat) { return ceil_div(feat, QUAD) * QUAD; }

/* How threads are dealt out, a part of the arguments: the QUADs of a head in a slot, those by which
 * a hub's threads are divided, and reciprocals of what threads divide by. */
struct join_shape {
    int64_t across, hub_width;
    uint64_t per_row, per_head, per_quad;
};
static inline join_shape shape_of_join(int64_t heads, int64_t across, int64_t hub_width)
{
    return join_shape{across, hub_width, reciprocal(heads * across), reciprocal(heads),
                      reciprocal(across)};
}

/* A long row: how many entries it has, and how many slots from the first one on. */
struct joined_row {
    int64_t row, length;
    int32_t first, pieces;
};
static __device__ __forceinline__ joined_row find_slots(const csr_view &a, const plan_view &plan,
                                                        const plan_counts &counts, int64_t k)
{
    joined_row r;
    int64_t begin;
    r.row = clamp(__ldg(plan.order + k), 0, a.rows - 1);
    r.first = max(0, min(__ldg(plan.first + k), counts.segments));
    r.length = row_range(a, r.row, &begin);
    r.pieces = (int32_t)min(pieces_of(r.length, plan.segment), int64_t(counts.segments - r.first));
    return r;
}

/* The kernels' body. Of a row's slots begin, begin + step, ... before end, add(&sums, row, head, c,
 * begin, end, step) makes the sums of the QUAD at column c; write(row, head, c, sums) takes the
 * total. Blocks have THREADS threads, which take tasks a grid apart: first rows of a few pieces,
 * then hubs. */
template <int THREADS, class Sums, class Args, class Add, class Write>
static __device__ __forceinline__ void join_rows(const Args &s, Add add, Write write)
{
    __shared__ Sums meet[THREADS];
    const plan_counts counts = read_counts(s.a, s.plan);
    const join_shape &n = s.join;

    /* Long rows that are no hubs. The first look-up happens while the kernel before still runs, so
     * that its loads are done when the slots are ready; the asm keeps the compiler from moving it
     * behind the wait. */
    const int64_t per_row = s.heads * n.across;
    const int64_t tasks = (counts.long_rows - counts.hubs) * per_row;
    const int64_t start = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    joined_row r;
    if (start < tasks) {
        const int64_t k = counts.hubs + item_of(start, per_row, n.per_row);
        r = find_slots(s.a, s.plan, counts, k);
        asm volatile("" : : "l"(r.row), "r"(r.first), "r"(r.pieces));
    }
    wait_for_previous();
    for (int64_t t = start; t < tasks; t += int64_t(gridDim.x) * THREADS) {
        const int64_t k = item_of(t, per_row, n.per_row), at = t - k * per_row;
        const int64_t head = item_of(at, n.across, n.per_quad);
        const int64_t c = (at - head * n.across) * QUAD;
        r = find_slots(s.a, s.plan, counts, counts.hubs + k);
        Sums total;
        add(&total, r, head, c, 0, min(r.pieces, int(CHAIN)), 1);
        write(r, head, c, total);
    }

    /* Hubs go to the last blocks first, because these had the fewest of the other rows.
     * Neighbouring threads take neighbouring columns, up to a warp of them, and the rest are
     * stretches. A stretch begins a new sum after CHAIN slots, as every accumulator does. */
    int columns = 1;
    while (columns < WARP && columns < n.hub_width) columns *= 2;
    const int stretches = THREADS / columns, stretch = threadIdx.x / columns;
    for (int64_t t = gridDim.x - 1 - blockIdx.x; t < int64_t(counts.hubs) * s.heads;
         t += gridDim.x) {
        const int64_t k = item_of(t, s.heads, n.per_head), head = t - k * s.heads;
        r = find_slots(s.a, s.plan, counts, k);
        for (int64_t tile = 0; tile < n.across; tile += columns) {
            const int64_t c = (tile + threadIdx.x % columns) * QUAD;
            const bool there = c < n.across * QUAD;
            Sums total, some;
            total.start();
            for (int p = stretch; there && p < r.pieces; p += int(CHAIN) * stretches) {
                add(&some, r, head, c, p, min(r.pieces, p + int(CHAIN) * stretches), stretches);
                total.join(some);
            }
            /* The tree: each time the upper half of the stretches hands its sums to the lower. */
            for (int half = stretches / 2; half; half /= 2) {
                meet[threadIdx.x] = total;
                __syncthreads();
                if (stretch < half) total.join(meet[threadIdx.x + half * columns]);
                __syncthreads();
            }
            if (stretch == 0 && there) write(r, head, c, total);
        }
    }
}
