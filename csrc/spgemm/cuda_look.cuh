/* The look of the symbolic phase: what A's and B's rows say before anybody computes.
 *
 *     B      whether columns rise in every row      schedule[0]: 1, or 2 where some do not
 *     A      products of each row                   ptr[i + 1]
 *
 *     rows   | i: 8 lanes | i + 1: 8 lanes | ...    a long row: all threads of its block, later
 *
 * Both are sums over the entries of rows, of integers, so their order does not matter. */
#ifndef FMM_SPGEMM_CUDA_LOOK_CUH
#define FMM_SPGEMM_CUDA_LOOK_CUH

#include "cuda_classes.cuh"

enum { SHARE = 8, LONG_ROW = 512 }; /* lanes of a row; entries from which its block helps */

/* Calls put(i, sum of count(p, first entry of the row)) for every row i. A block takes BLOCK /
 * SHARE rows, SHARE lanes each, and then all of its threads take the rows that are long. */
template <class Count, class Put>
static __global__ void __launch_bounds__(BLOCK) sum_rows(const csr_view a, Count count, Put put)
{
    enum { ROWS = BLOCK / SHARE };
    __shared__ counter sums[ROWS];
    const int own = threadIdx.x / SHARE, lane = threadIdx.x % SHARE;
    for (int64_t base = int64_t(blockIdx.x) * ROWS; base < a.rows;
         base += int64_t(gridDim.x) * ROWS) {
        int64_t begin = 0, sum = 0;
        const int64_t i = base + own, length = i < a.rows ? row_range(a, i, &begin) : 0;
        const bool is_long = length > LONG_ROW;
        for (int64_t p = begin + lane; p < begin + length && !is_long; p += SHARE)
            sum += count(p, begin);
        for (int d = SHARE / 2; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
        if (!lane) sums[own] = (counter)sum;
        if (__syncthreads_or(is_long)) {
            for (int r = 0; r < ROWS && base + r < a.rows; r++) {
                const int64_t end = row_range(a, base + r, &begin) + begin;
                if (end - begin <= LONG_ROW) continue;
                sum = 0;
                for (int64_t p = begin + threadIdx.x; p < end; p += BLOCK) sum += count(p, begin);
                if (sum) atomicAdd(sums + r, (counter)sum);
            }
            __syncthreads();
        }
        if (!lane && i < a.rows) put(i, (int64_t)sums[own]);
        __syncthreads();
    }
}

/* Entries of B whose column is outside of it, or not above the one before. */
struct count_falls {
    csr_view b;
    __device__ int64_t operator()(int64_t q, int64_t begin) const
    {
        const int32_t j = __ldg(b.idx + q);
        return uint32_t(j) >= uint32_t(b.cols) || (q > begin && j <= __ldg(b.idx + q - 1));
    }
};
struct put_falls {
    int64_t *repeats;
    __device__ void operator()(int64_t, int64_t falls) const
    {
        if (falls) *repeats = 2;
    }
};

/* Products of A's rows. */
struct count_products {
    csr_view a, b;
    __device__ int64_t operator()(int64_t p, int64_t) const
    {
        int64_t begin;
        const int64_t k = __ldg(a.idx + p);
        return uint64_t(k) < uint64_t(b.rows) ? row_range(b, k, &begin) : 0;
    }
};
struct put_products {
    int64_t *ptr;
    __device__ void operator()(int64_t i, int64_t products) const { ptr[i + 1] = products; }
};

static __global__ void start_schedule(int64_t *schedule)
{
    for (int k = threadIdx.x; k < FMM_SPGEMM_SCHEDULE; k += BLOCK) schedule[k] = k == 0;
}

template <class Count, class Put>
static void launch_sums(const fmm_exec *exec, const csr_view &a, Count count, Put put)
{
    const unsigned blocks = (unsigned)smaller(ceil_div(a.rows, BLOCK / SHARE), 1 << 16);
    if (blocks) sum_rows<<<blocks, BLOCK, 0, stream_of(exec)>>>(a, count, put);
}

#endif
