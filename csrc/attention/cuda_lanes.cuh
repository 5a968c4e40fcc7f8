/* Who owns what in a warp.
 *
 * A warp is cut into groups of lanes. A group takes one row at a time, with as many heads of it as
 * fit the group; gridDim.y counts the groups of heads. A head has a power of two of lanes, and each
 * of these lanes owns VEC neighbouring columns, PER times. Two heads of 8 lanes in groups of 16
 * lanes look like this:
 *
 *     lane    0 1 2 3 4 5 6 7 | 8 9 ...        15 || 16 ...                              31
 *             head 0          | head 1            || head 0          | head 1
 *             row a                               || row b
 *     columns of lane 1: VEC .. 2 VEC - 1, then the same LANES * VEC further on, PER times
 *
 * All heads of a row share its column indices, and where heads lie side by side in memory a group
 * gathers one stretch of it. Sums over a head's columns are exchanges by shuffle between its lanes,
 * so every lane of a head knows its logits. */
#pragma once

#include "cuda_traits.cuh"

template <class K> struct attend_lane {
    typedef typename K::T T;
    typedef typename K::A A;

    int lanes, group;               /* lanes of a head, and of a group */
    int lane, sub, base;            /* this lane in its group, in its head; the group in the warp */
    int group_heads, mine_of_heads; /* heads of a group; this lane's among them */
    int32_t first_head, head;       /* the group's first head; this lane's head */
    bool live;                      /* this lane has a head */
    int32_t column[K::PER];         /* the first of each VEC columns */
    int32_t offset_s[K::PS], offset_v[K::PER]; /* the same in bytes from the first of them */
    bool in_s[K::PS], in_v[K::PER];            /* whether the head has these columns */
    const char *far_s, *far_v, *stats;         /* row 0 of what is gathered, at this column */
    uint64_t seed;

    __device__ __forceinline__ explicit attend_lane(const attend_args<T> &s)
    {
        constexpr int VEC = K::VEC;
        constexpr bool FULL = K::FULL, SCALAR = K::SCALAR;
        const int lane_bits = FULL ? K::BITS : s.lane_bits;
        lanes = 1 << lane_bits, group = 1 << s.group_bits;
        lane = threadIdx.x & (group - 1), sub = lane & (lanes - 1);
        base = (threadIdx.x & (WARP - 1)) & ~(group - 1);
        group_heads = group >> lane_bits, mine_of_heads = lane >> lane_bits;
        first_head = blockIdx.y * group_heads;
        live = first_head + mine_of_heads < s.heads;
        head = live ? first_head + mine_of_heads : 0;
        UNROLLED(i, K::PER) {
            column[i] = (i * lanes + sub) * VEC;
            in_v[i] = live && (FULL || column[i] < s.feat_v);
            offset_v[i] = FULL || in_v[i] ? i * lanes * VEC * (int32_t)sizeof(T) : 0;
        }
        UNROLLED(i, K::PS) {
            in_s[i] = live && (FULL || SCALAR || column[i] < s.feat);
            offset_s[i] = !SCALAR && (FULL || in_s[i]) ? i * lanes * VEC * (int32_t)sizeof(T) : 0;
        }
        /* A lane without columns reads the first ones, so that no load needs a branch. */
        far_s = s.far_s.data + head * s.far_s.head;
        far_v = s.far_v.data + head * s.far_v.head;
        if (!SCALAR && (FULL || in_s[0])) far_s += column[0] * sizeof(T);
        if (FULL || in_v[0]) far_v += column[0] * sizeof(T);
        stats = reinterpret_cast<const char *>(s.stats + planes_of(K::SCORE) * head);
        /* This keeps the compiler from taking the addresses apart again: the address of each load
         * is then one multiply-add. */
        asm("" : "+l"(far_s), "+l"(far_v), "+l"(stats));
        seed = K::EDGES && s.drops ? (uint64_t)__ldg(s.seed) : 0;
    }

    /* The span that lane k of the group has looked up. */
    __device__ __forceinline__ span span_at(const span &of, int k) const
    {
        span other;
        other.begin = __shfl_sync(ALL, of.begin, base + (k & (group - 1)));
        other.length = __shfl_sync(ALL, of.length, base + (k & (group - 1)));
        other.row = __shfl_sync(ALL, of.row, base + (k & (group - 1)));
        return other;
    }
    /* All groups of a warp run the same number of turns, so that every shuffle has all lanes. */
    __device__ __forceinline__ int most_of_groups(int v) const
    {
        for (int d = group; d < WARP; d *= 2) v = max(v, __shfl_xor_sync(ALL, v, d));
        return v;
    }
    /* The exchanges of a sum over the lanes of a head begin at this distance. A number that is
     * known when the kernel is compiled makes straight code of their loop, across which unpacked
     * numbers stay in registers. */
    __device__ __forceinline__ int half_of_head(void) const
    {
        return (K::FULL ? K::LANES : lanes) >> 1;
    }
    __device__ __forceinline__ A sum_of_head(A x) const
    {
#pragma unroll
        for (int d = half_of_head(); d; d >>= 1) x += __shfl_xor_sync(ALL, x, d);
        return x;
    }
};
