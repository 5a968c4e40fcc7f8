/* What the plain forms of the operators share: elements of strided operands and long sums. They say
 * what an operator means, for any shape, stride and type, and are what the fast kernels are tested
 * against; nothing in them depends on a plan or on how warps work together.
 *
 * A thread, or a warp, owns an output. Its terms come in the order of storage and go through three
 * accumulators, so that the error stays that of short sums up to 512^3 terms:
 *
 *     terms  ->  part[0]  -- every 512 terms -->  part[1]  -- every 512 of those -->  part[2]
 */
#pragma once

#include "search.cuh"

enum { REFERENCE_BLOCKS = 1 << 16 }; /* at most, in a launch; kernels walk on from there */

/* A sum of many terms w * x. */
template <class A> struct long_sum {
    A part[3];
    int count[2];
    __device__ void start(void)
    {
        part[0] = part[1] = part[2] = A(0);
        count[0] = count[1] = 0;
    }
    __device__ void add(A w, A x)
    {
        part[0] += w * x;
        if (++count[0] < CHAIN) return;
        part[1] += part[0];
        part[0] = A(0), count[0] = 0;
        if (++count[1] < CHAIN) return;
        part[2] += part[1];
        part[1] = A(0), count[1] = 0;
    }
    __device__ A total(void) { return part[2] + (part[1] + part[0]); }
};

/* An element of a dense operand, whose type the kernel knows. */
template <class T>
static __device__ T *element(const fmm_dense &d, int64_t row, int64_t head, int64_t c)
{
    return static_cast<T *>(d.data) + row * d.row_stride + head * d.head_stride + c;
}
