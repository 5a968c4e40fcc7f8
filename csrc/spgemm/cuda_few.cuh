/* Few rows whose bits are kept (cuda_bits.cuh): two launches count them, where a look, lists of
 * rows and a scan take eight. A launch costs as much as all of its work here.
 *
 *     count     each row's bits, by a warp, or by its block where the row of A is long; B's falls
 *     add up    ptr, the schedule, and what the host waits for, by one block */
#ifndef FMM_SPGEMM_CUDA_FEW_CUH
#define FMM_SPGEMM_CUDA_FEW_CUH

#include "cuda_look.cuh"
#include "cuda_sets.cuh"

/* falls: those that the threads of each block have found. */
struct few_rows {
    symbolic_args s;
    row_lists *found;
    int32_t *falls;
    int blocks;
};

/* Rows of C that one block adds up, and of whose bits eight warps have less than a block's memory;
 * and entries, so few that no row keeps its block for long. Rows of B that are read often are
 * packed, which takes a launch more. */
static inline bool are_few(const symbolic_args &s)
{
    enum { ROWS = 1 << 14, ENTRIES = 1 << 17 };
    return s.bits.words && !s.bits.packs && s.a.rows <= ROWS && s.b.cols <= ROWS &&
           s.a.nnz <= ENTRIES && s.b.nnz <= ENTRIES && s.b.rows <= ENTRIES;
}

/* Warps for all rows, and threads that look at an entry and a row of B each. */
static inline unsigned blocks_of_few(const symbolic_args &s)
{
    const int64_t looks = ceil_div(s.b.nnz > s.b.rows ? s.b.nnz : s.b.rows, BLOCK);
    const int64_t own = ceil_div(s.a.rows, WARPS);
    return (unsigned)(own > looks ? own : looks);
}

/* Counts row i, and keeps its bits. The group has shared memory for one row of bits. */
template <int WARPS>
static __device__ __forceinline__ void count_row(const symbolic_args &s, told *says, uint32_t *bits,
                                                 int64_t i)
{
    const int bytes = s.bits.words * (int)sizeof *bits;
    const int64_t count =
        bits_row<WARPS>(s, says, bits, i, bytes, column_range{0, s.b.cols}, NULL, 0);
    if (!group<WARPS>::thread()) s.ptr[i + 1] = count;
}

/* A row for each warp. A block's rows lie far apart, since long ones are often neighbours: the
 * whole block takes these, one after the other, when its short ones are done. Which are long, a
 * warp says once for all others: if A changes meanwhile, they would not find the same, and a block
 * whose warps take different rows together waits forever.
 *
 *     of three blocks    0        1               2
 *     warp 0             row 0    row 1           row 2
 *     warp 1             row 3    row 4, long     row 5
 *     warp 2             row 6    row 7           row 8
 *     all warps                   then row 4             */
static __global__ void __launch_bounds__(BLOCK) count_few(const few_rows of)
{
    enum { LONG = 128 }; /* entries of A */
    __shared__ told says[WARPS];
    __shared__ bool is_long[WARPS];
    const symbolic_args &s = of.s;
    const int warp = threadIdx.x / WARP;
    const int64_t i = blockIdx.x + int64_t(warp) * of.blocks;
    uint32_t *const bits = reinterpret_cast<uint32_t *>(spgemm_shared);
    int64_t begin;
    const int falls = (int)falls_of(s.b); /* asked for before the row is waited for */
    const bool own_long = i < s.a.rows && row_range(s.a, i, &begin) > LONG;
    if (threadIdx.x % WARP == 0) is_long[warp] = own_long;
    if (i < s.a.rows && !own_long) count_row<1>(s, says + warp, bits + warp * s.bits.words, i);
    if (__syncthreads_or(own_long))
        for (int w = 0; w < WARPS; w++)
            if (is_long[w]) count_row<WARPS>(s, says, bits, blockIdx.x + int64_t(w) * of.blocks);
    if (!threadIdx.x) says->sum = 0;
    __syncthreads();
    const int all = added<WARPS>(falls, &says->sum);
    if (!threadIdx.x) of.falls[blockIdx.x] = all;
    let_next_start();
}

/* Each thread adds up neighbouring rows. */
static __global__ void __launch_bounds__(BLOCK) add_up_few(const few_rows of)
{
    __shared__ int64_t totals[WARPS];
    __shared__ int sum;
    int64_t *const ptr = of.s.ptr, rows = of.s.a.rows, each = ceil_div(rows, BLOCK);
    const int64_t begin = clamp(threadIdx.x * each, 0, rows), end = clamp(begin + each, 0, rows);
    int64_t own = 0;
    int falls = 0;
    if (!threadIdx.x) sum = 0;
    wait_for_previous();
#pragma unroll 4
    for (int64_t i = begin; i < end; i++) own += ptr[i + 1];
    for (int k = threadIdx.x; k < of.blocks; k += BLOCK) falls += of.falls[k];
    const int64_t until = scanned<WARPS>(own, totals);
    falls = added<WARPS>(falls, &sum);
    int64_t at = until - own;
#pragma unroll 4
    for (int64_t i = begin; i < end; i++) ptr[i + 1] = at += ptr[i + 1];
    for (int k = threadIdx.x; k < FMM_SPGEMM_SCHEDULE; k += BLOCK)
        of.s.schedule[k] = k ? 0 : 1 + falls;
    if (threadIdx.x < BLOCK - 1) return;
    ptr[0] = 0;
    *of.found = row_lists{};
    of.found->entries = (counter)until, of.found->falls = (counter)falls;
}

/* `falls` has room for a number of each block. */
static cudaError_t launch_count_few(const fmm_exec *exec, const symbolic_args &s, row_lists *found,
                                    int32_t *falls)
{
    const unsigned blocks = blocks_of_few(s);
    const few_rows of = {s, found, falls, (int)blocks};
    const size_t bytes = WARPS * sizeof(uint32_t) * (size_t)s.bits.words;
    count_few<<<blocks, BLOCK, bytes, stream_of(exec)>>>(of);
    launch_early(exec->index, stream_of(exec), add_up_few, dim3(1), of);
    return cudaPeekAtLastError();
}

#endif
