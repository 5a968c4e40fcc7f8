/* How the pieces of a long row meet within the kernel that sums them, so that no launch follows.
 *
 * Each group leaves the sum of its piece in a slot of the workspace and takes a ticket of its
 * bunch, which is up to FAN neighbouring pieces. Whoever takes the last ticket finds all slots of
 * the bunch written. It adds them up in their order, into the slot of the first, and goes on with
 * that sum as one of a bunch of bunches, until the row is complete:
 *
 *     pieces of a row     0   1   2  ...  31 | 32  33  ...  63 | 64  65
 *                         +---+---+-- ... -+   +---+-- ... -+    +---+     FAN slots at most
 *                         sum                  sum               sum
 *                         +--------------------+-----------------+         and again
 *                         the row, which is written
 *
 * Which group adds is a matter of time. What is added and in which order follows from the number of
 * a row's pieces alone, so the bits are the same every time, and no accumulator takes more than FAN
 * terms. Tickets lie in the call's workspace and are cleared by the call itself, so that calls at
 * the same time share none, and one that failed leaves nothing behind. */
#pragma once

#include "cuda_terms.cuh"

/* Where the pieces of one output meet, whose rows have feat columns. */
template <class A> struct meeting {
    A *partial;        /* slots: [segments][heads][width], width: feat in whole vectors */
    uint32_t *tickets; /* [tiles of columns][heads][segments] */
    int64_t width, feat;
};

/* A ticket word counts each of the LEVELS levels in BITS bits, and FAN^LEVELS is more than the
 * 2^23 pieces that a matrix has at most. */
enum { FAN = 32, BITS = 6, LEVELS = 5 };

/* Takes a ticket at a level and returns how many were taken there before. The writes of the group,
 * which __syncwarp ordered before this, are in L2 then. Whoever takes a later ticket sees them
 * after a fence. */
static __device__ __forceinline__ int32_t take_ticket(uint32_t *ticket, int level)
{
    uint32_t before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(1u << (BITS * level))
                 : "memory");
    return int32_t(before >> (BITS * level) & ((1u << BITS) - 1));
}

/* All lanes of a warp call this. Where a group has a piece, `sum` are its sums, of the columns from
 * `column` on. The group that completes the row has the row's sums there afterwards, and gets the
 * number of the row's entries; the others get -1. */
template <class S, class Reduce>
static __device__ __forceinline__ int64_t meet(const dealt &s, const meeting<typename S::A> &m,
                                               const task<S::LANES> &t, int32_t row, int32_t column,
                                               typename S::A (&sum)[S::PER][S::VEC])
{
    typedef typename S::A A;
    constexpr int VEC = S::VEC, LANES = S::LANES, PER = S::PER, STEP = S::STEP;
    enum { FIT = 128 / (PER * VEC * sizeof(A)), AT_ONCE = FIT < 2 ? 2 : FIT > 8 ? 8 : FIT };
    wait_for_previous(); /* until the tickets are cleared */
    bool climbs = t.item.count == 0;
    if (!__any_sync(ALL, climbs)) return -1;
    /* Which piece of how many, inside of the list of pieces whatever the plan says. */
    const int64_t own = __shfl_sync(ALL, t.mine.begin, 0, LANES);
    int32_t first = 0, at = 0, count = 0;
    int64_t length = 0, terms = -1;
    if (climbs) {
        int64_t begin;
        length = max(row_range(s.a, row, &begin), int64_t(1));
        const int64_t pieces = pieces_of(length, s.plan.segment);
        at = (int32_t)clamp((own - begin) / piece_length(length, pieces), 0, t.item.from);
        first = t.item.from - at;
        count = (int32_t)min(pieces, int64_t(s.plan.segments_max - first));
    }
    uint32_t *const tickets =
        m.tickets + (int64_t(blockIdx.y) * s.heads + t.head) * s.plan.segments_max + first;
    const int64_t stride = s.heads * m.width;
    A *const slots = m.partial + first * stride + t.head * m.width + column;
    auto keep_sum = [&](int64_t slot) {
        UNROLLED(i, PER)
            if (column + i * STEP < m.feat) keep<A, VEC>(slots + slot * stride + i * STEP, sum[i]);
    };
    if (climbs) keep_sum(at);
    int64_t apart = 1; /* from a slot of this level to the next */
    for (int level = 0; level < LEVELS && __any_sync(ALL, climbs); level++) {
        const int32_t bunch = at / FAN, size = min(int32_t(FAN), count - bunch * FAN);
        const int64_t from = int64_t(bunch) * FAN * apart;
        int32_t before = 0;
        __syncwarp();
        if (climbs && t.lane == 0) before = take_ticket(tickets + from, level);
        before = __shfl_sync(ALL, before, 0, LANES);
        climbs = climbs && before == size - 1;
        if (climbs) asm volatile("fence.acq_rel.gpu;" ::: "memory");
        for (int32_t k = 0; climbs && k < size; k += AT_ONCE) {
            if (k == 0)
                UNROLLED(i, PER)
                    UNROLLED(v, VEC) sum[i][v] = Reduce::template start<A>();
            A slot[AT_ONCE][PER][VEC];
            UNROLLED(f, AT_ONCE)
                UNROLLED(i, PER)
                    if (k + f < size && column + i * STEP < m.feat)
                        fetch_kept<A, VEC>(slots + (from + (k + f) * apart) * stride + i * STEP,
                                           VEC, slot[f][i]);
                    else
                        UNROLLED(v, VEC) slot[f][i][v] = Reduce::template start<A>();
            UNROLLED(f, AT_ONCE)
                UNROLLED(i, PER)
                    UNROLLED(v, VEC) sum[i][v] = Reduce::join(sum[i][v], slot[f][i][v]);
        }
        if (climbs && count > FAN) keep_sum(from);
        if (climbs && count <= FAN) climbs = false, terms = length;
        at = bunch;
        count = (count + FAN - 1) / FAN;
        apart *= FAN;
    }
    return terms;
}

/* Clears the tickets while the kernel that takes them already starts. */
enum { CLEARS = 128 }; /* blocks at most */
static __global__ void __launch_bounds__(BLOCK) clear_tickets(uint32_t *tickets, int64_t count)
{
    let_next_start();
    for (int64_t t = this_thread(); t < count; t += all_threads()) tickets[t] = 0;
}

/* Launches a kernel whose pieces meet, with so many tickets for each segment of the plan. Without
 * long rows there is nothing to clear. */
template <class Kernel, class Args>
static void launch_meeting(const fmm_exec *exec, Kernel kernel, dim3 grid, const Args &s,
                           uint32_t *tickets, int64_t each)
{
    const cudaStream_t stream = stream_of(exec);
    if (!s.plan.long_rows_max) return kernel<<<grid, BLOCK, 0, stream>>>(s);
    const int64_t count = each * s.plan.segments_max;
    clear_tickets<<<(unsigned)smaller(ceil_div(count, BLOCK), CLEARS), BLOCK, 0, stream>>>(tickets,
                                                                                           count);
    launch_early(exec->index, stream, kernel, grid, s);
}
