/* The second kernel of SpMM `segments`: adds the pieces of long rows. */
#ifndef FMM_CUDA_SPMM_JOIN_CUH
#define FMM_CUDA_SPMM_JOIN_CUH

#include "cuda_terms.cuh"

/* Adds the slots of long rows, four columns (WIDTH) a thread. Rows of up to HUB_PIECES pieces have
 * a thread per columns; a hub has a block, whose threads split its slots and meet in shared memory
 * in a tree of fixed shape. */
enum { WIDTH = 4 };

template <class A> struct four {
    A v[WIDTH];
};
template <class A, class Reduce>
static __device__ __forceinline__ void join_slots(four<A> *sum, const A *from, int64_t some,
                                                  int64_t begin, int64_t end, int64_t step,
                                                  int64_t stride)
{
    for (int v = 0; v < WIDTH; v++) sum->v[v] = Reduce::template start<A>();
#pragma unroll 4
    for (int64_t p = begin; p < end; p += step) {
        four<A> slot;
        fetch_kept<A, WIDTH>(from + p * stride, some, slot.v);
#pragma unroll
        for (int v = 0; v < WIDTH; v++) sum->v[v] = Reduce::join(sum->v[v], slot.v[v]);
    }
}

template <class T, class Reduce>
static __global__ void __launch_bounds__(BLOCK, 4) spmm_join(const __grid_constant__ spmm_args<T> s)
{
    typedef typename sum_of<T>::type A;
    __shared__ four<A> meet[BLOCK];
    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t stride = s.heads * s.width, across = s.width / WIDTH;

    auto write = [&](int64_t row, int64_t head, int64_t c, int64_t length, const four<A> &sum) {
        for (int v = 0; v < WIDTH && c + v < s.feat; v++)
            s.y[row * s.y_row + head * s.y_head + c + v] =
                narrow<T>(Reduce::finish(sum.v[v], length, s.reduce));
    };
    /* Row k of the plan's order: its length, slots and how many of them. */
    int64_t row, length, first, pieces;
    auto look_up = [&](int64_t k) {
        int64_t begin;
        row = clamp(__ldg(s.plan.order + k), 0, s.a.rows - 1);
        first = clamp(__ldg(s.plan.first + k), 0, counts.segments);
        length = row_range(s.a, row, &begin);
        pieces = min(pieces_of(length, s.plan.segment), counts.segments - first);
    };

    wait_for_previous();
    const int64_t tasks = (counts.long_rows - counts.hubs) * stride / WIDTH;
    for (int64_t t = int64_t(blockIdx.x) * BLOCK + threadIdx.x; t < tasks;
         t += int64_t(gridDim.x) * BLOCK) {
        const int64_t k = t / (stride / WIDTH), at = t - k * (stride / WIDTH), head = at / across;
        const int64_t c = (at - head * across) * WIDTH;
        look_up(counts.hubs + k);
        four<A> sum;
        join_slots<A, Reduce>(&sum, s.partial + first * stride + at * WIDTH, s.feat - c, 0,
                              min(pieces, int64_t(CHAIN)), 1, stride);
        write(row, head, c, length, sum);
    }

    /* Hubs, the last blocks first, which had the fewest of the other rows. */
    int columns = 1;
    while (columns < WARP && columns < across) columns *= 2;
    const int stretches = BLOCK / columns, stretch = threadIdx.x / columns;
    for (int64_t t = gridDim.x - 1 - blockIdx.x; t < int64_t(counts.hubs) * s.heads;
         t += gridDim.x) {
        const int64_t head = t % s.heads;
        look_up(t / s.heads);
        for (int64_t tile = 0; tile < across; tile += columns) {
            const int64_t c = (tile + threadIdx.x % columns) * WIDTH;
            four<A> total, sum;
            for (int v = 0; v < WIDTH; v++) total.v[v] = Reduce::template start<A>();
            for (int64_t p = stretch; c < s.width && p < pieces; p += int64_t(CHAIN) * stretches) {
                join_slots<A, Reduce>(&sum, s.partial + first * stride + head * s.width + c,
                                      s.feat - c, p, min(pieces, p + int64_t(CHAIN) * stretches),
                                      stretches, stride);
                for (int v = 0; v < WIDTH; v++) total.v[v] = Reduce::join(total.v[v], sum.v[v]);
            }
            for (int half = stretches / 2; half; half /= 2) {
                meet[threadIdx.x] = total;
                __syncthreads();
                if (stretch < half)
                    for (int v = 0; v < WIDTH; v++)
                        total.v[v] =
                            Reduce::join(total.v[v], meet[threadIdx.x + half * columns].v[v]);
                __syncthreads();
            }
            if (stretch == 0 && c < s.width) write(row, head, c, length, total);
        }
    }
}

/* Launches `join` so that its blocks are ready when the last block of `segments` ends. */
template <class T, class Reduce>
static void launch_join(const fmm_exec *exec, const spmm_args<T> &s)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    const int64_t threads = s.plan.long_rows_max * int64_t(s.heads) * (s.width / WIDTH);
    config.gridDim = dim3((unsigned)smaller(ceil_div(threads, BLOCK), 1056));
    config.blockDim = dim3(BLOCK);
    config.stream = stream_of(exec);
    config.attrs = &early;
    config.numAttrs = starts_early(exec->index, spmm_join<T, Reduce>);
    cudaLaunchKernelEx(&config, spmm_join<T, Reduce>, s);
}

#endif
