/* What the plain forms of the operators share: strided views, long sums, the row of an entry. */
#ifndef FMM_CUDA_REFERENCE_CUH
#define FMM_CUDA_REFERENCE_CUH

#include "common.cuh"

enum { REFERENCE_BLOCKS = 1 << 16 };

/* A sum of many terms, none of whose accumulators adds more than CHAIN in a row. */
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

struct dense_view {
    void *data;
    int64_t heads, feat, row_stride, head_stride;
};
static dense_view view_dense(const fmm_dense *d)
{
    return dense_view{d->data, d->heads, d->feat, d->row_stride, d->head_stride};
}
template <class T>
static __device__ T *element(const dense_view &d, int64_t row, int64_t head, int64_t c)
{
    return static_cast<T *>(d.data) + row * d.row_stride + head * d.head_stride + c;
}

/* The row of entry p: the last whose first entry is not past it. */
static __device__ int64_t row_of(const csr_view &a, int64_t p)
{
    int64_t low = 0, high = a.rows - 1;
    while (low < high) {
        const int64_t middle = high - (high - low) / 2;
        if (a.ptr[middle] <= p)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Calls run(T()) for the type of a dense operand. */
template <class Run> static void for_dtype(fmm_dtype dtype, Run run)
{
    switch (dtype) {
    case FMM_F32:
        return run(float());
    case FMM_F64:
        return run(double());
    case FMM_F16:
        return run(__half());
    default:
        return run(__nv_bfloat16());
    }
}

#endif
