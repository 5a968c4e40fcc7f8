/* The values of a product with few entries, where columns rise.
 *
 *     window     of C's entries, by a warp, which has their sums in shared memory
 *     batch      32 products, found (cuda_entries.cuh) and added at once
 *
 * Sums have their terms in the order of A's entries. Nobody waits for other warps, and no list of
 * rows is made before, which is what takes longest where a product is small. */
#include "cuda_entries.cuh"
#include "cuda_kept.cuh"

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
    const int room_bytes = (int)sizeof(found_room);
    A *const sums = of_shared<A>(ENTRY_WARPS * room_bytes + warp * 2 * width * (int)sizeof(A));
    const entry_sums<A> to = {sums, sums + width, width};
    for (int h = lane; h < 2 * width; h += WARP) sums[h] = A(0);
    /* The factors of a product are asked for before its column is looked for. Products of one sum
     * take turns, in the order of A's entries. */
    for_batches(
        s.a, s.b, s.c, window_rows(s.a, s.c, w, width), *of_shared<found_room>(warp * room_bytes),
        [&](const found_product &of) {
            return factors_of<A, PLAIN>(s, of.p & INT32_MAX, of.q, of.exists);
        },
        [&](const found_product &of, const factors<A> &values) {
            for (int now = 0; __any_sync(ALL, of.turn >= now); now++) {
                A *const sum = sums + of.slot;
                if (of.turn == now) *sum = multiply_add(values.x, values.y, *sum);
                __syncwarp();
            }
        },
        [&](int, int) { to.put_aside(); });
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
    const int bytes = ENTRY_WARPS * int(sizeof(found_room) + 2 * width * sizeof(A));
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
