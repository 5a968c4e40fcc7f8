/* What runs before and after the walk: stats_of packs what COLS gathers of a row besides q and
 * gout, and step 6, the join, adds up the slots that the pieces of long rows left in the workspace.
 *
 *     slot of a head   | QUADs of to_s | QUADs of to_v, to_pos | FORWARD: high, sum, sum of pos_w |
 *     a thread         one QUAD, and what stands behind it
 *
 * Sums are added in the order of a row's pieces, by the threads of cuda/join.cuh. Those of FORWARD
 * are relative to the largest logit of their piece, so two of them meet as two online softmaxes do.
 * Every column of a row has one owner, and the order of its additions depends on the matrix alone.
 */
#pragma once

#include "cuda.cuh"

/* Operands of stats_of: `rows` rows of q and of the statistics, planes_of(score) numbers each. */
template <class T> struct stats_args {
    typedef typename sum_of<T>::type A;
    dense_view<const A> lse, lse_rest, delta;
    dense_view<const T> q;
    A *stats;
    int64_t rows;
    uint64_t per_head;
    int32_t heads, planes;
};

/* A thread packs one row and head. */
template <class T>
static __global__ void __launch_bounds__(BLOCK) stats_of(const __grid_constant__ stats_args<T> s)
{
    let_next_start();
    const int64_t count = s.rows * s.heads;
    for (int64_t t = this_thread(); t < count; t += all_threads()) {
        const int64_t row = item_of(t, s.heads, s.per_head), head = t - row * s.heads;
        auto *const to = s.stats + t * s.planes;
        to[0] = lse_of_weights(__ldg(s.lse.at(row, head, 0)));
        to[1] = __ldg(s.delta.at(row, head, 0));
        if (s.planes == 2) continue;
        to[2] = widen(__ldg(s.q.at(row, head, 0)));
        to[3] = s.lse_rest.data ? __ldg(s.lse_rest.at(row, head, 0)) : 0;
    }
}

/* A QUAD's sums, with POS one more, which is that of pos_w. Those of FORWARD are relative to
 * exp(high), and `sum` is the softmax's denominator. */
template <class A, int WALK, bool POS> struct quad {
    enum { SUMS = QUAD + POS };
    A v[SUMS], high, sum;
    __device__ __forceinline__ void start(void)
    {
        for (int i = 0; i < SUMS; i++) v[i] = A(0);
        high = -A(INFINITY), sum = A(0);
    }
    __device__ __forceinline__ void join(const quad &other)
    {
        if (WALK != FORWARD) {
            UNROLLED(i, SUMS) v[i] += other.v[i];
            return;
        }
        /* Both sides are brought to the larger `high`, then added. */
        const A higher = most(high, other.high), zero = bounded(higher);
        const A mine = exp_of(high - zero), theirs = exp_of(other.high - zero);
        UNROLLED(i, SUMS) v[i] = fma(v[i], mine, product(other.v[i], theirs));
        sum = fma(sum, mine, product(other.sum, theirs));
        high = higher;
    }
};

template <class T, int WALK, bool POS>
static __global__ void __launch_bounds__(CREW, sizeof(T) == 8 ? CREWS / 2 : CREWS)
    attend_join(const __grid_constant__ attend_args<T> s)
{
    typedef typename sum_of<T>::type A;
    typedef quad<A, WALK, POS> sums;
    const int64_t stride = s.heads * s.width; /* from a slot to the next */
    /* The columns of a head in a slot, which FORWARD's last QUAD is not. With POS the second half
     * of them belong to to_pos. */
    const int64_t width = s.width - (WALK == FORWARD ? QUAD : 0);

    /* How many columns the operand that owns column c still has there: the rest of its last QUAD is
     * padding that no kernel has written. */
    auto columns_from = [&](int64_t c) {
        if (POS && c >= width / 2) return s.feat_v - (c - width / 2);
        return c < s.width_s ? s.feat - c : s.feat_v - (c - s.width_s);
    };
    auto add = [&](sums *to, const joined_row &r, int64_t head, int64_t c, int begin, int end,
                   int step) {
        const A *const slots = s.partial + r.first * stride + head * s.width;
        const int64_t some = columns_from(c);
        to->start();
#pragma unroll 4
        for (int p = begin; p < end; p += step) {
            sums slot;
            slot.start();
            fetch_kept<A, QUAD>(slots + p * stride + c, some, slot.v);
            if (WALK == FORWARD) {
                slot.high = __ldcs(slots + p * stride + width);
                slot.sum = __ldcs(slots + p * stride + width + 1);
                if (POS) slot.v[QUAD] = __ldcs(slots + p * stride + width + 2);
            }
            to->join(slot);
        }
    };
    /* A QUAD of the result. The thread that has column 0 also writes what is one number a head. */
    auto write = [&](const joined_row &r, int64_t head, int64_t c, const sums &total) {
        const A share = WALK == FORWARD ? share_of(total.sum) : A(1);
        if (POS && c >= width / 2) {
            const int64_t column = c - width / 2;
            for (int i = 0; i < QUAD && column + i < s.feat_v; i++)
                *s.to_pos.at(r.row, head, column + i) = shared_out(total.v[i], share);
            if (column == 0) *s.to_pos_w.at(r.row, head, 0) = shared_out(total.v[QUAD], share);
            return;
        }
        const bool first = c < s.width_s;
        const dense_view<T> &to = first ? s.to_s : s.to_v;
        const int64_t at = first ? c : c - s.width_s, end = first ? s.feat : s.feat_v;
        for (int i = 0; i < QUAD && at + i < end && to.data; i++)
            *to.at(r.row, head, at + i) = narrow<T>(shared_out(total.v[i], share));
        if (WALK == FORWARD && c == 0) write_lse(s, r.row, head, total.high, total.sum);
    };
    join_rows<CREW, sums>(s, add, write);
}
