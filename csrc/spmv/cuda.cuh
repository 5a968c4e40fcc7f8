/* What the kernels of SpMV share: the operands, batches of products, sums of any length.
 *
 * A product of entry and x costs a chain of two loads, the column and then x at that column, and
 * nothing but other products can fill the wait. So a thread takes entries in batches: GROUPS
 * groups, `step` entries apart, of PER neighbours each. It asks for all their columns and values,
 * then for all elements of x, and only then multiplies:
 *
 *     first             first + step      first + 2 step          3 groups of PER = 2
 *     | e0 e1 | ....... | e2 e3 | ....... | e4 e5 |
 *       columns and values: one access for each group, up to 16 bytes wide
 *       x: one access for each entry, all of them under way at once
 *
 *     PER = 1, step = lanes of a warp     CSR by rows
 *     PER = 1, step = threads of a block  long rows of CSR
 *     PER = 2, step = rows                ELL, a thread owns two rows
 *     PER = 1, step = rows of a slice     SELL
 *
 * An entry whose column lies outside the matrix, as padding does, has no product: it loads zeros
 * and adds 0, whatever x holds. */
#pragma once

#include "../cuda/reference.cuh"
#include "cuda.h"

/* ---- operands ---- */

template <class T> struct spmv_args {
    typedef typename sum_of<T>::type A;
    csr_view a;
    edge_view val;
    const int32_t *row; /* of COO */
    const T *x, *y_in;  /* y_in: NULL where beta is 0 */
    T *y;
    A *sums; /* HYB: what the COO part adds to every row */
    int64_t x_stride, in_stride, out_stride;
    uint32_t x_bytes; /* the same as x_stride, where can_gather holds */
    A alpha, beta;
};

template <class T> static spmv_args<T> spmv_view(const fmm_call *call)
{
    typedef typename sum_of<T>::type A;
    const fmm_spmv_operands *own = fmm_spmv_of(call);
    const fmm_dense *in = own->y_in;
    spmv_args<T> s = {};
    s.a = view_csr(call->a);
    s.val = view_edges(call->a, call->val);
    s.row = own->matrix->row;
    s.x = static_cast<const T *>(call->x->data);
    s.x_stride = call->x->row_stride;
    s.x_bytes = uint32_t(call->x->row_stride * int64_t(sizeof(T)));
    s.y_in = in ? static_cast<const T *>(in->data) : NULL;
    s.in_stride = in ? in->row_stride : 0;
    s.y = static_cast<T *>(call->y->data);
    s.out_stride = call->y->row_stride;
    if (!s.a.cols) s.a.nnz = 0, s.x = s.y; /* no entry is one, and loads of x need a place */
    s.alpha = A(own->alpha), s.beta = A(own->beta);
    return s;
}

/* The values of the padded formats, each at the place of its column. */
static inline edge_view view_padded(const fmm_spmv_matrix *m)
{
    return edge_view{NULL, m->padded_val->data, m->stored, 1, 0, (int)m->padded_val->dtype, false};
}

/* What the kernels of padded formats take. Of m they do not follow what lies on the host. */
template <class T> struct padded_args {
    spmv_args<T> s; /* val is that of the padding */
    fmm_spmv_matrix m;
};
template <class T> static padded_args<T> padded_view(const fmm_call *call)
{
    padded_args<T> e = {spmv_view<T>(call), *fmm_spmv_of(call)->matrix};
    /* Nothing of it is an entry then; of SELL the width is that of its slices. */
    if (!e.s.a.cols) e.m.stored = 0;
    if (!e.s.a.cols && e.m.format != FMM_FORMAT_SELL) e.m.width = 0;
    e.s.val = view_padded(&e.m);
    return e;
}

/* Stands for a type of values: they may have any dtype, lie apart or be ones. */
struct any_type {
};

/* Calls run(T(), V()) for the types of x and of values that lie one behind the other. Pairs that
 * models use have kernels of their own: one type, values of 16 bits with x of f32, and values of
 * f32 with x of 16 bits. The rest share the kernel of `any_type`. */
template <class Run> static void for_types(fmm_dtype x, const edge_view &val, Run run)
{
    const bool plain = val.data && !val.eid && (val.row_stride == 1 || val.nnz <= 1);
    for_dtype(x, [&](auto element) {
        typedef decltype(element) T;
        if (plain && val.dtype == dtype_of<T>()) return run(element, element);
        if constexpr (sizeof(T) == 2)
            if (plain && val.dtype == FMM_F32) return run(element, float());
        if constexpr (dtype_of<T>() == FMM_F32) {
            if (plain && val.dtype == FMM_F16) return run(element, __half());
            if (plain && val.dtype == FMM_BF16) return run(element, __nv_bfloat16());
        }
        run(element, any_type());
    });
}

/* y[i] before it is rounded, and after. */
template <class T, class A>
static __device__ __forceinline__ A scaled(const spmv_args<T> &s, int64_t i, A sum)
{
    A result = s.alpha * sum;
    if (s.y_in) result += s.beta * widen(s.y_in[i * s.in_stride]);
    return result;
}
template <class T>
static __device__ __forceinline__ void finish(const spmv_args<T> &s, int64_t i,
                                              typename sum_of<T>::type sum)
{
    s.y[i * s.out_stride] = narrow<T>(scaled(s, i, sum));
}

/* ---- batches ---- */

/* N neighbours in accesses of up to 16 bytes, from an address that allows them. The matrix is read
 * once, so it should not push x out of the caches; KEEP: but for lines that other lanes' loads, or
 * the lane's next one, bring from L1 again. */
template <class E, int N, bool KEEP>
static __device__ __forceinline__ void load_together(const E *from, E *to)
{
    enum { WIDE = sizeof(E) * N < 16 ? N : 16 / sizeof(E) };
#pragma unroll
    for (int i = 0; i < N; i += WIDE) {
        const auto *const at = reinterpret_cast<const PACK(E, WIDE) *>(from + i);
        const PACK(E, WIDE) pack = KEEP ? __ldg(at) : __ldcs(at);
        memcpy(to + i, &pack, sizeof pack);
    }
}

/* Places by 64 bits, and by 32, which take one multiply-add. */
template <class E, class At>
static __device__ __forceinline__ const E *place_of(const E *from, At at)
{
    if constexpr (sizeof(At) == 8)
        return from + at;
    else
        return (const E *)row_at((const char *)from, at, sizeof(E));
}

/* The values of a batch, of any dtype and anywhere: all are asked for before the first is used. */
template <int N, class A>
static __device__ __forceinline__ void any_values(const edge_view &v, int64_t *edge, A *w)
{
    WORD(A) raw[N];
#pragma unroll
    for (int k = 0; k < N; k++) w[k] = A(1);
    if (!v.data) return;
#pragma unroll
    for (int k = 0; k < N; k++) edge[k] = edge_of(v, edge[k]);
#pragma unroll
    for (int k = 0; k < N; k++) raw[k] = edge_bits<WORD(A)>(v, edge[k], 0);
#pragma unroll
    for (int k = 0; k < N; k++) w[k] = edge_number<A>(v, raw[k]);
}

/* The values of PER neighbours at each of GROUPS places, counted from `base`. */
template <class V, int GROUPS, int PER, bool KEEP = false, class At, class A>
static __device__ __forceinline__ void load_values(const edge_view &v, int64_t base, const At *at,
                                                   A *w)
{
    if constexpr (std::is_same<V, any_type>::value) {
        int64_t edge[GROUPS * PER];
#pragma unroll
        for (int k = 0; k < GROUPS * PER; k++) edge[k] = base + at[k / PER] + k % PER;
        any_values<GROUPS * PER>(v, edge, w);
    } else {
        V raw[GROUPS * PER];
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            load_together<V, PER, KEEP>(place_of(static_cast<const V *>(v.data) + base, at[g]),
                                        raw + g * PER);
#pragma unroll
        for (int k = 0; k < GROUPS * PER; k++) w[k] = A(widen(raw[k]));
    }
}

/* w times the elements j of x; 0 where j is -1, for which the first element is loaded. */
template <int N, class T, class A>
static __device__ __forceinline__ void times_x(const spmv_args<T> &s, const int32_t *j, const A *w,
                                               A *to)
{
    PACK(T, 1) x[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] = load<T, 1>((const T *)row_at((const char *)s.x, (uint32_t)max(j[k], 0), s.x_bytes));
#pragma unroll
    for (int k = 0; k < N; k++) {
        A element;
        unpack<T, 1>(x[k], &element);
        to[k] = j[k] >= 0 ? w[k] * element : A(0);
    }
}

/* The products of the groups at base + at[], of which the first `count` exist; there is at least
 * one. Others repeat the loads of one that does, because a load that always takes place need not be
 * waited for. */
template <class V, int GROUPS, int PER, bool KEEP = false, class T, class At>
static __device__ __forceinline__ void products(const spmv_args<T> &s, const int32_t *idx,
                                                int64_t base, const At *at, int count,
                                                typename spmv_args<T>::A *to)
{
    int32_t j[GROUPS * PER];
    typename spmv_args<T>::A w[GROUPS * PER];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        load_together<int32_t, PER, KEEP>(place_of(idx + base, at[g]), j + g * PER);
    load_values<V, GROUPS, PER, KEEP>(s.val, base, at, w);
#pragma unroll
    for (int k = 0; k < GROUPS * PER; k++)
        if (k / PER >= count || (uint32_t)j[k] >= (uint32_t)s.a.cols) j[k] = -1;
    times_x<GROUPS * PER>(s, j, w, to);
}

/* ---- sums ---- */

/* A sum of parts, each of which has at most CHAIN terms. */
template <class A> struct folded {
    A one, two;
    int count;
    __device__ __forceinline__ void start(void) { one = two = A(0), count = 0; }
    __device__ __forceinline__ void fold(A part)
    {
        one += part;
        if (++count < CHAIN) return;
        two += one;
        one = A(0), count = 0;
    }
    __device__ __forceinline__ A total(void) { return two + one; }
};

/* The sum of `lanes` neighbours of a warp, a power of two, which all of them get. */
template <class A> static __device__ __forceinline__ A lanes_sum(A sum, int lanes = WARP)
{
    for (int far = lanes / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
    return sum;
}

/* The sums of PER neighbouring columns of `count` entries each, at first, first + step, ...; FLY
 * steps at once. */
template <class V, int PER, int FLY, class T, class A>
static __device__ __forceinline__ void sum_steps(const spmv_args<T> &s, const int32_t *idx,
                                                 int64_t first, int64_t step, int64_t count, A *sum)
{
    folded<A> total[PER];
#pragma unroll
    for (int k = 0; k < PER; k++) total[k].start();
    for (; count > 0; count -= FLY, first += FLY * step) {
        A term[FLY * PER], part[PER] = {};
        int64_t at[FLY];
#pragma unroll
        for (int f = 0; f < FLY; f++) at[f] = first + (f < count ? f * step : 0);
        products<V, FLY, PER>(s, idx, 0, at, (int)min(count, int64_t(FLY)), term);
#pragma unroll
        for (int k = 0; k < FLY * PER; k++) part[k % PER] += term[k];
#pragma unroll
        for (int k = 0; k < PER; k++) total[k].fold(part[k]);
    }
#pragma unroll
    for (int k = 0; k < PER; k++) sum[k] = total[k].total();
}

/* The sum over LANES neighbouring threads, whole warps of a block, for the first of them; the
 * others get part of it. */
template <int LANES, class A> static __device__ __forceinline__ A block_sum(A sum)
{
    __shared__ A warps[BLOCK / WARP];
    sum = lanes_sum(sum);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x % LANES == 0)
        for (int w = 1; w < LANES / WARP; w++) sum += warps[threadIdx.x / WARP + w];
    __syncthreads(); /* before the next sum is written there */
    return sum;
}

static inline bool lies_at(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }
