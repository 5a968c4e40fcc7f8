/* crc and warp_merge:C, SpMM with a warp per row that caches the row's entries in shared memory.
 *
 * Teaches: coalesced row caching. A warp stages 32 entries of its row in its own part of shared
 * memory and reads them back one by one, all lanes the same word, which is a broadcast. Only the
 * warp itself must wait (__syncwarp), not the block; the loop has the length of the row, so short
 * rows are cheaper than in row_split, but loads of x are not unrolled and fewer are in flight.
 *
 * warp_merge:C lets a warp do C tiles of 32 columns. Each entry read then serves C loads of x that
 * do not depend on each other: entries are read C times less often, and C loads are in flight. It
 * is expected to win from C * 32 columns on, until the sums of a lane, or the warps that are
 * missing, cost more: C = 2 is what the paper settles on.
 *
 *     block      ROWS warps, a row each; grid y: C tiles of 32 columns
 *     a warp     lane k stages entry k of 32 --> shared memory
 *                all lanes: entry after entry, lane k its column k of each tile, sums in registers
 *
 * Source: Huang, Dai, Wang and Yang, "GE-SpMM", SC 2020. */
#include "lesson.cuh"

enum { ROWS = 4 /* warps, each with a row, in a block */ };

template <int C, class T>
static __global__ void __launch_bounds__(WARP *ROWS) row_cache(const spmm_args<T> s)
{
    __shared__ entry<T> cache[ROWS][WARP];
    entry<T> *const tile = cache[threadIdx.y];
    const int lane = threadIdx.x;
    const int64_t i = int64_t(blockIdx.x) * ROWS + threadIdx.y, h = blockIdx.z;
    const int64_t c = int64_t(blockIdx.y) * WARP * C + lane;
    if (i >= s.a.rows) return; /* whole warps */
    int64_t begin;
    const int64_t terms = row_range(s.a, i, &begin);
    sums<T, C> sum = {};
    for (int64_t done = 0; done < terms; done += WARP) {
        const int count = (int)min((int64_t)WARP, terms - done);
        if (lane < count) tile[lane] = fetch(s, begin + done + lane, h);
        __syncwarp();
        for (int k = 0; k < count; k++) {
            const entry<T> e = tile[k];
            if (e.j < 0) continue;
            const T *const x = s.x.at(e.j, h) + c;
            UNROLLED(t, C)
                if (c + t * WARP < s.feat) sum.part[t] += e.w * __ldg(x + t * WARP);
        }
        __syncwarp(); /* before the tile is written again */
        sum.fold(count);
    }
    UNROLLED(t, C)
        if (c + t * WARP < s.feat) s.y.at(i, h)[c + t * WARP] = sum.total(t);
}

template <int C> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        const dim3 grid =
            grid_of(ceil_div(s.a.rows, ROWS), ceil_div(s.feat, WARP * C), call->x->heads);
        row_cache<C><<<grid, dim3(WARP, ROWS), 0, stream_of(exec)>>>(s);
    });
}

static const char about[] = "a warp per row and 32 columns, its entries cached in shared memory";
static const char merged[] = "as crc, a warp covers C tiles of 32 columns";
static const char source[] = "GE-SpMM, Huang et al., SC 2020";

#define MERGED(c) lesson("warp_merge:" #c, merged, source, run<c>)
fmm_algorithm spmm_crc[] = {
    lesson("crc", about, source, run<1>), MERGED(2), MERGED(4), MERGED(8), {},
};
