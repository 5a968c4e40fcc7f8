/* The join, the second kernel of SpMM `segments`: it adds the slots of each long row, into which
 * the first kernel wrote the sums of the row's pieces.
 *
 * A thread owns four neighbouring columns (WIDTH). A row of up to HUB_PIECES pieces has one thread
 * for each four columns, which adds the slots from the first to the last. A hub, which has more
 * pieces, has a block; its threads divide the slots and meet in shared memory:
 *
 *     long row    slot 0 + slot 1 + slot 2 + ...              by one thread
 *
 *     hub         stretch 0: slots 0, n, 2n, ...   --+
 *                 stretch 1: slots 1, n + 1, ...   --+--+     n stretches of threads, which add
 *                 stretch 2: slots 2, n + 2, ...   --+  |     to each other in a tree of fixed
 *                 stretch 3: slots 3, n + 3, ...   --+--+     shape
 *
 * Which thread adds what follows from the matrix alone, so the bits are the same every time. No
 * accumulator takes more than CHAIN slots in a row. */
#pragma once

#include "../cuda/device.h"
#include "cuda_terms.cuh"

/* The columns of a thread. */
enum { WIDTH = 4 };

template <class A> struct four {
    A v[WIDTH];
};

/* Adds the slots begin, begin + step, ... before `end`. The first `some` of their columns are
 * there. */
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
        UNROLLED(v, WIDTH) sum->v[v] = Reduce::join(sum->v[v], slot.v[v]);
    }
}

template <class T, class Reduce>
static __global__ void __launch_bounds__(BLOCK, 4) spmm_join(const __grid_constant__ join_args<T> s)
{
    typedef typename sum_of<T>::type A;
    __shared__ four<A> meet[BLOCK];
    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t stride = s.heads * s.width, across = s.width / WIDTH;

    auto write = [&](int64_t row, int64_t head, int64_t c, int64_t length, const four<A> &sum) {
        for (int v = 0; v < WIDTH && c + v < s.feat_out; v++)
            s.out[row * s.out_row + head * s.out_head + c + v] =
                narrow<T>(Reduce::finish(sum.v[v], length, s.reduce));
    };
    /* Row k of the plan's order: how long it is, where its slots begin and how many it has. */
    int64_t row, length, first, pieces;
    auto find_slots = [&](int64_t k) {
        int64_t begin;
        row = clamp(__ldg(s.plan.order + k), 0, s.a.rows - 1);
        first = clamp(__ldg(s.plan.first + k), 0, counts.segments);
        length = row_range(s.a, row, &begin);
        pieces = min(pieces_of(length, s.plan.segment), counts.segments - first);
    };

    /* Long rows that are no hubs. */
    wait_for_previous();
    const int64_t tasks = (counts.long_rows - counts.hubs) * stride / WIDTH;
    for (int64_t t = this_thread(); t < tasks; t += all_threads()) {
        const int64_t k = t / (stride / WIDTH), at = t - k * (stride / WIDTH), head = at / across;
        const int64_t c = (at - head * across) * WIDTH;
        find_slots(counts.hubs + k);
        four<A> sum;
        join_slots<A, Reduce>(&sum, s.partial + first * stride + at * WIDTH, s.feat_out - c, 0,
                              min(pieces, int64_t(CHAIN)), 1, stride);
        write(row, head, c, length, sum);
    }

    /* Hubs. The last blocks begin, since they had the fewest of the other rows. Neighbouring
     * threads take neighbouring columns, up to a warp of them, and the rest are stretches. */
    int columns = 1;
    while (columns < WARP && columns < across) columns *= 2;
    const int stretches = BLOCK / columns, stretch = threadIdx.x / columns;
    for (int64_t t = gridDim.x - 1 - blockIdx.x; t < int64_t(counts.hubs) * s.heads;
         t += gridDim.x) {
        const int64_t head = t % s.heads;
        find_slots(t / s.heads);
        for (int64_t tile = 0; tile < across; tile += columns) {
            const int64_t c = (tile + threadIdx.x % columns) * WIDTH;
            four<A> total, sum;
            for (int v = 0; v < WIDTH; v++) total.v[v] = Reduce::template start<A>();
            for (int64_t p = stretch; c < s.width && p < pieces; p += int64_t(CHAIN) * stretches) {
                join_slots<A, Reduce>(
                    &sum, s.partial + first * stride + head * s.width + c, s.feat_out - c, p,
                    min(pieces, p + int64_t(CHAIN) * stretches), stretches, stride);
                for (int v = 0; v < WIDTH; v++) total.v[v] = Reduce::join(total.v[v], sum.v[v]);
            }
            /* The tree: each time the upper half of the stretches hands its sums to the lower. */
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
static void launch_join(const fmm_exec *exec, const join_args<T> &s)
{
    /* Twice what a card holds at once, of which each multiprocessor holds four (spmm_join). */
    const int64_t most = int64_t(8) * fmm_cuda_processors(exec->index);
    const int64_t threads = s.plan.long_rows_max * int64_t(s.heads) * (s.width / WIDTH);
    const dim3 grid((unsigned)smaller(ceil_div(threads, BLOCK), most));
    launch_early(exec->index, stream_of(exec), spmm_join<T, Reduce>, grid, s);
}
