/* The operands of messages as the `segments` kernels see them, and what a message is made of.
 *
 *     feature k of an entry      axes   k0 | k1 | k2 | k3        k in the order of storage
 *     an operand that has k1, k3              x         x        step 0 along the others
 *
 * A lane owns a feature, or a pack of neighbours along the last axis, for many entries. So where its
 * feature lies in a row of an operand is found once; to an entry belongs a row alone. That is the
 * row i, the column j or the edge e of the entry, whichever the operand belongs to. */
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

/* Where feature k of the axes `axis` lies in a row of an operand, in bytes. */
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

template <class A> static __device__ __forceinline__ A combine(int op, A a, A b)
{
    switch (op) {
    case FMM_COMBINE_COPY:
        return a;
    case FMM_COMBINE_ADD:
        return a + b;
    case FMM_COMBINE_SUB:
        return a - b;
    case FMM_COMBINE_MUL:
        return a * b;
    case FMM_COMBINE_ONE:
        return A(1);
    case SUB_FROM:
        return b - a;
    case DIV_INTO:
        return b / a;
    default:
        return a / b;
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
#pragma unroll
        for (int k = MASK_LHS; k < N; k++)
            mask[k - MASK_LHS] = load_if<T, 1>(there && at(k), at(k));
    }
    /* The messages; false where the mask does not take them. */
    __device__ __forceinline__ bool terms(int op, int mask_op, A *to) const
    {
        A a[VEC], b[VEC_RHS];
        unpack<T, VEC>(lhs, a);
        if (N > 1) unpack<T, VEC_RHS>(rhs, b);
#pragma unroll
        for (int v = 0; v < VEC; v++)
            to[v] = N > 1 ? combine(op, a[v], b[VEC_RHS == 1 ? 0 : v]) : a[v];
        if (N < SIDES) return true;
        A side_of[3];
#pragma unroll
        for (int k = 0; k < 3; k++) unpack<T, 1>(mask[k], side_of + k);
        return widen(narrow<T>(combine(mask_op, side_of[0], side_of[1]))) == side_of[2];
    }
};
