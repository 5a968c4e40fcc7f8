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
 * shuffles inside warps, then warp after warp through shared memory. Its order is fixed. What the
 * last thread leaves open is carried to the block's next entries.
 *
 * A row that begins in one block and ends in another gets a sum from each of them. Block b leaves
 * two records, for the row that was open before it and for the row that is open behind it:
 *
 *     records      b.before  b.behind  (b + 1).before  (b + 1).behind ...      in the order of rows
 *
 * which are entries in the order of rows again, so that one block adds them up in the same way, in
 * a second launch. Every output has one writer, no atomics are needed, and bits repeat.
 *
 * Segmented scans: Blelloch, Heroux and Zagha, CMU-CS-93-173, 1993; on GPUs Sengupta, Harris, Zhang
 * and Owens, Graphics Hardware 2007; in SpMV by COO Bell and Garland, SC 2009. */
#pragma once

#include "cuda.cuh"

enum { EACH = 8, JOIN_BLOCK = 1024 };

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

/* What is open before each thread. `open` is what is open before the block, and then behind it; all
 * threads have the same. The caller has a barrier between two calls. */
template <int THREADS, class A>
static __device__ __forceinline__ run_of<A> open_before(run_of<A> left, run_of<A> *open)
{
    __shared__ run_of<A> warps[THREADS / WARP];
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
    for (int w = 0; w < THREADS / WARP; w++) {
        if (w == warp) before = behind(all, before);
        all = behind(all, warps[w]);
    }
    before = behind(*open, before);
    *open = behind(*open, all);
    return before;
}

/* Adds up the terms of a block's threads; close(run) is called for every row that ends. */
template <int THREADS, class A, class Close>
static __device__ __forceinline__ void add_runs(const int32_t *head, const A *term, run_of<A> *open,
                                                Close close)
{
    run_of<A> left = {A(0), 0};
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        left.sum = head[k] ? term[k] : left.sum + term[k];
        left.row = head[k] ? head[k] : left.row;
    }
    run_of<A> at = open_before<THREADS>(left, open);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (head[k]) {
            close(at);
            at = {A(0), head[k]};
        }
        at.sum += term[k];
    }
}

/* ---- records of blocks ---- */

/* Block b leaves records 2b and 2b + 1; row 0 and sum 0 stand for none. */
template <class T> struct join_args {
    spmv_args<T> s;
    run_of<typename sum_of<T>::type> *records;
    int64_t blocks;
};
static inline size_t records_bytes(int64_t blocks, bool wide)
{
    return (size_t)blocks * 2 * (wide ? sizeof(run_of<double>) : sizeof(run_of<float>));
}

/* What a row adds up to: into the sums of HYB, or finished. */
template <class T>
static __device__ __forceinline__ void write_row(const spmv_args<T> &s, int64_t i,
                                                 typename sum_of<T>::type sum)
{
    if (s.sums)
        s.sums[i] = sum;
    else
        finish(s, i, sum);
}

/* One block. A record continues the one before it if both are of one row. */
template <class T>
static __global__ void __launch_bounds__(JOIN_BLOCK)
    spmv_join(const __grid_constant__ join_args<T> m)
{
    typedef typename sum_of<T>::type A;
    const int64_t count = 2 * m.blocks;
    auto close = [&](const run_of<A> &r) {
        if (r.row) write_row(m.s, r.row - 1, r.sum);
    };
    run_of<A> open = {A(0), 0};
    let_next_start();
    wait_for_previous();
    for (int64_t from = 0; from < count; from += JOIN_BLOCK * EACH) {
        int32_t head[EACH];
        A term[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int64_t r = from + threadIdx.x * EACH + k;
            const run_of<A> now = r < count ? m.records[r] : run_of<A>{A(0), 0};
            head[k] = now.row && (r == 0 || m.records[r - 1].row != now.row) ? now.row : 0;
            term[k] = now.sum;
        }
        add_runs<JOIN_BLOCK>(head, term, &open, close);
        __syncthreads(); /* before the next round's scan writes where this one reads */
    }
    if (threadIdx.x == 0) close(open);
}
