/* The look of the symbolic phase: what A's and B's rows say before anybody computes.
 *
 *     B      whether columns rise in every row      schedule[0]: 1, or more where some do not
 *     A      products of each row, and of all       ptr[i + 1]
 *
 *     columns of B   3 7 9 | 2 5 | 0 ...            9 2 and 5 0 fall, but begin rows: so all rise
 *     rows of A      | i: SHARE lanes | i + 1 | ... a long row: all lanes of its warp, later
 *
 * Both are sums of integers, so their order does not matter. One launch looks at both. */
#ifndef FMM_SPGEMM_CUDA_LOOK_CUH
#define FMM_SPGEMM_CUDA_LOOK_CUH

#include "cuda_small.cuh"

/* What is looked at: both matrices; or B alone, where nobody counts and `found` is NULL. The same
 * launch has a layer of blocks for each, since a launch costs as much as a look at a small matrix.
 */
struct look_args {
    csr_view a, b;
    int64_t *ptr, *schedule;
    row_lists *found;
};

/* Entries of B whose column is outside of it, or not above the one before in their row: those that
 * are not above the one before at all, less those that begin a row. */
static __device__ __forceinline__ int64_t falls_of(const csr_view &b)
{
    int64_t falls = 0, begin;
    const auto falls_at = [&](int64_t q) { return q && __ldg(b.idx + q) <= __ldg(b.idx + q - 1); };
    for (int64_t q = this_thread(); q < b.nnz; q += all_threads())
        falls += falls_at(q) || uint32_t(__ldg(b.idx + q)) >= uint32_t(b.cols);
    for (int64_t k = this_thread(); k < b.rows; k += all_threads())
        if (row_range(b, k, &begin) > 0) falls -= falls_at(begin);
    return falls;
}

/* Products of A's entries p, p + step, ... before the end: their loads are under way together. */
static __device__ __forceinline__ int64_t products_of(const look_args &s, int64_t p, int step,
                                                      int64_t end)
{
    enum { AHEAD = 4 };
    int64_t sum = 0, begin;
    for (; p < end; p += AHEAD * step)
        UNROLLED(u, AHEAD)
            sum +=
                row_or_none(s.b, load_or(s.a.idx + p + u * step, p + u * step < end, -1), &begin);
    return sum;
}

/* The sum of the numbers of `lanes` neighbouring lanes, in each of them. */
static __device__ __forceinline__ int64_t sum_among(int64_t v, int lanes)
{
    for (int d = lanes / 2; d; d /= 2) v += __shfl_xor_sync(ALL, v, d);
    return v;
}

/* Puts the products of A's rows, SHARE lanes a row, into ptr; returns this lane's part of all. */
template <int SHARE> static __device__ __forceinline__ int64_t look_at_rows(const look_args &s)
{
    enum { LONG = 64, ROWS = WARP / SHARE }; /* entries of a lane until its warp helps */
    const int lane = threadIdx.x % WARP, own = lane % SHARE;
    int64_t all = 0;
    for (int64_t first = this_thread() / WARP * ROWS; first < s.a.rows;
         first += all_threads() / WARP * ROWS) {
        int64_t begin = 0;
        const int64_t i = first + lane / SHARE;
        const int64_t end = i < s.a.rows ? row_range(s.a, i, &begin) + begin : 0;
        const bool is_long = end - begin > LONG * SHARE;
        if (!own && end - begin > LONG_WALK) s.found->has_long = 1;
        int64_t sum = products_of(s, begin + own, SHARE, is_long ? begin : end);
        sum = sum_among(sum, SHARE);
        for (unsigned left = __ballot_sync(ALL, is_long && !own); left; left &= left - 1) {
            const int from = __ffs(left) - 1;
            const int64_t p = __shfl_sync(ALL, begin, from) + lane;
            const int64_t part = products_of(s, p, WARP, __shfl_sync(ALL, end, from));
            const int64_t whole = sum_among(part, WARP);
            if (lane / SHARE == from / SHARE) sum = whole;
        }
        if (!own && i < s.a.rows) s.ptr[i + 1] = sum, all += sum;
    }
    return all;
}

template <int SHARE> static __global__ void __launch_bounds__(BLOCK) look(const look_args s)
{
    __shared__ counter sum;
    if (!threadIdx.x) sum = 0;
    __syncthreads();
    const int64_t own = blockIdx.y ? look_at_rows<SHARE>(s) : falls_of(s.b);
    const int64_t all = sum_among(own, WARP);
    /* A warp each adds to shared memory: 64 bits there are a loop, in which lanes would contend. */
    if (threadIdx.x % WARP == 0 && all) atomicAdd(&sum, (counter)all);
    __syncthreads();
    if (threadIdx.x || !sum) return;
    if (blockIdx.y)
        atomicAdd(&s.found->products, sum);
    else {
        atomicAdd(reinterpret_cast<counter *>(s.schedule), sum);
        if (s.found) atomicAdd(&s.found->falls, sum);
    }
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
    enum { FEW = 1 << 16, MOST = 1 << 12 }; /* rows that eight lanes each fit the card at once */
    const bool both = s.found;
    const int64_t rows = both && s.a.rows > s.b.rows ? s.a.rows : s.b.rows;
    const int64_t entries = both && s.a.rows > s.b.rows ? s.a.nnz : s.b.nnz;
    const int share = entries >= 64 * rows ? WARP : entries >= 16 * rows || rows <= FEW ? 8 : 1;
    const int64_t most = entries > rows * share ? entries : rows * share;
    start_look<<<1, BLOCK, 0, stream_of(exec)>>>(s);
    if (!most) return;
    const dim3 grid((unsigned)smaller(ceil_div(most, BLOCK), MOST), both ? 2 : 1);
    const auto run = share == 1 ? look<1> : share == 8 ? look<8> : look<WARP>;
    run<<<grid, BLOCK, 0, stream_of(exec)>>>(s);
}

#endif
