/* The join of operators whose results are sums or extremes (cuda_terms.cuh): it adds the slots of
 * each long row, into which a kernel before wrote the sums of the row's pieces.
 *
 *     slot        [heads][width]    width: the columns of a head in whole QUADs
 *     a thread    one QUAD of a head; cuda/join.cuh says which, and how threads meet */
#pragma once

#include "../cuda/device.h"
#include "../cuda/join.cuh"
#include "cuda_terms.cuh"

/* The sums of a QUAD. */
template <class A, class Reduce> struct quad_sums {
    A v[QUAD];
    __device__ __forceinline__ void start(void)
    {
        for (int i = 0; i < QUAD; i++) v[i] = Reduce::template start<A>();
    }
    __device__ __forceinline__ void join(const quad_sums &other)
    {
        UNROLLED(i, QUAD) v[i] = Reduce::join(v[i], other.v[i]);
    }
};

/* The kernel, over the element type of the results. */
template <class T, class Reduce>
static __global__ void __launch_bounds__(BLOCK, 4)
    reduce_join(const __grid_constant__ join_args<T> s)
{
    typedef typename sum_of<T>::type A;
    typedef quad_sums<A, Reduce> sums;
    const int64_t stride = s.heads * s.width; /* from a slot to the next */
    /* What was put aside as sums or extremes meets in the same way as its terms did. */
    auto add = [&](sums *to, const joined_row &r, int64_t head, int64_t c, int begin, int end,
                   int step) {
        const A *const slots = s.partial + r.first * stride + head * s.width + c;
        to->start();
#pragma unroll 4
        for (int p = begin; p < end; p += step) {
            sums slot;
            fetch_kept<A, QUAD>(slots + p * stride, s.feat_out - c, slot.v);
            to->join(slot);
        }
    };
    /* Padding of the last QUAD is not written. */
    auto write = [&](const joined_row &r, int64_t head, int64_t c, const sums &total) {
        for (int i = 0; i < QUAD && c + i < s.feat_out; i++)
            s.out[r.row * s.out_row + head * s.out_head + c + i] =
                narrow<T>(Reduce::finish(total.v[i], r.length, s.reduce));
    };
    join_rows<BLOCK, sums>(s, add, write);
}

/* Launches it so that its blocks are ready when the last block of the kernel before ends. */
template <class T, class Reduce> static void launch_join(const fmm_exec *exec, join_args<T> s)
{
    /* Twice what a card holds at once, of which each multiprocessor holds four. */
    const int64_t most = int64_t(8) * fmm_cuda_processors(exec->index), across = s.width / QUAD;
    const int64_t threads = s.plan.long_rows_max * int64_t(s.heads) * across;
    s.join = shape_of_join(s.heads, across, across);
    const dim3 grid((unsigned)smaller(ceil_div(threads, BLOCK), most));
    launch_early(exec->index, stream_of(exec), reduce_join<T, Reduce>, grid, s);
}
