/* row_split:H, SpMM with a warp per row and 32 columns, entries handed round by shuffles.
 *
 * Teaches: a warp needs no shared memory and no barrier. Each lane loads one of 32 entries,
 * coalesced, and 32 shuffles hand them to all lanes in turn; the loop has a fixed length, so it
 * unrolls and many loads of x are in flight at once, which is what hides the latency of a gather.
 * The fixed length is also its cost: a row of 5 entries still runs 32 steps. Long rows stay with
 * one warp.
 *
 * H rows share a block. They share nothing else, so H is expected to matter only where blocks are
 * too small to fill a multiprocessor (H = 4: 128 threads) or wait for their longest row (H = 16).
 *
 *     block      H warps, a row each; grid y: 32 columns
 *     a warp     lane k holds entry k of 32 in registers
 *                step k: entry k to all lanes, each of which adds its own column of x
 *
 * Source: row-splitting of Yang, Buluc and Owens, "Design Principles for Sparse Matrix
 * Multiplication on the GPU", Euro-Par 2018. */
#include "lesson.cuh"

template <int H, class T>
static __global__ void __launch_bounds__(WARP *H) row_split(const spmm_args<T> s)
{
    const int lane = threadIdx.x;
    const int64_t i = int64_t(blockIdx.x) * H + threadIdx.y, h = blockIdx.z;
    const int64_t c = int64_t(blockIdx.y) * WARP + lane;
    if (i >= s.a.rows) return; /* whole warps */
    int64_t begin;
    const int64_t terms = row_range(s.a, i, &begin);
    sums<T> sum = {};
    for (int64_t done = 0; done < terms; done += WARP) {
        entry<T> mine = {-1, T(0)};
        if (done + lane < terms) mine = fetch(s, begin + done + lane, h);
        UNROLLED(k, WARP) {
            const int32_t j = __shfl_sync(ALL, mine.j, k);
            const T w = __shfl_sync(ALL, mine.w, k);
            if (j >= 0 && c < s.feat) sum.part[0] += w * __ldg(s.x.at(j, h) + c);
        }
        sum.fold(WARP);
    }
    if (c < s.feat) s.y.at(i, h)[c] = sum.total();
}

template <int H> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        const dim3 grid = grid_of(ceil_div(s.a.rows, H), ceil_div(s.feat, WARP), call->x->heads);
        row_split<H><<<grid, dim3(WARP, H), 0, stream_of(exec)>>>(s);
    });
}

static const char about[] = "a warp per row and 32 columns, entries by shuffle, H rows per block";
static const char source[] = "Yang et al., Euro-Par 2018";

#define ENTRY(h) lesson("row_split:" #h, about, source, run<h>)
fmm_algorithm spmm_row_split[] = {ENTRY(4), ENTRY(16), {}};
