/* Elements: how the four types are stored, what they are summed in, and how they move.
 *
 * An element is stored as T and summed as A, which is double for double and float for the rest.
 * Neighbouring elements move together, in packs:
 *
 *     memory     | T T T T T T T T |     one access of up to 16 bytes
 *                         |              load, load_if: through the read-only path
 *     registers  |   PACK(T, 8)    |     still packed, so that nobody waits for the load yet
 *                         |              unpack, where the numbers are needed
 *     registers  A A A A A A A A         sums
 *                         |              store: rounds once and writes past the caches
 *     memory     | T T T T T T T T |
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "../core/core.h"

/* No accumulator adds more terms than this in a row; the error bound rests on it. */
enum { CHAIN = 512 };

/* A loop whose length is a constant. Unrolled, its arrays may stay in registers. */
#define UNROLLED(k, n) _Pragma("unroll") for (int k = 0; k < (n); k++)
/* For lambdas, since whether one becomes a call is otherwise the compiler's choice. */
#define INLINED __attribute__((always_inline))

/* ---- types ---- */

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

/* Calls run(T()) for the type T that a dtype stands for. */
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

/* The same of operators that take f32 and f64 alone. */
template <class Run> static void for_wide_dtype(fmm_dtype dtype, Run run)
{
    if (dtype == FMM_F64)
        run(double());
    else
        run(float());
}

/* From the stored type to that of sums, which is exact. */
static __device__ __forceinline__ float widen(float v) { return v; }
static __device__ __forceinline__ double widen(double v) { return v; }
static __device__ __forceinline__ float widen(__half v) { return __half2float(v); }
static __device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

/* From the type of sums to the stored one, which rounds to the nearest, in ties to the even. */
template <class T> static __device__ __forceinline__ T narrow(typename sum_of<T>::type v);
template <> __device__ __forceinline__ float narrow<float>(float v) { return v; }
template <> __device__ __forceinline__ double narrow<double>(double v) { return v; }
template <> __device__ __forceinline__ __half narrow<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}

/* ---- packs ---- */

/* What N elements of so many bytes together are moved as. */
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

/* The read-only path is kept by L1, where the rows of hubs are found again and again. */
template <class T, int N> static __device__ __forceinline__ PACK(T, N) load(const T *from)
{
    return __ldg(reinterpret_cast<const PACK(T, N) *>(from));
}

/* A load that always loads: a row that is not there comes from a line of zeros, or from another
 * line. The compiler gives loads under a branch one temporary, and then each of them waits for the
 * one before it. */
static __device__ const uint4 no_row = {0, 0, 0, 0};
template <class T, int N>
static __device__ __forceinline__ PACK(T, N)
    load_if(bool there, const T *from, const uint4 *other = &no_row)
{
    return load<T, N>(there ? from : reinterpret_cast<const T *>(other));
}

/* Where row `index` begins. This takes one multiply-add. The compiler would compute a product of 64
 * bits, including the upper halves of its factors, which are 0. */
static __device__ __forceinline__ const char *row_at(const char *base, uint32_t index,
                                                     uint32_t bytes)
{
    uint64_t offset;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"(index), "r"(bytes));
    return base + offset;
}

/* Two elements of 16 bits. A bfloat16 is the upper half of a float, so its bits only move. */
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

/* The numbers in a pack. Whoever calls this waits for the load of the pack. */
template <class T, int N>
static __device__ __forceinline__ void unpack(PACK(T, N) packed, typename sum_of<T>::type *to)
{
    if constexpr (sizeof(T) == 2 && N > 1) {
        const unsigned *const pairs = reinterpret_cast<const unsigned *>(&packed);
        UNROLLED(i, N / 2) unpack2<T>(pairs[i], to + 2 * i);
    } else {
        const T *const v = reinterpret_cast<const T *>(&packed);
        UNROLLED(i, N) to[i] = widen(v[i]);
    }
}

/* The same, and never earlier than it stands. The compiler would move the unpacking of what a loop
 * does not change before the loop, right behind the load, and everything after it would wait. */
template <class T, int N>
static __device__ __forceinline__ void unpack_here(PACK(T, N) packed, typename sum_of<T>::type *to)
{
    if constexpr (sizeof(T) == 2 && N == 8)
        asm volatile("" : "+r"(packed.x), "+r"(packed.y), "+r"(packed.z), "+r"(packed.w));
    unpack<T, N>(packed, to);
}

/* Rounds N sums and writes them past the caches, since no kernel reads what it wrote. */
template <class T, int N>
static __device__ __forceinline__ void store(T *to, const typename sum_of<T>::type *sums)
{
    __align__(16) T v[N];
    UNROLLED(i, N) v[i] = narrow<T>(sums[i]);
    __stcs(reinterpret_cast<PACK(T, N) *>(to), *reinterpret_cast<const PACK(T, N) *>(v));
}

/* ---- slots: sums that are left in the workspace, and read once ---- */

/* Writes N sums to their slot. */
template <class A, int N> static __device__ __forceinline__ void keep(A *to, const A *sums)
{
    enum { EACH = sizeof(A) * N < 16 ? N : 16 / sizeof(A) };
#pragma unroll
    for (int i = 0; i < N; i += EACH) store<A, EACH>(to + i, sums + i);
}

/* Reads them back: the first `some` of N, then zeros, because nobody wrote what lies there. They
 * come from L2, since another multiprocessor may have written them while this kernel ran. */
template <class A, int N>
static __device__ __forceinline__ void fetch_kept(const A *from, int64_t some, A *sums)
{
    enum { EACH = sizeof(A) * N < 16 ? N : 16 / sizeof(A) };
    if (some < N) {
        UNROLLED(i, N) sums[i] = i < some ? __ldcg(from + i) : A(0);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i += EACH)
        unpack<A, EACH>(__ldcg(reinterpret_cast<const PACK(A, EACH) *>(from + i)), sums + i);
}
