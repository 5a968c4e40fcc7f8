/* What a lane of attention's walk has to do with memory: its heads and columns, the entries of a
 * row and what the row has of its own (cuda_walk.cuh says how groups of lanes are made). */
#ifndef FMM_CUDA_ATTENTION_LANES_CUH
#define FMM_CUDA_ATTENTION_LANES_CUH

#include "cuda.cuh"

/* An entry as the lane that fetched it keeps it. Loads are unconditional, so that the compiler
 * keeps them together: past the end of a row they read its last entry again, a lane without columns
 * reads the first ones, and neither counts, in results not even as 0 times infinity. In gradients,
 * and in results of additive scores that they follow, an infinity of a row's last entry may become
 * NaN: a condition there pulls the loads apart, for up to a fifth of the time. */
static constexpr uint32_t ABSENT = 0x80000000u;
template <bool EDGES> struct entry {
    uint32_t column; /* ABSENT: counts for nothing, whatever is read there */
};
template <> struct entry<true> {
    uint32_t column;
    uint32_t keep;      /* bit h: dropout keeps head h of the group */
    uint32_t low, high; /* of edge, on its way */
    int64_t edge;
};

template <class T>
static __device__ __forceinline__ uint32_t keep_mask(const attend_args<T> &s, uint64_t seed,
                                                     int64_t edge, int32_t first_head,
                                                     int32_t heads)
{
    uint32_t mask = 0;
    const int32_t end = min(first_head + heads, s.heads);
    for (int32_t four = first_head / 4; four * 4 < end; four++) {
        const fmm_philox_block block = fmm_philox(seed, (uint64_t)edge, (uint32_t)four);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t bit = four * 4 + i - first_head;
            if (bit >= 0 && bit < heads && block.word[i] >= s.keep_limit) mask |= 1u << bit;
        }
    }
    return mask;
}

/* Unpacked numbers that stay so: what then follows under a condition is predicated, where the
 * compiler would unpack behind a branch. */
template <class T, int N> static __device__ __forceinline__ void settle(typename sum_of<T>::type *v)
{
    if constexpr (sizeof(T) == 2)
#pragma unroll
        for (int i = 0; i < N; i++) asm volatile("" : "+f"(v[i]));
}

/* A row's own operands, on their way. */
template <class T, int PS, int VS, int PER, int VEC> struct own_row {
    typedef typename sum_of<T>::type A;
    PACK(T, VS) s[PS];
    PACK(T, VEC) v[PER];
    A lse, delta;
};

/* BITS: s.lane_bits where the kernel is compiled for it, or -1. */
template <class T, int WALK, int SCORE, int VEC, int PER, bool EDGES, int BITS> struct attend_lane {
    typedef typename sum_of<T>::type A;
    static constexpr bool SCALAR = SCORE == FMM_ADDITIVE, BACK = WALK != FORWARD;
    static constexpr bool FULL = BITS >= 0; /* and columns for each of these lanes */
    static constexpr int LANES = 1 << (FULL ? BITS : 0);
    static constexpr int PS = SCALAR ? 1 : PER, VS = SCALAR ? 1 : VEC;
    typedef own_row<T, PS, VS, PER, VEC> own;

    int lanes, group, lane, sub, base; /* of a head, of the group; base: the group's in the warp */
    int group_heads, mine_of_heads;
    int32_t first_head, head;
    bool live; /* has a head */
    int32_t column[PER], offset_s[PS], offset_v[PER];
    bool in_s[PS], in_v[PER];
    const char *far_s, *far_v, *stats, *stats_q;
    uint64_t seed;

    __device__ __forceinline__ explicit attend_lane(const attend_args<T> &s)
    {
        const int lane_bits = BITS < 0 ? s.lane_bits : BITS;
        lanes = 1 << lane_bits, group = 1 << s.group_bits;
        lane = threadIdx.x & (group - 1), sub = lane & (lanes - 1);
        base = (threadIdx.x & (WARP - 1)) & ~(group - 1);
        group_heads = group >> lane_bits, mine_of_heads = lane >> lane_bits;
        first_head = blockIdx.y * group_heads;
        live = first_head + mine_of_heads < s.heads;
        head = live ? first_head + mine_of_heads : 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            column[i] = (i * lanes + sub) * VEC;
            in_v[i] = live && (FULL || column[i] < s.feat_v);
            offset_v[i] = FULL || in_v[i] ? i * lanes * VEC * (int32_t)sizeof(T) : 0;
        }
#pragma unroll
        for (int i = 0; i < PS; i++) {
            in_s[i] = live && (FULL || SCALAR || column[i] < s.feat);
            offset_s[i] = !SCALAR && (FULL || in_s[i]) ? i * lanes * VEC * (int32_t)sizeof(T) : 0;
        }
        /* Addresses that the compiler keeps whole: one multiply-add for each load. */
        far_s = s.far_s.data + head * s.far_s.head;
        far_v = s.far_v.data + head * s.far_v.head;
        if (!SCALAR && (FULL || in_s[0])) far_s += column[0] * sizeof(T);
        if (FULL || in_v[0]) far_v += column[0] * sizeof(T);
        stats = reinterpret_cast<const char *>(s.stats + 2 * head);
        stats_q = reinterpret_cast<const char *>(s.stats + 2 * (s.heads + head));
        asm("" : "+l"(far_s), "+l"(far_v), "+l"(stats), "+l"(stats_q));
        seed = EDGES && s.drops ? (uint64_t)__ldg(s.seed) : 0;
    }

    /* Entry `at` + this lane of a row, on its way: nothing here waits for it, nor is it read under
     * a branch, at whose end it would be waited for. */
    __device__ __forceinline__ void fetch(const attend_args<T> &s, const span &from, int at,
                                          entry<EDGES> *to) const
    {
        const bool some = from.length > 0;
        const int64_t p = from.begin + min(at + lane, from.length - 1);
        const int32_t *const none = reinterpret_cast<const int32_t *>(&no_row);
        to->column = (uint32_t)__ldg(some ? s.a.idx + p : none);
        if constexpr (EDGES) {
            to->low = (uint32_t)p, to->high = (uint32_t)(p >> 32);
            if (!s.edges.eid) return;
            const int32_t *const eid = static_cast<const int32_t *>(s.edges.eid);
            const int32_t *const words = some ? eid + (s.edges.wide ? 2 * p : p) : none;
            to->low = (uint32_t)__ldg(words);
            if (s.edges.wide) to->high = (uint32_t)__ldg(words + 1);
        }
    }
    /* Waits for it; `there`: it is not past the end of its row. */
    __device__ __forceinline__ void arrive(const attend_args<T> &s, bool there,
                                           entry<EDGES> *it) const
    {
        if (it->column >= (uint32_t)s.a.cols) it->column = ABSENT;
        if (!there) it->column |= ABSENT;
        if constexpr (EDGES) {
            const bool narrow = s.edges.eid && !s.edges.wide;
            it->edge = narrow ? (int32_t)it->low : int64_t(uint64_t(it->high) << 32 | it->low);
            if (!is_edge(s.edges, it->edge)) it->column = ABSENT, it->edge = 0;
            it->keep = s.drops ? keep_mask(s, seed, it->edge, first_head, group_heads) : ALL;
        }
    }

    /* Numbers of entries, all read before the first is waited for, and after the gathers: they are
     * under a branch, where what is read is waited for. */
    template <int FLY>
    __device__ __forceinline__ void read_edges(const own_side<const T> &from,
                                               const int64_t (&edge)[FLY], A (&to)[FLY]) const
    {
        T raw[FLY];
#pragma unroll
        for (int f = 0; f < FLY; f++) raw[f] = __ldg(from.at(edge[f], head, 0));
#pragma unroll
        for (int f = 0; f < FLY; f++) to[f] = widen(raw[f]);
    }

    static __device__ __forceinline__ A read_one(const char *stats, uint32_t row, uint32_t bytes)
    {
        return __ldg(reinterpret_cast<const A *>(row_at(stats, row, bytes)));
    }
    static __device__ __forceinline__ void read_two(const char *stats, uint32_t row, uint32_t bytes,
                                                    A *first, A *second)
    {
        A two[2];
        unpack<A, 2>(load<A, 2>(reinterpret_cast<const A *>(row_at(stats, row, bytes))), two);
        *first = two[0], *second = two[1];
    }
    /* logit - lse - lse_rest of row(f), where that counts: what is read here is waited for. */
    template <int FLY, class ROW>
    __device__ __forceinline__ void subtract(const attend_args<T> &s, const ROW &row,
                                             const A (&lse)[FLY], A (&logit)[FLY]) const
    {
        bool large = false;
#pragma unroll
        for (int f = 0; f < FLY; f++) large |= fabs(lse[f]) > A(LARGE_LSE), logit[f] -= lse[f];
        if (large && s.lse_rest.data)
            for (int f = 0; f < FLY; f++) logit[f] -= __ldg(s.lse_rest.at(row(f), head, 0));
    }

    __device__ __forceinline__ span span_at(const span &of, int k) const
    {
        span other;
        other.begin = __shfl_sync(ALL, of.begin, base + (k & (group - 1)));
        other.length = __shfl_sync(ALL, of.length, base + (k & (group - 1)));
        other.row = __shfl_sync(ALL, of.row, base + (k & (group - 1)));
        return other;
    }
    __device__ __forceinline__ int most_of_groups(int v) const
    {
        for (int d = group; d < WARP; d *= 2) v = max(v, __shfl_xor_sync(ALL, v, d));
        return v;
    }

    __device__ __forceinline__ void read_own(const attend_args<T> &s, int64_t row, own *to) const
    {
#pragma unroll
        for (int i = 0; i < PS; i++) {
            to->s[i] = PACK(T, VS){};
            if (in_s[i]) to->s[i] = load<T, VS>(s.own_s.at(row, head, SCALAR ? 0 : column[i]));
        }
#pragma unroll
        for (int i = 0; i < PER && BACK; i++) {
            to->v[i] = PACK(T, VEC){};
            if (s.own_v.data && in_v[i]) to->v[i] = load<T, VEC>(s.own_v.at(row, head, column[i]));
        }
        if (WALK == ROWS) {
            to->lse = live ? __ldg(s.lse.at(row, head, 0)) : A(0);
            to->delta = live && s.delta.data ? __ldg(s.delta.at(row, head, 0)) : A(0);
        }
    }

    __device__ __forceinline__ A sum_of_head(A x) const
    {
#pragma unroll
        for (int d = (FULL ? LANES : lanes) >> 1; d; d >>= 1) x += __shfl_xor_sync(ALL, x, d);
        return x;
    }

    /* Sums of a whole row go to the row, those of a piece to its slot, `offset` sums into it. */
    template <class U>
    __device__ __forceinline__ void write(const attend_args<T> &s, const item_view &item, int r,
                                          int64_t row, const A (*sums)[VEC], const own_side<U> &to,
                                          int64_t offset, const bool *in) const
    {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (!in[i]) continue;
            if (item.count == 0) {
                if (r == 0 && s.partial)
                    keep<A, VEC>(s.partial + (int64_t(item.from) * s.heads + head) * s.width +
                                     offset + column[i],
                                 sums[i]);
            } else if (r < item.count && to.data) {
                if constexpr (sizeof(U) > sizeof(T)) /* more than 16 bytes */
                    keep<A, VEC>(to.at(row, head, column[i]), sums[i]);
                else
                    store<U, VEC>(to.at(row, head, column[i]), sums[i]);
            }
        }
    }

    /* The results of a row without entries. */
    template <bool POS>
    __device__ __forceinline__ void write_empty(const attend_args<T> &s, int64_t row) const
    {
        const A zeros[VEC] = {};
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (WALK != ROWS && s.to_v.data && in_v[i])
                store<T, VEC>(s.to_v.at(row, head, column[i]), zeros);
            if (POS && in_v[i]) keep<A, VEC>(s.to_pos.at(row, head, column[i]), zeros);
            if (BACK && !SCALAR && s.to_s.data && in_s[SCALAR ? 0 : i])
                store<T, VEC>(s.to_s.at(row, head, column[i]), zeros);
        }
        if (!live || sub) return;
        if (WALK == FORWARD) write_lse(s, row, head, A(0), A(0));
        if (POS) *s.to_pos_w.at(row, head, 0) = A(0);
        if (BACK && SCALAR && s.to_s.data) *s.to_s.at(row, head, 0) = narrow<T>(A(0));
    }
};

/* All sums of a walk, aside; FORWARD's are relative to the largest logit until then. */
template <class A, int WALK, bool POS, bool COLLECT, int S, int V> struct walk_aside {
    sums_aside<A, V> of_v, of_also;
    sums_aside<A, S> of_s, of_turned;
    sums_aside<A, 1> of_sum, of_pos;
    A high_then;
    __device__ __forceinline__ void put(bool first, A high, A *sum, A *pos, A *v, A *also, A *s,
                                        A *turned)
    {
        const A by = WALK == FORWARD && !first ? exp_of(high_then - bounded(high)) : A(1);
        high_then = high;
        if (WALK == FORWARD) of_sum.put(sum, first, by);
        if (WALK != ROWS) of_v.put(v, first, by);
        if (POS) of_pos.put(pos, first, by), of_also.put(also, first, by);
        if (WALK != FORWARD) of_s.put(s, first);
        if (COLLECT) of_turned.put(turned, first);
    }
    __device__ __forceinline__ void take(A high, A *sum, A *pos, A *v, A *also, A *s, A *turned)
    {
        const A by = WALK == FORWARD ? exp_of(high_then - bounded(high)) : A(1);
        if (WALK == FORWARD) of_sum.take(sum, by);
        if (WALK != ROWS) of_v.take(v, by);
        if (POS) of_pos.take(pos, by), of_also.take(also, by);
        if (WALK != FORWARD) of_s.take(s);
        if (COLLECT) of_turned.take(turned);
    }
};

#endif
