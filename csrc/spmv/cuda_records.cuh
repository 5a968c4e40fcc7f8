/* Rows that several warps or blocks share, for the kernel of cuda_segments.cuh: what each of them
 * leaves, and who adds that up.
 *
 *     warps     first     rows between     tail      of block 0      a row is open where the tail
 *               aa        b c d            ee        e goes on       of one meets the first of the
 *               eee       f                gg                        next; a block without a mark
 *     block 0   aa                         gg        its record      is all first
 *     block 1   ggg ...                                              g: gg + ggg + gggg ...
 *
 * A thread of a block adds up what its warps share. The records of blocks are added up by a second
 * launch in their order, which may start while the first one still runs. Nothing depends on which
 * block comes first, and nothing has to be cleared before. */
#pragma once

#include "cuda.cuh"

/* Entries of a lane and of a warp; warps of a block; rows that are skipped at once if empty. */
enum { EACH = 4, SHARE = WARP * EACH, TEAM = BLOCK / WARP, SLICE = 2048 };

enum segment_way { SEGMENTED, PATH, COORDINATES };

/* Rows are named by marks: their number plus one; 0 is no row, and -1 one outside the matrix. What
 * a block leaves: the sum before its first mark, or of all it has; the last mark and its sum. */
template <class A> struct record_of {
    A first, tail;
    int32_t mark;
};

template <class T> struct segment_args {
    spmv_args<T> s;
    const int32_t *starts; /* of csr_segmented: where shares' rows begin */
    record_of<typename sum_of<T>::type> *records;
    int32_t shares, blocks;
};

/* Where the sum of entry e is in a warp's stage: a place more for each lane, so that lanes meet
 * different banks of shared memory. */
static __device__ __forceinline__ constexpr int stage_place(int e) { return e + e / EACH; }

/* What a row adds up to: into the sums of HYB, whose entries are COO's, or finished. A row outside
 * is nobody's. */
template <int WAY, class T>
static __device__ __forceinline__ void write_row(const spmv_args<T> &s, int32_t mark,
                                                 typename sum_of<T>::type sum)
{
    if (mark <= 0) return;
    if (WAY == COORDINATES && s.sums)
        s.sums[mark - 1] = sum;
    else
        finish(s, mark - 1, sum);
}

/* What is open behind each lane: its own sum, and those of the lanes before it as far back as the
 * last one of `marked`. */
template <class A> static __device__ __forceinline__ A add_open(A sum, unsigned marked)
{
    const int lane = threadIdx.x % WARP;
    const unsigned upto = marked & (2u << lane) - 1u;
    const int back = upto ? lane - (31 - __clz((int)upto)) : lane;
#pragma unroll
    for (int far = 1; far < WARP; far *= 2) {
        const A other = __shfl_up_sync(ALL, sum, far);
        if (far <= back) sum += other;
    }
    return sum;
}

/* The record of a block, of what its warps left: lane w of the first warp has that of warp w, and
 * the rows that they share are added up by the same scan. */
template <int WAY, class T, class A>
static __device__ __forceinline__ void leave_record(const segment_args<T> &m,
                                                    const record_of<A> &mine)
{
    __shared__ record_of<A> team[TEAM];
    const int lane = threadIdx.x % WARP;
    if (lane == 0) team[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    record_of<A> all = {A(0), A(0), 0};
    if (lane < TEAM) all = team[lane];
    const unsigned marked = __ballot_sync(ALL, all.mark != 0), below = marked & (1u << lane) - 1u;
    const A sum = add_open(all.mark ? all.tail : all.first, marked);
    const A before = __shfl_up_sync(ALL, sum, 1);
    if (lane && all.mark) all.first += before;
    const int32_t open = __shfl_sync(ALL, all.mark, below ? 31 - __clz((int)below) : 0);
    if (all.mark && below) write_row<WAY>(m.s, open, all.first);
    all.tail = __shfl_sync(ALL, sum, WARP - 1);
    all.mark = __shfl_sync(ALL, all.mark, marked ? 31 - __clz((int)marked) : 0);
    all.first = marked ? __shfl_sync(ALL, all.first, __ffs((int)marked) - 1) : all.tail;
    if (lane) return;
    if (m.blocks == 1)
        write_row<WAY>(m.s, all.mark, all.tail);
    else
        m.records[blockIdx.x] = all;
}

/* ---- launches beside the one that adds up ---- */

/* The second launch. Thread k asks whether a row is open behind block k. Nearly always the next
 * block ends it; else the warp adds up what blocks left up to the one that does. Before, while the
 * first launch may still run, its warps write the slices of rows that have no entry. */
template <class T, int WAY>
static __global__ void __launch_bounds__(BLOCK) spmv_join(const __grid_constant__ segment_args<T> m)
{
    typedef typename sum_of<T>::type A;
    const int64_t k = this_thread(), lane = threadIdx.x % WARP;
    if constexpr (WAY == SEGMENTED) {
        const int64_t slices = m.s.a.rows / SLICE;
        for (int64_t slice = k / WARP; slice < slices; slice += all_threads() / WARP) {
            const int64_t *const ptr = m.s.a.ptr + slice * SLICE;
            if (__ldg(ptr) != __ldg(ptr + SLICE)) continue;
            for (int r = (int)lane; r < SLICE; r += WARP)
                write_row<WAY>(m.s, int32_t(slice * SLICE + r + 1), A(0));
        }
    }
    wait_for_previous(); /* also where nothing is read: who follows waits for this launch alone */
    if (m.blocks == 1) return; /* it left no record */
    const record_of<A> none = {A(0), A(0), 0};
    const record_of<A> mine = k < m.blocks ? m.records[k] : none;
    const record_of<A> next = k + 1 < m.blocks ? m.records[k + 1] : none;
    const bool ends = next.mark != 0 || k + 1 >= m.blocks;
    if (mine.mark > 0 && ends) write_row<WAY>(m.s, mine.mark, mine.tail + next.first);
    for (unsigned open = __ballot_sync(ALL, mine.mark > 0 && !ends); open; open &= open - 1) {
        const int from = __ffs((int)open) - 1;
        folded<A> total;
        total.start();
        unsigned stop = 0;
        for (int64_t at = k - lane + from + 1 + lane; !stop; at += WARP) {
            const record_of<A> left = at < m.blocks ? m.records[at] : none;
            stop = __ballot_sync(ALL, left.mark != 0 || at >= m.blocks);
            if (!stop || lane < __ffs((int)stop)) total.fold(left.first);
        }
        A sum = total.total();
        for (int far = WARP / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
        if (lane == from) write_row<WAY>(m.s, mine.mark, mine.tail + sum);
    }
}

/* COO's first launch: every row as if it had no entry. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    spmv_no_entries(const __grid_constant__ segment_args<T> m)
{
    let_next_start();
    for (int64_t i = this_thread(); i < m.s.a.rows; i += all_threads())
        write_row<COORDINATES>(m.s, int32_t(i + 1), typename sum_of<T>::type(0));
}
