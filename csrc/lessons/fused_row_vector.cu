/* row_vector, fused with one warp per row: the scores of 32 entries, then their sum.
 *
 * Teaches: that one owner per row is all it takes to be rid of the atomics. A warp keeps its slices
 * of x's row and of the sums in registers. It scores 32 entries one after the other, lanes side by
 * side along the channels, and lane k keeps the score of entry k; then every lane applies the edge
 * function to its own, 32 at the price of one; then the 32 rows of z are added, each under the
 * weight that its lane hands round. Where z is y, they were read a moment ago: 32 rows of 128
 * channels are 16 KB, which L1 still holds. What it leaves: that second read, a butterfly of five
 * shuffles for every entry, the balance of the rows, and lanes without a channel in narrow ones.
 *
 *     a warp, 32 entries of its row at a time
 *     scores      one entry after the other: lanes along the channels, then their sum to lane k
 *     weights     lane k: the edge function of entry k
 *     sums        one entry after the other: its weight from lane k, lanes along the channels
 *
 * Expected: far ahead of blocks_atomic and of two calls that share its plainness; behind kernels
 * that keep the rows in registers and cut long ones.
 *
 * Source: the vector CSR kernel of Bell and Garland, SC 2009, with the five steps of FusedMM
 * (Rahman, Sujon and Azad, IPDPS 2021). Guard: at most 256 channels. */
#include "lesson_fused.cuh"

template <int PER, class T>
static __global__ void __launch_bounds__(BLOCK) row_vector(const __grid_constant__ fused_args<T> s)
{
    const int lane = threadIdx.x % WARP;
    const int64_t i = this_thread() / WARP, h = blockIdx.z;
    if (i >= s.a.rows) return; /* whole warps */
    int64_t begin;
    const int64_t entries = row_range(s.a, i, &begin);
    T own[PER];
    UNROLLED(n, PER) {
        const int c = lane + n * WARP;
        own[n] = c < s.feat ? __ldg(s.x.at(i, h) + c) : T(0);
    }
    sums<T, PER> sum = {};
    for (int64_t at = 0; at < entries; at += WARP) {
        const bool there = at + lane < entries;
        const int32_t mine = there ? column_of(s, begin + at + lane) : -1;
        T score = T(0);
#pragma unroll 4
        for (int k = 0; k < WARP; k++) {
            const int32_t j = __shfl_sync(ALL, mine, k);
            if (j < 0) continue;
            const T *const y = s.y.at(j, h);
            T dot = T(0);
            UNROLLED(n, PER) {
                const int c = lane + n * WARP;
                if (c < s.feat) dot += own[n] * __ldg(y + c);
            }
            dot = lane_sum<WARP>(dot);
            if (lane == k) score = dot;
        }
        const T weight = mine < 0 ? T(0) : weight_of(s, begin + at + lane, h, score);
#pragma unroll 4
        for (int k = 0; k < WARP; k++) {
            const int32_t j = __shfl_sync(ALL, mine, k);
            const T w = __shfl_sync(ALL, weight, k);
            if (j < 0) continue;
            const T *const z = s.z.at(j, h);
            UNROLLED(n, PER) {
                const int c = lane + n * WARP;
                if (c < s.feat_out) sum.part[n] += w * __ldg(z + c);
            }
        }
        sum.fold(WARP);
    }
    UNROLLED(n, PER) {
        const int c = lane + n * WARP;
        if (c < s.feat_out) s.out.at(i, h)[c] = sum.total(n);
    }
}

static int64_t widest(const fmm_call *call)
{
    const int64_t in = fmm_fusion_of(call)->x->feat, out = fmm_fusion_of(call)->out->feat;
    return in > out ? in : out;
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_fused(exec, call, [&](auto s) {
        const int64_t heads = fmm_fusion_of(call)->x->heads;
        const dim3 grid = grid_of(ceil_div(s.a.rows, BLOCK / WARP), 1, heads);
        for_least<1, 2, 4, 8>(ceil_div(widest(call), WARP), [&](auto per) {
            row_vector<per><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
        });
    });
}

static bool supports(const fmm_call *call)
{
    return lesson_fused_supports(call) && widest(call) <= 8 * WARP;
}

fmm_algorithm fused_row_vector[] = {
    lesson("row_vector", "a warp per row: the scores of 32 entries, then their sum",
           "after Bell and Garland, SC 2009", run, supports),
    {},
};
