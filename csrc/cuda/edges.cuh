/* The matrix, the values of its entries and dense operands, as kernels see them.
 *
 * An entry p of the matrix is one edge of the caller's graph. Its column stands in idx[p]. Its
 * value stands at the edge's place in the caller's order, which eid[p] names:
 *
 *     row i      ptr[i] .. ptr[i + 1]
 *                  |
 *     entry p    idx[p] = column           eid[p] = edge, or p itself without an eid
 *                                            |
 *     edge       val[edge, head], of any dtype; 1 without values
 *
 * Nothing here trusts what an array holds. A range is clamped, and so is an edge to read from; an
 * edge to write to that does not exist is skipped. No kernel leaves its arguments, whatever they
 * hold. */
#pragma once

#include "elements.cuh"

struct csr_view {
    const int64_t *ptr;
    const int32_t *idx;
    int64_t rows, nnz;
    int32_t cols;
};

/* A dense operand of elements T, with strides in elements; one that is absent has no data. */
template <class T> struct dense_view {
    T *data;
    int64_t row, head;
    __device__ __forceinline__ T *at(int64_t i, int64_t h, int64_t c = 0) const
    {
        return data + i * row + h * head + c;
    }
};

static __device__ __forceinline__ int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* Entries of a row: [begin, begin + the result), inside [0, nnz] for any ptr. */
static __device__ __forceinline__ int64_t row_range(const csr_view &a, int64_t row, int64_t *begin)
{
    *begin = clamp(__ldg(a.ptr + row), 0, a.nnz);
    const int64_t end = clamp(__ldg(a.ptr + row + 1), 0, a.nnz);
    return end > *begin ? end - *begin : 0;
}

/* The values of edges. A kernel branches on their dtype: a value is read once for many columns, so
 * a branch that all lanes take alike costs less than a kernel for every pair of types. */
struct edge_view {
    const void *eid;  /* NULL: entry p is edge p */
    const void *data; /* NULL: ones */
    int64_t nnz, row_stride, head_stride;
    int dtype;
    bool wide; /* eid is int64 */
};

/* ---- the edge of an entry ---- */

static __device__ __forceinline__ int64_t edge_at(const edge_view &v, int64_t p)
{
    if (!v.eid) return p;
    return v.wide ? __ldg(static_cast<const int64_t *>(v.eid) + p)
                  : __ldg(static_cast<const int32_t *>(v.eid) + p);
}

/* The same in two steps, for edges that are asked for early. The first asks for what eid holds, if
 * that is one word; the second makes it an edge, and waits for it. */
static __device__ __forceinline__ uint32_t edge_asked(const edge_view &v, int64_t p)
{
    return v.eid && !v.wide ? __ldg(static_cast<const uint32_t *>(v.eid) + p) : 0;
}
static __device__ __forceinline__ int64_t edge_said(const edge_view &v, int64_t p, uint32_t asked)
{
    return v.eid && !v.wide ? int64_t(int32_t(asked)) : edge_at(v, p);
}

/* An edge to read from: it exists, whatever eid holds. */
static __device__ __forceinline__ int64_t edge_of(const edge_view &v, int64_t p)
{
    return v.eid ? clamp(edge_at(v, p), 0, v.nnz - 1) : p;
}

/* Whether an edge can be written to: a forged one must not overwrite another's value. */
static __device__ __forceinline__ bool is_edge(const edge_view &v, int64_t edge)
{
    return uint64_t(edge) < uint64_t(v.nnz);
}

/* ---- the value of an edge ---- */

template <class A>
static __device__ __forceinline__ A edge_value(const edge_view &v, int64_t edge, int64_t head)
{
    if (!v.data) return A(1);
    const int64_t at = edge * v.row_stride + head * v.head_stride;
    switch (v.dtype) {
    case FMM_F32:
        return A(__ldg(static_cast<const float *>(v.data) + at));
    case FMM_F64:
        return A(__ldg(static_cast<const double *>(v.data) + at));
    case FMM_F16:
        return A(widen(__ldg(static_cast<const __half *>(v.data) + at)));
    default:
        return A(widen(__ldg(static_cast<const __nv_bfloat16 *>(v.data) + at)));
    }
}

/* The same in two steps, for values that are asked for early: edge_bits asks for a value as it lies
 * in memory, edge_number makes it a number. A warp issues its instructions in order. So the second
 * step waits for the load, and everything behind it waits too. */
template <int BYTES> struct word {
    typedef unsigned type;
};
template <> struct word<2> {
    typedef unsigned short type;
};
template <> struct word<8> {
    typedef unsigned long long type;
};
#define WORD(T) typename word<sizeof(T)>::type
template <class Word> static __device__ __forceinline__ Word word_at(const void *data, int64_t at)
{
    return __ldg(static_cast<const Word *>(data) + at);
}
template <class Word>
static __device__ __forceinline__ Word edge_bits(const edge_view &v, int64_t edge, int64_t head)
{
    const int64_t at = edge * v.row_stride + head * v.head_stride;
    if (v.dtype == FMM_F32) return word_at<unsigned>(v.data, at);
    if (v.dtype != FMM_F64) return word_at<unsigned short>(v.data, at);
    const auto wide = word_at<unsigned long long>(v.data, at);
    if (sizeof(Word) == sizeof(wide)) return Word(wide);
    return Word(__float_as_uint(float(__longlong_as_double(int64_t(wide)))));
}
template <class A, class Word>
static __device__ __forceinline__ A edge_number(const edge_view &v, Word bits)
{
    if (v.dtype == FMM_F16) return A(__half2float(__ushort_as_half((unsigned short)bits)));
    if (v.dtype == FMM_BF16) return A(__uint_as_float(unsigned(bits) << 16));
    if constexpr (sizeof(A) == sizeof(double))
        if (v.dtype == FMM_F64) return __longlong_as_double(int64_t(bits));
    return A(__uint_as_float(unsigned(bits)));
}

/* ---- views of the caller's operands, made on the host ---- */

static inline csr_view view_csr(const fmm_csr *a)
{
    return csr_view{a->ptr, a->idx, a->rows, a->nnz, (int32_t)a->cols};
}

/* d may be NULL, where there is no operand. A stride that no second head uses may be any number; 0
 * keeps addresses inside. */
template <class T> static inline dense_view<T> view_dense(const fmm_dense *d)
{
    if (!d) return dense_view<T>{};
    return dense_view<T>{static_cast<T *>(d->data), d->row_stride,
                         d->heads > 1 ? d->head_stride : 0};
}

static inline edge_view view_edges(const fmm_csr *a, const fmm_dense *val)
{
    const bool some = val && val->data;
    return edge_view{a->eid,
                     some ? val->data : NULL,
                     a->nnz,
                     some ? val->row_stride : 0,
                     some && val->heads > 1 ? val->head_stride : 0,
                     some ? (int)val->dtype : (int)FMM_F32,
                     a->nnz > INT32_MAX};
}
