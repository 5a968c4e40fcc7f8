/* What every CUDA file shares: the C core, elements in groups of up to 16 bytes, edge values of any
 * type, and how a launch enters and leaves a device.
 *
 * Arithmetic is f32, f64 for f64. Nothing here trusts the content of an array: an index that does
 * not fit is clamped or skipped, so that no kernel leaves its arguments, whatever they hold. */
#ifndef FMM_CUDA_COMMON_CUH
#define FMM_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../core/core.h"

enum { WARP = 32, BLOCK = 256, CHAIN = 512 /* terms one accumulator may add in a row */ };
static constexpr unsigned ALL = 0xffffffffu;

/* ---- elements: how a type is stored, and what it is summed in ---- */

template <class T> struct sum_of {
    typedef float type;
};
template <> struct sum_of<double> {
    typedef double type;
};

template <class T> static constexpr int dtype_of(void) { return FMM_F32; }
template <> constexpr int dtype_of<double>(void) { return FMM_F64; }
template <> constexpr int dtype_of<__half>(void) { return FMM_F16; }
template <> constexpr int dtype_of<__nv_bfloat16>(void) { return FMM_BF16; }

static __device__ __forceinline__ float widen(float v) { return v; }
static __device__ __forceinline__ double widen(double v) { return v; }
static __device__ __forceinline__ float widen(__half v) { return __half2float(v); }
static __device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T> static __device__ __forceinline__ T narrow(typename sum_of<T>::type v);
template <> __device__ __forceinline__ float narrow<float>(float v) { return v; }
template <> __device__ __forceinline__ double narrow<double>(double v) { return v; }
template <> __device__ __forceinline__ __half narrow<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}

/* N elements move as one access of up to 16 bytes, and stay packed until they are used. */
template <int BYTES> struct bits;
template <> struct bits<2> {
    typedef unsigned short type;
};
template <> struct bits<4> {
    typedef unsigned type;
};
template <> struct bits<8> {
    typedef uint2 type;
};
template <> struct bits<16> {
    typedef uint4 type;
};
#define PACK(T, N) typename bits<sizeof(T) * (N)>::type

/* Through the read-only path, which L1 keeps: hubs are read again and again. */
template <class T, int N> static __device__ __forceinline__ PACK(T, N) load(const T *from)
{
    return __ldg(reinterpret_cast<const PACK(T, N) *>(from));
}

/* A load that always loads: rows that are not there come from a line of zeros, or from another
 * line. Loads under a branch go through a temporary, and loads through one temporary wait for each
 * other.
 */
static __device__ const uint4 no_row = {0, 0, 0, 0};
template <class T, int N>
static __device__ __forceinline__ PACK(T, N)
    load_if(bool there, const T *from, const uint4 *other = &no_row)
{
    return load<T, N>(there ? from : reinterpret_cast<const T *>(other));
}

/* One multiply-add: of a product of 64 bits the compiler keeps the upper halves, which are 0. */
static __device__ __forceinline__ const char *row_at(const char *base, uint32_t index,
                                                     uint32_t bytes)
{
    uint64_t offset;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"(index), "r"(bytes));
    return base + offset;
}

template <class T> static __device__ __forceinline__ void unpack2(unsigned pair, float *to);
template <> __device__ __forceinline__ void unpack2<__half>(unsigned pair, float *to)
{
    const float2 wide = __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    to[0] = wide.x, to[1] = wide.y;
}
template <> __device__ __forceinline__ void unpack2<__nv_bfloat16>(unsigned pair, float *to)
{
    to[0] = __uint_as_float(pair << 16), to[1] = __uint_as_float(pair & 0xffff0000u);
}
template <class T, int N>
static __device__ __forceinline__ void unpack(PACK(T, N) packed, typename sum_of<T>::type *to)
{
    if constexpr (sizeof(T) == 2 && N > 1) {
        const unsigned *const pairs = reinterpret_cast<const unsigned *>(&packed);
#pragma unroll
        for (int i = 0; i < N / 2; i++) unpack2<T>(pairs[i], to + 2 * i);
    } else {
        const T *const v = reinterpret_cast<const T *>(&packed);
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = widen(v[i]);
    }
}

/* The same, never earlier than it stands. The compiler would unpack what a loop does not change
 * before the loop, right behind its load, where all that follows waits for it. */
template <class T, int N>
static __device__ __forceinline__ void unpack_here(PACK(T, N) packed, typename sum_of<T>::type *to)
{
    if constexpr (sizeof(T) == 2 && N == 8)
        asm volatile("" : "+r"(packed.x), "+r"(packed.y), "+r"(packed.z), "+r"(packed.w));
    unpack<T, N>(packed, to);
}

/* Rounds N sums and writes them past the caches: what a kernel writes it does not read again. */
template <class T, int N>
static __device__ __forceinline__ void store(T *to, const typename sum_of<T>::type *sums)
{
    __align__(16) T v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = narrow<T>(sums[i]);
    __stcs(reinterpret_cast<PACK(T, N) *>(to), *reinterpret_cast<const PACK(T, N) *>(v));
}

/* Sums on their way through the workspace: written by one kernel, read once by the next. */
template <class A, int N> static __device__ __forceinline__ void keep(A *to, const A *sums)
{
    enum { EACH = sizeof(A) * N < 16 ? N : 16 / sizeof(A) };
#pragma unroll
    for (int i = 0; i < N; i += EACH) store<A, EACH>(to + i, sums + i);
}
/* The first `some` of N, then zeros: what lies there nobody wrote. */
template <class A, int N>
static __device__ __forceinline__ void fetch_kept(const A *from, int64_t some, A *sums)
{
    enum { EACH = sizeof(A) * N < 16 ? N : 16 / sizeof(A) };
    if (some < N) {
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] = i < some ? __ldcs(from + i) : A(0);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i += EACH)
        unpack<A, EACH>(__ldcs(reinterpret_cast<const PACK(A, EACH) *>(from + i)), sums + i);
}

/* ---- the matrix and its values as kernels see them ---- */

struct csr_view {
    const int64_t *ptr;
    const int32_t *idx;
    int64_t rows, nnz;
    int32_t cols;
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

/* The values of edges, through the caller's edge order, of any type: read once for many columns, so
 * a uniform branch on the type costs less than kernels for every pair of types. */
struct edge_view {
    const void *eid;  /* NULL: entry p is edge p */
    const void *data; /* NULL: ones */
    int64_t nnz, row_stride, head_stride;
    int dtype;
    bool wide; /* eid is int64 */
};

static __device__ __forceinline__ int64_t edge_at(const edge_view &v, int64_t p)
{
    if (!v.eid) return p;
    return v.wide ? __ldg(static_cast<const int64_t *>(v.eid) + p)
                  : __ldg(static_cast<const int32_t *>(v.eid) + p);
}

/* In two steps, for edges that are asked for early: what eid holds, if that is one word, and the
 * edge. */
static __device__ __forceinline__ uint32_t edge_asked(const edge_view &v, int64_t p)
{
    return v.eid && !v.wide ? __ldg(static_cast<const uint32_t *>(v.eid) + p) : 0;
}
static __device__ __forceinline__ int64_t edge_said(const edge_view &v, int64_t p, uint32_t asked)
{
    return v.eid && !v.wide ? int64_t(int32_t(asked)) : edge_at(v, p);
}

/* The same, to read from: inside, whatever eid holds. */
static __device__ __forceinline__ int64_t edge_of(const edge_view &v, int64_t p)
{
    return v.eid ? clamp(edge_at(v, p), 0, v.nnz - 1) : p;
}

/* The same, to write to: a forged edge must not overwrite another's. */
static __device__ __forceinline__ bool is_edge(const edge_view &v, int64_t edge)
{
    return uint64_t(edge) < uint64_t(v.nnz);
}

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

/* The same in two steps, for values that are asked for early: as they lie in memory, and as
 * numbers. A warp issues in order, so a look at a value waits for its load, and all that follows
 * waits too.
 */
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

static inline csr_view view_csr(const fmm_csr *a)
{
    return csr_view{a->ptr, a->idx, a->rows, a->nnz, (int32_t)a->cols};
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

/* ---- sizes ---- */

static __host__ __device__ inline int64_t ceil_div(int64_t n, int64_t d)
{
    return n / d + (n % d != 0);
}
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Blocks for `count` threads' worth of work; kernels loop, so the limit of a grid only bounds it.
 */
static inline unsigned blocks_for(int64_t count)
{
    return (unsigned)smaller(ceil_div(count, BLOCK), INT32_MAX);
}

/* ---- launches ---- */

/* This library's CUDA runtime has a current device of its own, which nobody else sets: each call
 * makes the operand's device current, if it is not, and puts back what was. */
static inline fmm_status cuda_enter(const char *op, const fmm_exec *exec, int *before)
{
    cudaError_t error = cudaGetDevice(before);
    if (error == cudaSuccess && *before != exec->index) error = cudaSetDevice(exec->index);
    REQUIRE(error == cudaSuccess, FMM_DEVICE_ERROR,
            "%s: CUDA device %d: %s (this build needs an NVIDIA driver of its toolkit's release or "
            "newer)",
            op, exec->index, cudaGetErrorString(error));
    return FMM_OK;
}

static inline fmm_status cuda_leave(const char *op, const fmm_exec *exec, int before)
{
    const cudaError_t error = cudaGetLastError();
    if (before != exec->index) cudaSetDevice(before);
    REQUIRE(error == cudaSuccess, FMM_DEVICE_ERROR, "%s: launch on CUDA device %d: %s", op,
            exec->index, cudaGetErrorString(error));
    return FMM_OK;
}

/* From 9.0 on a kernel may start while the one before it drains. The earlier one says when, the
 * later one waits before it reads what the earlier wrote; older cards run them one after the other.
 */
static __device__ __forceinline__ void let_next_start(void)
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}
static __device__ __forceinline__ void wait_for_previous(void)
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}
/* The card and the code: of kernels compiled for an older architecture and brought here as PTX the
 * wait is absent, so that they must come one after the other. All kernels are compiled for the same
 * architectures. */
template <class Kernel> static inline bool starts_early(int device, Kernel kernel)
{
    enum { CARDS = 64 };
    static signed char known[CARDS]; /* of each card, whose code may differ */
    if (device >= CARDS) return false;
    int says = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
    if (!says) {
        int major = 0;
        cudaFuncAttributes has = {};
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        if (cudaFuncGetAttributes(&has, kernel) != cudaSuccess) return false;
        says = major >= 9 && has.ptxVersion >= 90 ? 1 : -1;
        __atomic_store_n(&known[device], (signed char)says, __ATOMIC_RELAXED);
    }
    return says > 0;
}

/* A launch that may begin while the kernel before it drains: it calls wait_for_previous. */
template <class Kernel, class Args>
static void launch_early(int device, cudaStream_t stream, Kernel kernel, dim3 grid,
                         const Args &args, int threads = BLOCK)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = starts_early(device, kernel);
    cudaLaunchKernelEx(&config, kernel, args);
}

static inline cudaStream_t stream_of(const fmm_exec *exec)
{
    return static_cast<cudaStream_t>(exec->stream);
}

#endif
