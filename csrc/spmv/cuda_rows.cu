/* SpMV `csr_scalar` and `csr_vector`: a thread, or a group of lanes, for each row of a CSR matrix.
 *
 *     csr_scalar     thread i owns row i              e e e e e          its entries one by one
 *
 *     csr_vector     lanes 0 .. 7 own row 4w          e e e e e e e e    neighbours of a row by
 *     (8 lanes)      lanes 8 .. 15 own row 4w + 1     e e e              neighbouring lanes
 *                    ...
 *                    warp w owns 32 / 8 = 4 rows      then a tree of shuffles adds up the lanes
 *
 * Neighbouring lanes of csr_scalar read entries a row apart, which wastes most of what a load
 * brings unless rows are short; csr_vector reads side by side, and idles the lanes that a short row
 * has no entries for. Either is one launch without workspace and without a search.
 *
 * A hub would keep its group at work when all others have ended. So a group takes OWN entries per
 * lane at most. A row that has more goes on a list, and when the block's groups are done, all 256
 * threads take the rest of one listed row after the other. Each row is added up on its own and in
 * a fixed order, so the bits repeat, whatever the order of the list.
 *
 * Bell and Garland, "Implementing Sparse Matrix-Vector Multiplication on Throughput-Oriented
 * Processors", SC 2009, have both kernels, with a whole warp for each row. */
#include "cuda.cuh"

/* Entries of a lane, beyond which the row's block takes what is left. Entries that a lane should
 * have, which are a batch. Threads that fill a large card. */
enum { OWN = 32, ENOUGH = 8, CARD = 1 << 18 };

/* A row that waits for the whole block. */
template <class A> struct waiting_row {
    int64_t row;
    A sum; /* of its first entries */
};

/* The sum over all threads of a block, for thread 0; the others get part of it. */
template <class A> static __device__ __forceinline__ A block_sum(A sum)
{
    __shared__ A warps[BLOCK / WARP];
    for (int far = WARP / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < BLOCK / WARP; w++) sum += warps[w];
    __syncthreads(); /* before the next sum is written there */
    return sum;
}

/* 2^shift lanes own a row. Threads behind the last row stay for the shuffles and barriers. */
template <class T, class V>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_rows(const __grid_constant__ spmv_args<T> s, int shift)
{
    typedef typename sum_of<T>::type A;
    __shared__ waiting_row<A> waiting[BLOCK];
    __shared__ int waiters;
    const int lanes = 1 << shift, lane = threadIdx.x & (lanes - 1);
    for (int64_t from = int64_t(blockIdx.x) * BLOCK; from >> shift < s.a.rows;
         from += all_threads()) {
        const int64_t i = (from + threadIdx.x) >> shift;
        int64_t begin, length = 0;
        A sum = A(0);
        if (i < s.a.rows) {
            length = row_range(s.a, i, &begin);
            const int64_t mine = min(length, int64_t(OWN) << shift) - lane;
            sum_steps<V, 1>(s, s.a.idx, begin + lane, lanes, (mine + lanes - 1) >> shift, &sum);
        }
        for (int far = lanes / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        const bool waits = lane == 0 && length > int64_t(OWN) << shift;
        if (i < s.a.rows && lane == 0 && !waits) finish(s, i, sum);
        if (!__syncthreads_or(waits)) continue;
        if (threadIdx.x == 0) waiters = 0;
        __syncthreads();
        if (waits) waiting[atomicAdd(&waiters, 1)] = waiting_row<A>{i, sum};
        __syncthreads();
        for (int w = 0; w < waiters; w++) {
            const waiting_row<A> now = waiting[w];
            const int64_t rest = (int64_t(OWN) << shift) + threadIdx.x;
            length = row_range(s.a, now.row, &begin) - rest;
            sum_steps<V, 1>(s, s.a.idx, begin + rest, BLOCK, (length + BLOCK - 1) / BLOCK, &sum);
            sum = block_sum(sum);
            if (threadIdx.x == 0) finish(s, now.row, now.sum + sum);
        }
    }
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call, int shift)
{
    return on_device(exec, [&] {
        for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
            typedef decltype(x) T;
            spmv_rows<T, decltype(v)>
                <<<blocks_for(call->a->rows << shift), BLOCK, 0, stream_of(exec)>>>(
                    spmv_view<T>(call), shift);
        });
    });
}

extern "C" fmm_status fmm_spmv_csr_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return run(exec, call, 0);
}

/* Lanes: a power of two from 2 to 32. A lane should have a batch of entries, for loads that are
 * under way together; but where rows are too few to fill the card so, less. */
extern "C" fmm_status fmm_spmv_csr_vector(const fmm_exec *exec, const fmm_call *call)
{
    const int64_t rows = call->a->rows, nnz = call->a->nnz;
    int shift = 1;
    while (shift < 5 && nnz >> shift > (rows << shift < CARD ? 1 : ENOUGH) * rows) shift++;
    return run(exec, call, shift);
}
