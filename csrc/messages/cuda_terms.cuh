/* The operands of messages as the `segments` kernels see them, and what a message is made of.
 *
 *     feature k of an entry      axes   k0 | k1 | k2 | k3        k in the order of storage
 *     an operand that has k1, k3              x         x        step 0 along the others
 *
 * A lane owns a feature, or a pack of neighbours along the last axis, for many entries. So where
 * its feature lies in a row of an operand is found once; to an entry belongs a row alone. That is
 * the row i, the column j or the edge e of the entry, whichever the operand belongs to. */
#pragma once

#include "../spmm/cuda_join.cuh"
#include "cuda.h"

enum { LHS, RHS, MASK_LHS, MASK_RHS, MASK_Y, SIDES };

/* Codes beyond fmm_combine: sides were exchanged, so that rhs is the one of one number a pack. */
enum { SUB_FROM = FMM_COMBINE_ONE + 1, DIV_INTO };

struct side {
    const char *data; /* NULL: absent */
    uint32_t row;     /* bytes from row to row */
    int at;           /* fmm_at */
    int32_t step[FMM_AXES];
};

/* The numbers of entries that kernels over rows read: of[p], or p itself. */
struct index_view {
    const int32_t *of;
    int32_t pass, limit; /* without `of`: p & pass; and what is outside [0, limit) is forged */
};

template <class T> struct messages_args : join_args<T> {
    side of[SIDES];
    index_view by[2]; /* columns and edges, or the one that a copy needs */
    int32_t axis[FMM_AXES], kept[FMM_AXES], lost[FMM_AXES]; /* sizes; kept, lost: 1 elsewhere */
    int32_t features, sums; /* of an entry: kept ones, and the terms of each */
    int op, mask_op, lanes; /* lanes: that share a sum of `sums` terms */
    bool rows, cols;        /* whether an operand belongs to them */
};

/* Features are numbered with the last axis fastest, as they are stored. Where feature k of the axes
 * `axis` lies in a row of an operand, in bytes. */
template <class T>
static __device__ __forceinline__ int64_t offset_of(const side &s, const int32_t *axis, int32_t k)
{
    int64_t sum = 0;
#pragma unroll
    for (int d = FMM_AXES - 1; d >= 0; d--) {
        const int32_t left = k / axis[d];
        sum += int64_t(k - left * axis[d]) * s.step[d];
        k = left;
    }
    return sum * int64_t(sizeof(T));
}

/* lhs op rhs of N numbers, each of which is rounded once, as on the CPU: an extreme is recognised
 * again by its value, so every kernel has to get the same. All lanes take one branch, and a
 * difference is a sum of signed numbers.
 */
template <class A, int N, int N_RHS>
static __device__ __forceinline__ void combine(int op, const A *lhs, const A *rhs, A *to)
{
    const A sign_lhs = A(op == SUB_FROM ? -1 : 1), sign_rhs = A(op == FMM_COMBINE_SUB ? -1 : 1);
    const bool into = op == DIV_INTO;
    if (op == FMM_COMBINE_MUL) {
#pragma unroll
        for (int v = 0; v < N; v++) to[v] = lhs[v] * rhs[v % N_RHS];
    } else if (op == FMM_COMBINE_DIV || into) {
#pragma unroll
        for (int v = 0; v < N; v++) {
            const A other = rhs[v % N_RHS];
            to[v] = (into ? other : lhs[v]) / (into ? lhs[v] : other);
        }
    } else {
#pragma unroll
        for (int v = 0; v < N; v++) to[v] = sign_lhs * lhs[v] + sign_rhs * rhs[v % N_RHS];
    }
}

/* What N operands of one entry have for a pack of features; the mask comes with single features. */
template <class T, int VEC, int VEC_RHS, int N> struct operands {
    typedef typename sum_of<T>::type A;
    PACK(T, VEC) lhs;
    PACK(T, VEC_RHS) rhs;
    PACK(T, 1) mask[3];

    /* at(k) is where operand k has the pack. Nothing waits for the loads yet. */
    template <class At> __device__ __forceinline__ void load_from(bool there, At at)
    {
        lhs = load_if<T, VEC>(there && (N < SIDES || at(LHS)), at(LHS));
        if (N > 1) rhs = load_if<T, VEC_RHS>(there && (N < SIDES || at(RHS)), at(RHS));
        if constexpr (N == SIDES) {
#pragma unroll
            for (int k = 0; k < 3; k++)
                mask[k] = load_if<T, 1>(there && at(MASK_LHS + k), at(MASK_LHS + k));
        }
    }
    /* The messages; false where the mask does not take them. */
    __device__ __forceinline__ bool terms(int op, int mask_op, A *to) const
    {
        A a[VEC], b[VEC_RHS];
        unpack<T, VEC>(lhs, a);
        if (N > 1) unpack<T, VEC_RHS>(rhs, b);
        const bool pair = N > 1 && op != FMM_COMBINE_COPY && op != FMM_COMBINE_ONE;
        if (pair) {
            combine<A, VEC, VEC_RHS>(op, a, b, to);
        } else {
#pragma unroll
            for (int v = 0; v < VEC; v++) to[v] = op == FMM_COMBINE_ONE ? A(1) : a[v];
        }
        if constexpr (N == SIDES) {
            A y, made[2];
            unpack<T, 1>(mask[0], made);
            unpack<T, 1>(mask[1], made + 1);
            unpack<T, 1>(mask[2], &y);
            if (mask_op != FMM_COMBINE_COPY) combine<A, 1, 1>(mask_op, made, made + 1, made);
            return widen(narrow<T>(made[0])) == y;
        }
        return true;
    }
};
