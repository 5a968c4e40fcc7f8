/* SpMV `csr_scalar` and `csr_vector`: a thread, or a group of lanes, for each row of a CSR matrix.
 *
 *     entries of four rows    a a a b b b b b b b b c d d d d
 *
 *     csr_scalar     lane i sums row i             0 0 0 1 1 1 1 1 1 1 1 2 3 3 3 3
 *     csr_vector     2 to 32 lanes sum a row,      0 1 0 2 3 2 3 2 3 2 3 4 6 7 6 7
 *                    and then meet in a tree
 *
 * A lane asks for four or eight entries of its row at once. Lanes' places are up to a row apart, so
 * a load brings more than it uses; L1 keeps it for the next ones. What is waited for is ptr, then
 * columns and values, then x, and nothing more: one launch, no workspace, no shared memory and no
 * search.
 *
 * A hub would keep its warp at work when all others have ended. So the warp steps over rows of more
 * than OWN entries a lane and puts them on a list. When the block's warps are done, all 256 threads
 * take one listed row after the other. Each row is added up on its own and in a fixed order, so the
 * bits repeat, whatever the order of the list.
 *
 * Bell and Garland, "Implementing Sparse Matrix-Vector Multiplication on Throughput-Oriented
 * Processors", SC 2009. */
#include "cuda.cuh"

/* Entries of a row, for each of its lanes, beyond which its block takes it; up to which a lane asks
 * for four at once, not eight. Entries that a lane should have at most, on average. Threads that
 * half fill a large card: with more, lanes have less to do than their loads and shuffles cost. */
enum { OWN = 64, FEW = 4, ENOUGH = 16, CARD = 1 << 16 };

/* Takes the rows that threads of the block leave to it, one after the other, by all 256 of them, of
 * which each asks for FLY entries at once. */
template <class V, int FLY, class T>
static __device__ __forceinline__ void sum_waiting(const spmv_args<T> &s, bool waits, int64_t i)
{
    __shared__ int64_t waiting[BLOCK];
    __shared__ int waiters;
    if (!__syncthreads_or(waits)) return;
    if (threadIdx.x == 0) waiters = 0;
    __syncthreads();
    if (waits) waiting[atomicAdd(&waiters, 1)] = i;
    __syncthreads();
    for (int w = 0; w < waiters; w++) {
        int64_t begin;
        const int64_t row = waiting[w], length = row_range(s.a, row, &begin) - threadIdx.x;
        typename sum_of<T>::type part;
        sum_steps<V, 1, FLY>(s, s.a.idx, begin + threadIdx.x, BLOCK, (length + BLOCK - 1) / BLOCK,
                             &part);
        part = block_sum(part);
        if (threadIdx.x == 0) finish(s, row, part);
    }
    __syncthreads(); /* before the list is written again */
}

/* 2^shift lanes sum a row. Threads behind the last row stay for the shuffles and barriers. */
template <class T, class V, int AT_ONCE>
static __global__ void __launch_bounds__(BLOCK, std::is_same<V, any_type>::value ? 4 : 6)
    spmv_rows(const __grid_constant__ spmv_args<T> s, int shift)
{
    typedef typename sum_of<T>::type A;
    const uint32_t lanes = 1u << shift, sub = threadIdx.x & (lanes - 1);
    for (int64_t from = int64_t(blockIdx.x) * BLOCK; from >> shift < s.a.rows;
         from += all_threads()) {
        const int64_t i = (from + threadIdx.x) >> shift;
        int64_t begin, length = 0;
        if (i < s.a.rows) length = row_range(s.a, i, &begin);
        const bool is_long = length > int64_t(OWN) << shift;
        const uint32_t own = is_long ? 0 : uint32_t(length);
        A sum = A(0);
        for (uint32_t k = sub; k < own; k += AT_ONCE * lanes) {
            uint32_t at[AT_ONCE];
            A term[AT_ONCE];
#pragma unroll
            for (int f = 0; f < AT_ONCE; f++) at[f] = min(k + f * lanes, own - 1);
            products<V, AT_ONCE, 1, true>(s, s.a.idx, begin, at, (own - k + lanes - 1) >> shift,
                                          term);
#pragma unroll
            for (int f = 0; f < AT_ONCE; f++) sum += term[f];
        }
        for (int far = int(lanes) / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        if (i < s.a.rows && !sub && !is_long) finish(s, i, sum);
        sum_waiting<V, 2>(s, is_long && !sub, i); /* more would take registers */
    }
}

static fmm_status run_rows(const fmm_exec *exec, const fmm_call *call, int shift)
{
    return on_device("spmv", exec, [&] {
        for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
            typedef decltype(x) T;
            typedef decltype(v) V;
            const bool few = call->a->nnz >> shift <= FEW * call->a->rows;
            const auto kernel = few ? spmv_rows<T, V, 4> : spmv_rows<T, V, 8>;
            kernel<<<blocks_for(call->a->rows << shift), BLOCK, 0, stream_of(exec)>>>(
                spmv_view<T>(call), shift);
        });
    });
}

extern "C" fmm_status fmm_spmv_csr_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return run_rows(exec, call, 0);
}

/* Lanes: a power of two from 2 to 32. Each should have about a batch or two of entries; where rows
 * are too few to fill the card so, less. Measured on an H200 (docs/spmv.md). */
extern "C" fmm_status fmm_spmv_csr_vector(const fmm_exec *exec, const fmm_call *call)
{
    const int64_t rows = call->a->rows, nnz = call->a->nnz;
    int shift = 1;
    while (shift < 5 && nnz >> shift > (rows << shift < CARD ? 1 : ENOUGH) * rows) shift++;
    return run_rows(exec, call, shift);
}
