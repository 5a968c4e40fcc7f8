/* What SpMM `segments` adds up and how: its arguments, the reductions, and the values of entries as
 * they are fetched.
 *
 *     y[i,h,:] = finish( add over p ( weight(val[p,h]) , x[idx[p],h,:] ) )
 *
 * Two reductions are compiled. Sums and means add products; a mean is divided once at the end.
 * Maxima and minima compare products, and a minimum is the maximum of negated terms. */
#pragma once

#include "../cuda/join.cuh"

/* The output and the slots of its long rows. Operators whose pieces meet in their own kernel
 * (cuda_meet.cuh) take the same, but for `join`. */
template <class T> struct join_args : dealt {
    T *out;
    typename sum_of<T>::type *partial; /* [segments][heads][width], width: feat in whole vectors */
    int64_t out_row, out_head, feat_out, width;
    join_shape join; /* of launch_join */
    int reduce;
};

template <class T> struct spmm_args : join_args<T> {
    const T *x;
    uint32_t *tickets; /* [tiles of columns][heads][segments] */
    int64_t x_head;
    uint32_t x_row;    /* in bytes */
    int32_t head_feat; /* of HEADS */
    uint32_t val_row;  /* of HEADS, in bytes */
};

/* Lines of -infinity in each type. */
template <class T> struct least_of;
#define LEAST_OF(T, ...)                                                                           \
    static __device__ const uint4 least_##T = {__VA_ARGS__};                                       \
    template <> struct least_of<T> {                                                               \
        static __device__ __forceinline__ const uint4 *line(void) { return &least_##T; }           \
    };
LEAST_OF(float, 0xff800000, 0xff800000, 0xff800000, 0xff800000)
LEAST_OF(double, 0, 0xfff00000, 0, 0xfff00000)
LEAST_OF(__half, 0xfc00fc00, 0xfc00fc00, 0xfc00fc00, 0xfc00fc00)
LEAST_OF(__nv_bfloat16, 0xff80ff80, 0xff80ff80, 0xff80ff80, 0xff80ff80)
#undef LEAST_OF

/* How terms meet: `add` takes a term, `join` another sum of the same row. An entry that is not
 * there (past the row's end, or with a column outside the matrix) counts as absent() times the line
 * blank(), which changes nothing. So no lane branches on whether its entry is there. */
struct reduce_sum {
    template <class A> static __device__ A start(void) { return A(0); }
    template <class A> static __device__ A absent(void) { return A(0); }
    template <class T> static __device__ const uint4 *blank(void) { return &no_row; }
    template <class A> static __device__ A weight(A w, int) { return w; }
    static __device__ float add(float sum, float w, float x) { return fmaf(w, x, sum); }
    static __device__ double add(double sum, double w, double x) { return fma(w, x, sum); }
    template <class A> static __device__ A join(A a, A b) { return a + b; }
    template <class A> static __device__ A finish(A sum, int64_t terms, int reduce)
    {
        return reduce == FMM_MEAN && terms ? sum / A(terms) : sum;
    }
};
struct reduce_extreme {
    template <class A> static __device__ A start(void) { return -A(INFINITY); }
    template <class A> static __device__ A absent(void) { return A(1); }
    template <class T> static __device__ const uint4 *blank(void) { return least_of<T>::line(); }
    template <class A> static __device__ A weight(A w, int reduce)
    {
        return reduce == FMM_MIN ? -w : w;
    }
    /* NaN, once there, stays. From 8.0 on one instruction does it. */
    static __device__ double join(double a, double b) { return b > a || b != b ? b : a; }
    static __device__ float join(float a, float b)
    {
#if __CUDA_ARCH__ >= 800
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
        return a;
#else
        return b > a || b != b ? b : a;
#endif
    }
    template <class A> static __device__ A add(A most, A w, A x) { return join(most, w * x); }
    template <class A> static __device__ A finish(A most, int64_t terms, int reduce)
    {
        return !terms ? A(0) : reduce == FMM_MIN ? -most : most;
    }
};

/* What the kernel is compiled for:
 *   ONES   There are no values.
 *   PLAIN  Values are [nnz], of type T, in the matrix's own order.
 *   HEADS  Values are [nnz, heads], of type T, in that order, and heads lie side by side. They are
 *          columns of one row then, and each lane reads the values of its own head.
 *   ANY    Values are of any type and stand in the caller's order. A group takes a single head. */
enum values { ONES, PLAIN, HEADS, ANY };

/* The value of entry p as it lies in memory, and later as a number (edge_bits and edge_number). */
template <class T, int VALUES, class Word>
static __device__ __forceinline__ Word value_at(const spmm_args<T> &s, int64_t p, int64_t head)
{
    if (VALUES == ONES || VALUES == HEADS) return 0;
    if (VALUES == PLAIN) return word_at<WORD(T)>(s.val.data, p);
    if (!s.val.data) return 0;
    return edge_bits<Word>(s.val, edge_of(s.val, p), head);
}
template <class T, int VALUES, class Word>
static __device__ __forceinline__ typename sum_of<T>::type value_of(const spmm_args<T> &s,
                                                                    Word bits)
{
    typedef typename sum_of<T>::type A;
    if (VALUES == ONES || VALUES == HEADS || (VALUES == ANY && !s.val.data)) return A(1);
    if (VALUES == PLAIN) {
        const auto own = static_cast<WORD(T)>(bits);
        return widen(*reinterpret_cast<const T *>(&own));
    }
    return edge_number<A>(s.val, bits);
}
