/* The values of a product with few entries, where columns rise: a window of them by each warp.
 *
 *     chunk      32 entries of A; each lane finds where the products of its own are in B
 *     batch      32 products, in their order, whichever entries they belong to: each lane looks for
 *                its product's column by bisection, and those that share a sum add in turn
 *
 *     entries    e0       e1    e3            of the chunk, that have products in the window
 *     product    0 1 2    3 4   5             lane t of a batch counts the ends before it
 *     slot       5 7 9    5 8   7             places in the window
 *     turn       0 0 0    1 0   1
 *
 * So sums have their terms in the order of A's entries. Nobody waits for other warps, and no list
 * of rows is made before, which is what takes longest where a product is small. */
#include "cuda_entries.cuh"
#include "cuda_kept.cuh"

enum { TOGETHER = 2, NEW_PART = INT32_MIN }; /* batches at once; the sign of `from` */

/* What a chunk's lanes have found, entries without products left out: product t of the chunk is
 * entry origin + t of B, and its column one of the `here` of C's row in the window, from place
 * `from` on. A negative one says that sums are put aside before. */
template <class A> struct found_room {
    int ends[WARP], from[WARP], here[WARP];
    unsigned origin[WARP];
    A factor[WARP]; /* A's values */
};

/* Finds a chunk of entries from `base` on; returns how many have products, *products of them in
 * all. *before is the last entry before that had any. */
template <class A, bool PLAIN>
static __device__ __forceinline__ int find_chunk(const numeric_args &s, const window_rows &rows,
                                                 int64_t base, int64_t *before, int *products,
                                                 found_room<A> &room)
{
    int64_t first, from;
    const int64_t p = base + threadIdx.x % WARP, i = rows.row(s.a, p);
    const row_of_b row = rows.products(s.a, s.b, s.c, p, i);
    const int here = rows.entries(s.c, i, &from), length = (int)row.length;
    const unsigned some = __ballot_sync(ALL, length > 0), lower = some & lanes_below();
    const int until = scanned<1, int>(length, NULL), at = __popc(lower);
    *products = __shfl_sync(ALL, until, WARP - 1);
    row_range(s.a, i, &first);
    /* The entry with products before this one, if it is of the same row. */
    const int64_t last = lower ? base + WARP - 1 - __clz(lower) : *before;
    const bool new_part =
        last >= first && (last - first) / SPGEMM_TERMS < (p - first) / SPGEMM_TERMS;
    __syncwarp(); /* nobody reads the chunk before */
    if (length) {
        room.ends[at] = until;
        room.origin[at] = unsigned(row.begin) - unsigned(until - length);
        room.from[at] = int(from - rows.low) | (new_part ? int(NEW_PART) : 0);
        room.here[at] = here;
        room.factor[at] = value_of<A, PLAIN>(s.a_val, p);
    }
    if (some) *before = base + WARP - 1 - __clz(some);
    __syncwarp();
    return __popc(some);
}

/* Shared memory of a block: a room of each warp, and behind them the sums of each window, and what
 * was put aside of these. Small rows, which have been merged before (cuda_small.cuh), are computed
 * once more, with the same bits. */
template <class A, bool PLAIN>
static __global__ void __launch_bounds__(ENTRY_WARPS *WARP, sizeof(A) == 4 ? 9 : 7)
    add_found(const numeric_args s, int64_t count, int width)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t w = int64_t(blockIdx.x) * ENTRY_WARPS + warp;
    if (w >= count) return;
    const int room_bytes = (int)sizeof(found_room<A>);
    found_room<A> &room = *of_shared<found_room<A>>(warp * room_bytes);
    A *const sums = of_shared<A>(ENTRY_WARPS * room_bytes + warp * 2 * width * (int)sizeof(A));
    entry_sums<A> to = {sums, sums + width, width};
    for (int h = lane; h < 2 * width; h += WARP) sums[h] = A(0);
    const window_rows rows(s.a, s.c, w, width);
    int64_t before = -1;
    for (int64_t base = rows.begin; base < rows.end; base += WARP) {
        int products;
        const int found = find_chunk<A, PLAIN>(s, rows, base, &before, &products, room);
        const int end = lane < found ? room.ends[lane] : INT32_MAX;
        for (int t = 0; t < products; t += TOGETHER * WARP) {
            int slot[TOGETHER], own[TOGETHER], from[TOGETHER];
            int32_t j[TOGETHER];
            A y[TOGETHER];
            /* Which entries the lanes' products belong to: those that ended before the batch, and
             * those that end up to the lane. */
            UNROLLED(u, TOGETHER) {
                const int now = t + u * WARP, left = end - now;
                const int passed = __popc(__ballot_sync(ALL, left <= 0));
                const unsigned stops = or_of_lanes(left > 0 && left < WARP ? 1u << left : 0);
                const bool inside = now + lane < products;
                own[u] = inside ? passed + __popc(stops & ((2u << lane) - 1)) : 0;
                const unsigned q = room.origin[own[u]] + unsigned(now + lane);
                const bool exists = inside && q < s.b.nnz; /* else B has changed */
                j[u] = exists ? __ldg(s.b.idx + q) : -1;
                y[u] = exists ? value_of<A, PLAIN>(s.b_val, q) : A(0);
            }
            /* The kernel waits for these, side by side. */
            UNROLLED(u, TOGETHER) {
                from[u] = room.from[own[u]];
                const int low = from[u] & INT32_MAX;
                const int32_t *const columns = s.c.idx + rows.low + low;
                slot[u] = low + (int)first_at_least(columns, 1, room.here[own[u]] - 1, j[u]);
            }
            UNROLLED(u, TOGETHER) {
                const int now = t + u * WARP + lane;
                const bool inside = now < products;
                const int rank = rank_in_warp(inside ? slot[u] : -1 - lane);
                int turn = inside ? rank : -1;
                const A x = room.factor[own[u]];
                /* Sums are put aside before the first product of a new part. */
                const int start = own[u] ? room.ends[own[u] - 1] : 0;
                const bool is_part = inside && from[u] < 0 && now == start;
                for (unsigned left = __ballot_sync(ALL, is_part); left; left &= left - 1) {
                    const int stop = __ffs(left) - 1;
                    to.add(slot[u], lane < stop ? turn : -1, x, y[u]);
                    to.put_aside();
                    if (lane < stop) turn = -1;
                }
                to.add(slot[u], turn, x, y[u]);
            }
        }
    }
    __syncwarp();
    for (int h = lane; h < width; h += WARP) {
        const int64_t r = w * width + h;
        if (r < s.c.nnz) write(s.out, r, to.aside[h] + to.sums[h]);
    }
}

template <class A, bool PLAIN> static void launch(const fmm_exec *exec, const numeric_args &s)
{
    const int width = width_for(s.c.nnz);
    const int64_t count = ceil_div(s.c.nnz, width);
    const int bytes = ENTRY_WARPS * int(sizeof(found_room<A>) + 2 * width * sizeof(A));
    add_found<A, PLAIN>
        <<<(unsigned)ceil_div(count, ENTRY_WARPS), ENTRY_WARPS * WARP, bytes, stream_of(exec)>>>(
            s, count, width);
}

void fmm_spgemm_add_found(const fmm_exec *exec, const numeric_args &s)
{
    if (s.out.dtype == FMM_F64)
        launch<double, false>(exec, s);
    else if (s.plain && s.plain_a)
        launch<float, true>(exec, s);
    else
        launch<float, false>(exec, s);
}
