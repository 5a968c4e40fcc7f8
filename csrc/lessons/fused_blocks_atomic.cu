/* blocks_atomic:B, fused in a grid over A as if A were dense, sums of blocks added atomically.
 *
 * Teaches: why fusion can be slower than two calls. A block is B positions of a dense row. Its
 * threads score an entry each and leave the weights in shared memory; then they share out the
 * channels and add up the block's rows of z. That is one pass and no score in global memory, as
 * promised, and yet: at a density d all but that share of the blocks start only to end; rows of y
 * are read by threads that each walk along one, which does not coalesce, and are read again for the
 * sum; the output is cleared first, then read and written once by every block that has a part of
 * the row; and what those blocks add arrives in any order, so two runs differ in their last bits.
 *
 *     row i of A    [ B positions ][ B positions ][ B positions ] ...     a block for each
 *     entries       e e e e e e e e e e                                   blocks without one end
 *     a block       thread k: score of its k-th entry --> shared memory
 *                   thread k: channels k, k + B, ... of the block's sum --> out[i], by atomics
 *
 * Expected: behind SDDMM and SpMM one after the other on every graph, by far on large ones; nearest
 * to them where A is small and nearly dense.
 *
 * Source: the five steps of FusedMM (Rahman, Sujon and Azad, IPDPS 2021) as a first translation to
 * a GPU makes them. Guard: 8 channels of the output per thread, at most 2^27 blocks; along a row at
 * most 512, which then take several stretches each, as no element should take more additions in a
 * row than that. */
#include "lesson_fused.cuh"

enum { HELD = 8 };
static const int64_t BLOCKS_MAX = INT64_C(1) << 27;

template <int B, class T>
static __global__ void __launch_bounds__(B) blocks_atomic(const __grid_constant__ fused_args<T> s)
{
    __shared__ T weight[B];
    __shared__ int32_t column[B];
    const int64_t i = blockIdx.x, h = blockIdx.z, step = int64_t(gridDim.y) * B;
    int64_t begin;
    const int64_t entries = row_range(s.a, i, &begin);
    if (int64_t(blockIdx.y) * B >= entries) return;
    const T *const x = s.x.at(i, h);
    sums<T, HELD> sum = {};
    for (int64_t at = int64_t(blockIdx.y) * B; at < entries; at += step) {
        const int64_t p = begin + at + threadIdx.x;
        const int32_t j = at + threadIdx.x < entries ? column_of(s, p) : -1;
        column[threadIdx.x] = j;
        if (j >= 0) {
            const T score = dot_of<T>(x, s.y.at(j, h), s.feat);
            weight[threadIdx.x] = weight_of(s, p, h, score);
        }
        __syncthreads();
        for (int k = 0; k < B && at + k < entries; k++) {
            if (column[k] < 0) continue;
            const T *const z = s.z.at(column[k], h);
            UNROLLED(n, HELD) {
                const int64_t c = threadIdx.x + n * B;
                if (c < s.feat_out) sum.part[n] += weight[k] * __ldg(z + c);
            }
        }
        sum.fold(B);
        __syncthreads();
    }
    UNROLLED(n, HELD) {
        const int64_t c = threadIdx.x + n * B;
        if (c < s.feat_out) atomicAdd(s.out.at(i, h) + c, sum.total(n));
    }
}

static int64_t blocks_of_row(const fmm_call *call, int b)
{
    return smaller(ceil_div(call->a->cols, b), CHAIN);
}

template <int B> static bool supports(const fmm_call *call)
{
    return lesson_fused_supports(call) && fmm_fusion_of(call)->out->feat <= HELD * B &&
           call->a->rows * blocks_of_row(call, B) <= BLOCKS_MAX;
}

template <int B> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_dense *out = fmm_fusion_of(call)->out;
    return run_fused(exec, call, [&](auto s) {
        for (int64_t h = 0; h < out->heads; h++)
            cudaMemset2DAsync(s.out.data + h * s.out.head, (size_t)s.out.row * sizeof *s.out.data,
                              0, (size_t)s.feat_out * sizeof *s.out.data, (size_t)s.a.rows,
                              stream_of(exec));
        const dim3 grid = grid_of(s.a.rows, blocks_of_row(call, B), out->heads);
        if (call->a->nnz) blocks_atomic<B><<<grid, B, 0, stream_of(exec)>>>(s);
    });
}

static const char about[] = "blocks of B positions of a dense row, added atomically";
static const char source[] = "a first translation of FusedMM, Rahman et al., IPDPS 2021";

#define ENTRY(b) lesson("blocks_atomic:" #b, about, source, run<b>, supports<b>, NULL, false)
fmm_algorithm fused_blocks_atomic[] = {ENTRY(32), ENTRY(64), ENTRY(128), ENTRY(256), {}};
