/* The look of the symbolic phase: what A's and B's rows say before anybody computes.
 *
 *     B      whether columns rise in every row      schedule[0]: 1, or 2 where some do not
 *     A      products of each row, and of all       ptr[i + 1]
 *
 *     rows   | i: SHARE lanes | i + 1 | ...         a long row: all threads of its block, later
 *
 * Both are sums over the entries of rows, of integers, so their order does not matter. One launch
 * looks at both. */
#ifndef FMM_SPGEMM_CUDA_LOOK_CUH
#define FMM_SPGEMM_CUDA_LOOK_CUH

#include "cuda_small.cuh"

enum { LONG_ROW = 64 }; /* entries of a lane until its block helps */
enum { FEW = 1 << 16 }; /* rows that eight lanes each fit the card at once */

/* Calls put(i, sum of count(p, first entry of the row, true)) for every row i, and returns the sum
 * of what a thread has put. A block takes BLOCK / SHARE rows, and then all of its threads take
 * those that are long. A lane counts AHEAD entries at once, without a branch, so that their loads
 * are under way together; those behind the row's end are not wanted, and count 0. */
template <int SHARE, class Count, class Put>
static __device__ __forceinline__ int64_t sum_rows(const csr_view &a, Count count, Put put)
{
    enum { ROWS = BLOCK / SHARE, AHEAD = 4 };
    __shared__ counter sums[ROWS];
    __shared__ int waiting[ROWS], wait;
    const int own = threadIdx.x / SHARE, lane = threadIdx.x % SHARE;
    int64_t all = 0;
    for (int64_t base = int64_t(blockIdx.x) * ROWS; base < a.rows;
         base += int64_t(gridDim.x) * ROWS) {
        int64_t begin = 0, sum = 0;
        const int64_t i = base + own, length = i < a.rows ? row_range(a, i, &begin) : 0;
        const bool is_long = length > LONG_ROW * SHARE;
        for (int64_t p = begin + lane; p < begin + length && !is_long; p += AHEAD * SHARE) {
            int64_t counts[AHEAD];
            UNROLLED(u, AHEAD)
                counts[u] = count(p + u * SHARE, begin, p + u * SHARE < begin + length);
            UNROLLED(u, AHEAD) sum += counts[u];
        }
        for (int d = SHARE / 2; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
        if (__syncthreads_or(is_long)) { /* the block lists its long rows, and takes them in turn */
            if (!threadIdx.x) wait = 0;
            __syncthreads();
            if (!lane) sums[own] = (counter)sum;
            if (!lane && is_long) waiting[atomicAdd(&wait, 1)] = own;
            __syncthreads();
            for (int k = 0; k < wait; k++) {
                const int r = waiting[k];
                const int64_t end = row_range(a, base + r, &begin) + begin;
                int64_t part = 0;
                for (int64_t p = begin + threadIdx.x; p < end; p += BLOCK)
                    part += count(p, begin, true);
                if (part) atomicAdd(sums + r, (counter)part);
            }
            __syncthreads();
            sum = (int64_t)sums[own];
        }
        if (!lane && i < a.rows) put(i, sum, length), all += sum;
    }
    return all;
}

/* Entries of B whose column is outside of it, or not above the one before. */
struct count_falls {
    csr_view b;
    __device__ int64_t operator()(int64_t q, int64_t begin, bool wanted) const
    {
        const int32_t j = load_or(b.idx + q, wanted, 0);
        const int32_t before = load_or(b.idx + q - 1, wanted && q > begin, -1);
        return wanted && (uint32_t(j) >= uint32_t(b.cols) || j <= before);
    }
};
struct put_falls {
    int64_t *repeats;
    row_lists *found; /* or NULL */
    __device__ void operator()(int64_t, int64_t falls, int64_t) const
    {
        if (!falls) return;
        *repeats = 2;
        if (found) found->falls = 1;
    }
};

/* Products of A's rows. */
struct count_products {
    csr_view a, b;
    __device__ int64_t operator()(int64_t p, int64_t, bool wanted) const
    {
        int64_t begin;
        return row_or_none(b, load_or(a.idx + p, wanted, -1), &begin);
    }
};
/* A row of one entry is a row of B. Where it is long it is copied, not merged, and nobody counts
 * it: this has to be said here. */
struct put_products {
    int64_t *ptr, rows;
    row_lists *found;
    __device__ void operator()(int64_t i, int64_t products, int64_t entries) const
    {
        ptr[i + 1] = products;
        if (entries == 1 && products > small_limit(rows)) found->copies = 1;
    }
};

/* What is looked at: both matrices; or B alone, where nobody counts and `found` is NULL. The same
 * launch has a layer of blocks for each, since a launch costs as much as a look at a small matrix.
 */
struct look_args {
    csr_view a, b;
    int64_t *ptr, *schedule;
    row_lists *found;
};
template <int SHARE> static __global__ void __launch_bounds__(BLOCK) look(const look_args s)
{
    if (!blockIdx.y) {
        sum_rows<SHARE>(s.b, count_falls{s.b}, put_falls{s.schedule, s.found});
        return;
    }
    __shared__ counter products;
    if (!threadIdx.x) products = 0;
    __syncthreads();
    int64_t all =
        sum_rows<SHARE>(s.a, count_products{s.a, s.b}, put_products{s.ptr, s.a.rows, s.found});
    /* A lane each adds to shared memory: 64 bits there are a loop, in which lanes would contend. */
    for (int d = WARP / 2; d; d /= 2) all += __shfl_xor_sync(ALL, all, d);
    if (threadIdx.x % WARP == 0) atomicAdd(&products, (counter)all);
    __syncthreads();
    if (!threadIdx.x && products) atomicAdd(&s.found->products, products);
}

/* Nothing is known yet. */
static __global__ void start_look(const look_args s)
{
    for (int k = threadIdx.x; k < FMM_SPGEMM_SCHEDULE; k += BLOCK) s.schedule[k] = k == 0;
    if (threadIdx.x || !s.found) return;
    *s.found = row_lists{};
    s.ptr[0] = 0;
}

/* Where rows are short and many, a lane takes each and reads neighbouring entries one after the
 * other from the cache; else eight lanes or a warp do, so that few wait for a long row. */
static void launch_look(const fmm_exec *exec, const look_args &s)
{
    const bool both = s.found;
    const int64_t rows = both && s.a.rows > s.b.rows ? s.a.rows : s.b.rows;
    const int64_t entries = both && s.a.rows > s.b.rows ? s.a.nnz : s.b.nnz;
    const int share = entries >= 64 * rows ? WARP : entries >= 16 * rows || rows <= FEW ? 8 : 1;
    const int64_t blocks = smaller(ceil_div(rows, BLOCK / share), 1 << 14);
    start_look<<<1, BLOCK, 0, stream_of(exec)>>>(s);
    if (!blocks) return;
    const dim3 grid((unsigned)blocks, both ? 2 : 1);
    const auto run = share == 1 ? look<1> : share == 8 ? look<8> : look<WARP>;
    run<<<grid, BLOCK, 0, stream_of(exec)>>>(s);
}

#endif
