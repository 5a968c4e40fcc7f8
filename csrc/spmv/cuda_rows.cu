/* SpMV `csr_scalar` and `csr_vector`: a thread, or a group of lanes, for each row of a CSR matrix,
 * whose products the warp brings to shared memory together.
 *
 *     entries of the warp's rows    a a a b b c c c c d ...     lane 0 the first, lane 1 the next:
 *                                                               8 gathers of x a lane under way
 *     stage (shared memory)         p p p p p p p p p p ...     up to 256 products at a time
 *
 *     csr_scalar     lane i sums row i of 32              a a a | b b | c c c c | d ...
 *     csr_vector     2 to 16 lanes sum a row of 16 to 2   then a tree of shuffles adds up the lanes
 *                    32 or 128 sum a row without a stage  then what four warps have meets as well
 *
 * A thread that loads its own row's entries reads places a row apart, which wastes most of what a
 * load brings; here neighbouring lanes read neighbouring entries, whatever the rows' lengths. Rows
 * of up to ALONE entries are read so all the same, and rows that whole warps sum: both need no
 * shared memory, which made ddi-size (500 entries a row) take 1.1 times as long (H200). What is
 * waited for is ptr, then columns and values, then x, and nothing more: one launch, no workspace
 * and no search.
 *
 * A hub would keep its warp at work when all others have ended. So the warp steps over rows of more
 * than OWN entries a lane and puts them on a list. When the block's warps are done, all 256 threads
 * take one listed row after the other. Each row is added up on its own and in a fixed order, so the
 * bits repeat, whatever the order of the list.
 *
 * Bell and Garland, "Implementing Sparse Matrix-Vector Multiplication on Throughput-Oriented
 * Processors", SC 2009, have both ways to share rows; Greathouse and Daga, "Efficient Sparse
 * Matrix-Vector Multiplication on GPUs Using the CSR Storage Format", SC 2014, the products in
 * shared memory. */
#include "cuda.cuh"

/* Products of a lane at a time, and of a warp. Entries of a row, for each of its lanes, beyond
 * which its block takes it. Entries that a lane should have at most, in the mean: where threads
 * fill a large card, and where they half fill it. CARD threads half fill it. With more threads
 * than these numbers allow, lanes have less to do than their loads and shuffles cost. */
enum { TAKE = 8, STAGE = WARP * TAKE, OWN = 64, ENOUGH = 16, SOME = 4, CARD = 1 << 16 };

/* Entries a row up to which single threads read their own, and up to which they ask for four at
 * once, not eight, with which usa_road_ny takes 1.08 times as long (H100). */
enum { ALONE = 12, FEW = 4 };

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
        part = block_sum<BLOCK>(part);
        if (threadIdx.x == 0) finish(s, row, part);
    }
    __syncthreads(); /* before the list is written again */
}

/* LANES threads read the entries of their own row. A single thread's places are a row away from its
 * neighbour's, so a load brings more than it uses; L1 keeps it for the next ones. */
template <class T, class V, int AT_ONCE, int LANES>
static __global__ void __launch_bounds__(BLOCK, std::is_same<V, any_type>::value ? 4 : 6)
    spmv_alone(const __grid_constant__ spmv_args<T> s)
{
    typedef typename sum_of<T>::type A;
    const uint32_t sub = threadIdx.x % LANES;
    for (int64_t from = int64_t(blockIdx.x) * BLOCK; from / LANES < s.a.rows;
         from += all_threads()) {
        const int64_t i = (from + threadIdx.x) / LANES;
        int64_t begin, length = 0;
        if (i < s.a.rows) length = row_range(s.a, i, &begin);
        const bool is_long = length > OWN * LANES;
        const uint32_t own = is_long ? 0 : uint32_t(length);
        A sum = A(0);
        for (uint32_t k = sub; k < own; k += AT_ONCE * LANES) {
            uint32_t at[AT_ONCE];
            A term[AT_ONCE];
#pragma unroll
            for (int f = 0; f < AT_ONCE; f++) at[f] = min(k + f * LANES, own - 1);
            products<V, AT_ONCE, 1, LANES == 1>(s, s.a.idx, begin, at,
                                                (own - k + LANES - 1) / LANES, term);
#pragma unroll
            for (int f = 0; f < AT_ONCE; f++) sum += term[f];
        }
        if constexpr (LANES > WARP)
            sum = block_sum<LANES>(sum);
        else
            sum = lanes_sum(sum, LANES);
        if (i < s.a.rows && !sub && !is_long) finish(s, i, sum);
        sum_waiting<V, 2>(s, is_long && !sub, i); /* more would take registers */
    }
}

/* What a lane adds to its row, which has the entries [begin, end). The warp's rows follow each
 * other from the first lane's begin to the last lane's end. */
template <class V, class T, class A>
static __device__ __forceinline__ A sum_staged(const spmv_args<T> &s, int64_t begin, int64_t end,
                                               bool is_long, int shift, A *stage)
{
    const int lane = threadIdx.x % WARP, sub = lane & ((1 << shift) - 1);
    const int64_t last = __shfl_sync(ALL, end, WARP - 1);
    A sum = A(0);
    for (int64_t base = __shfl_sync(ALL, begin, 0); base < last;) {
        const unsigned hub = __ballot_sync(ALL, is_long && begin <= base && base < end);
        if (hub) {
            base = __shfl_sync(ALL, end, __ffs(hub) - 1);
            continue;
        }
        const uint32_t behind = uint32_t(min(last - base, int64_t(STAGE))) - 1;
        uint32_t at[TAKE];
        A term[TAKE];
#pragma unroll
        for (int k = 0; k < TAKE; k++) at[k] = min(uint32_t(lane + k * WARP), behind);
        products<V, TAKE, 1>(s, s.a.idx, base, at, TAKE, term);
#pragma unroll
        for (int k = 0; k < TAKE; k++) stage[lane + k * WARP] = term[k];
        __syncwarp();
        const int to = is_long ? 0 : (int)min(end - base, int64_t(STAGE));
#pragma unroll 4
        for (int k = (int)max(begin - base, int64_t(0)) + sub; k < to; k += 1 << shift)
            sum += stage[k];
        __syncwarp();
        base += STAGE;
    }
    return lanes_sum(sum, 1 << shift);
}

/* 2^shift lanes sum a row. Threads behind the last row stay for the shuffles and barriers, with an
 * empty row at its end. Four blocks leave a thread registers for eight loads of everything: with
 * fewer, some wait for others, and a small matrix takes 1.1 times as long (H200). */
template <class T, class V>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_rows(const __grid_constant__ spmv_args<T> s, int shift)
{
    typedef typename sum_of<T>::type A;
    __shared__ A stages[BLOCK / WARP][STAGE];
    const bool leads = (threadIdx.x & ((1 << shift) - 1)) == 0;
    for (int64_t from = int64_t(blockIdx.x) * BLOCK; from >> shift < s.a.rows;
         from += all_threads()) {
        const int64_t i = (from + threadIdx.x) >> shift;
        int64_t begin, end = row_range(s.a, min(i, s.a.rows - 1), &begin);
        end += begin;
        if (i >= s.a.rows) begin = end;
        const bool is_long = end - begin > int64_t(OWN) << shift, waits = is_long && leads;
        const A sum = sum_staged<V>(s, begin, end, is_long, shift, stages[threadIdx.x / WARP]);
        if (i < s.a.rows && leads && !waits) finish(s, i, sum);
        sum_waiting<V, 8>(s, waits, i);
    }
}

/* Single threads read the entries of short rows on their own, and so do whole warps. */
static fmm_status run_rows(const fmm_exec *exec, const fmm_call *call, int shift)
{
    const int64_t rows = call->a->rows, nnz = call->a->nnz;
    const dim3 grid(blocks_for(rows << shift));
    const cudaStream_t stream = stream_of(exec);
    return on_device("spmv", exec, [&] {
        for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
            typedef decltype(x) T;
            typedef decltype(v) V;
            const spmv_args<T> s = spmv_view<T>(call);
            if (shift < 5 && (shift || nnz > ALONE * rows))
                return spmv_rows<T, V><<<grid, BLOCK, 0, stream>>>(s, shift);
            const auto kernel = shift == 7         ? spmv_alone<T, V, 8, 4 * WARP>
                                : shift            ? spmv_alone<T, V, 8, WARP>
                                : nnz > FEW * rows ? spmv_alone<T, V, 8, 1>
                                                   : spmv_alone<T, V, 4, 1>;
            kernel<<<grid, BLOCK, 0, stream>>>(s);
        });
    });
}

extern "C" fmm_status fmm_spmv_csr_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return run_rows(exec, call, 0);
}

/* Lanes: a power of two from 2 to 32, or four warps. A warp's rows should have about two stages of
 * entries; where rows are too few to fill the card so, less. Measured on an H200 and, from half a
 * card on, an H100 (docs/spmv.md). */
extern "C" fmm_status fmm_spmv_csr_vector(const fmm_exec *exec, const fmm_call *call)
{
    const int64_t rows = call->a->rows, nnz = call->a->nnz;
    int shift = 1;
    for (; shift < 5; shift++) {
        const int64_t threads = rows << shift;
        const int most = threads < CARD ? 1 : threads < 2 * CARD ? SOME : ENOUGH;
        if (nnz >> shift <= most * rows) break;
    }
    return run_rows(exec, call, nnz >= FMM_SPMV_LONG * rows ? 7 : shift);
}
