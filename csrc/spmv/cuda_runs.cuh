/* Runs: rows of entries that lie in the order of rows, added up by threads that own equally many.
 *
 * An entry that is the first of its row is a head and bears the row's number, plus one; the others
 * bear 0. A thread owns EACH neighbouring entries. Where it meets a head, the row before has ended:
 *
 *     entries      3 . . . | . . 4 .  | 5 . 6 .  | . . . .      a head, and what goes on
 *     thread       0       | 1        | 2        | 3
 *     is left      (3, 4)  | (4, 2)   | (6, 2)   | (., 4)       row and terms of what is open
 *     finds open             (3, 4)   | (4, 2)   | (6, 2)       by a scan over the threads
 *     ends                   row 3    | 4, 5     |
 *
 * The scan adds what is left of thread after thread, and begins anew where there was a head:
 * shuffles inside warps, then warp after warp through shared memory. Its order is fixed.
 *
 * Segmented scans: Blelloch, Heroux and Zagha, CMU-CS-93-173, 1993; on GPUs Sengupta, Harris, Zhang
 * and Owens, Graphics Hardware 2007; in SpMV by COO Bell and Garland, SC 2009. */
#pragma once

#include "cuda_pieces.cuh"

/* A row's sum as far as it has come; row is its number plus one, or 0 for what goes on. */
template <class A> struct run_of {
    A sum;
    int32_t row;
};

/* What is open behind a and then b. */
template <class A>
static __device__ __forceinline__ run_of<A> behind(const run_of<A> &a, const run_of<A> &b)
{
    return b.row ? b : run_of<A>{a.sum + b.sum, a.row};
}

/* What is open before each thread, and, to all threads, behind the last one. */
template <class A>
static __device__ __forceinline__ run_of<A> open_before(run_of<A> left, run_of<A> *at_end)
{
    __shared__ run_of<A> warps[BLOCK / WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int far = 1; far < WARP; far *= 2) {
        const run_of<A> other = {__shfl_up_sync(ALL, left.sum, far),
                                 __shfl_up_sync(ALL, left.row, far)};
        if (lane >= far) left = behind(other, left);
    }
    if (lane == WARP - 1) warps[warp] = left;
    run_of<A> before = {__shfl_up_sync(ALL, left.sum, 1), __shfl_up_sync(ALL, left.row, 1)};
    if (lane == 0) before = {A(0), 0};
    __syncthreads();
    run_of<A> all = {A(0), 0};
    for (int w = 0; w < BLOCK / WARP; w++) {
        if (w == warp) before = behind(all, before);
        all = behind(all, warps[w]);
    }
    *at_end = all;
    return before;
}

/* Adds up the terms of a block's threads; close(r, sum) is called once for every row r with terms.
 */
template <class A, class Close>
static __device__ __forceinline__ void add_runs(const int32_t *head, const A *term, Close close)
{
    run_of<A> left = {A(0), 0}, at_end;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        left.sum = head[k] ? term[k] : left.sum + term[k];
        left.row = head[k] ? head[k] : left.row;
    }
    run_of<A> at = open_before(left, &at_end);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (head[k]) {
            if (at.row) close(at.row - 1, at.sum);
            at = {A(0), head[k]};
        }
        at.sum += term[k];
    }
    if (threadIdx.x == 0 && at_end.row) close(at_end.row - 1, at_end.sum);
}
