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

/* Warps of a block; rows that are skipped at once if empty. */
enum { TEAM = BLOCK / WARP, SLICE = 2048 };

/* csr_segmented, whose lanes have neighbours where rows are short; merge; coo. */
enum segment_way { SHORT_ROWS, LONG_ROWS, PATH, COORDINATES };

/* Entries of a lane and of a warp. Where rows are long, most groups have no mark and cost nothing
 * but their loads: with four entries tolokers takes 1.1 times as long, ogbl_ddi_train 1.04 times,
 * proteins-size 0.97 times (H200). */
static __host__ __device__ constexpr int each_of(int way) { return way == LONG_ROWS ? 8 : 4; }
static __host__ __device__ constexpr int length_of_share(int way) { return WARP * each_of(way); }

/* Rows are named by marks: their number plus one; 0 is no row, and -1 one outside the matrix. What
 * a block leaves: the sum before its first mark, or of all it has; the last mark and its sum. */
template <class A> struct record_of {
    A first, tail;
    int32_t mark;
};

template <class T> struct segment_args {
    spmv_args<T> s;
    const int32_t *starts; /* where shares' rows begin */
    record_of<typename sum_of<T>::type> *records;
    int32_t shares, blocks, slices; /* slices: those of csr_segmented's rows */
    bool wide;                      /* columns and values lie as loads of 16 bytes want them */
};

/* What a row adds up to: into the sums of HYB, whose entries are COO's, or finished. A row outside
 * is nobody's. */
template <class T>
static __device__ __forceinline__ void write_row(const spmv_args<T> &s, int32_t mark,
                                                 typename sum_of<T>::type sum)
{
    if (mark <= 0) return;
    if (s.sums)
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

/* Adds up what the lanes of a warp have, one behind the other: writes the rows that begin in one
 * lane's part and end in another's, and returns the record of all, which every lane gets. */
template <class T, class A>
static __device__ __forceinline__ record_of<A> join_lanes(const segment_args<T> &m,
                                                          record_of<A> mine)
{
    const int lane = threadIdx.x % WARP;
    const unsigned marked = __ballot_sync(ALL, mine.mark != 0), below = marked & (1u << lane) - 1u;
    const A sum = add_open(mine.mark ? mine.tail : mine.first, marked);
    const A before = __shfl_up_sync(ALL, sum, 1);
    if (lane) mine.first += before;
    const int32_t open = __shfl_sync(ALL, mine.mark, below ? 31 - __clz((int)below) : 0);
    if (mine.mark && below) write_row(m.s, open, mine.first);
    record_of<A> all;
    all.tail = __shfl_sync(ALL, sum, WARP - 1);
    all.mark = __shfl_sync(ALL, mine.mark, marked ? 31 - __clz((int)marked) : 0);
    all.first = __shfl_sync(ALL, mine.first, marked ? __ffs((int)marked) - 1 : 0);
    if (!marked) all.first = all.tail;
    return all;
}

/* The record of a block: lane w of the first warp has that of warp w. */
template <class T, class A>
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
    all = join_lanes(m, all);
    if (lane) return;
    if (m.blocks == 1)
        write_row(m.s, all.mark, all.tail);
    else
        m.records[blockIdx.x] = all;
}

/* ---- launches beside the one that adds up ---- */

/* The second launch. Lane k of a warp has the record of block k, and the warp adds up its records
 * as a block does those of its warps. For the row that is open behind the last of them it goes on
 * over the next records, up to the one that ends it.
 *
 * All of it is done twice. The first round has no records and writes nothing; it takes place while
 * the first launch still runs, and brings the instructions from memory, which the caches need not
 * have: else every few of them would be waited for after that launch has ended. */
template <class T>
static __global__ void __launch_bounds__(BLOCK) spmv_join(const __grid_constant__ segment_args<T> m)
{
    typedef typename sum_of<T>::type A;
    const int64_t k = this_thread(), lane = threadIdx.x % WARP;
    /* Slices of rows that have no entry, which nobody else writes. */
    for (int64_t slice = k / WARP; slice < m.slices; slice += all_threads() / WARP) {
        const int64_t *const ptr = m.s.a.ptr + slice * SLICE;
        if (__ldg(ptr) != __ldg(ptr + SLICE)) continue;
        for (int r = (int)lane; r < SLICE; r += WARP)
            write_row(m.s, int32_t(slice * SLICE + r + 1), A(0));
    }
    const record_of<A> none = {A(0), A(0), 0};
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        if (round) wait_for_previous();
        const int blocks = m.blocks > 1 ? round * m.blocks : 0; /* one alone leaves no record */
        const record_of<A> mine = k < blocks ? m.records[k] : none;
        record_of<A> next = k + WARP < blocks ? m.records[k + WARP] : none;
        const record_of<A> all = join_lanes(m, mine);
        if (round && all.mark <= 0) break;
        folded<A> total;
        total.start();
        for (int64_t at = k + WARP;; at += WARP) {
            const unsigned stop = __ballot_sync(ALL, next.mark != 0 || at >= blocks);
            if (!stop || lane < __ffs((int)stop)) total.fold(next.first);
            if (stop) break;
            next = at + WARP < blocks ? m.records[at + WARP] : none;
        }
        const A rest = lanes_sum(total.total());
        if (lane == 0) write_row(m.s, all.mark, all.tail + rest);
    }
}

/* COO's first launch: every row as if it had no entry. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    spmv_no_entries(const __grid_constant__ segment_args<T> m)
{
    let_next_start();
    for (int64_t i = this_thread(); i < m.s.a.rows; i += all_threads())
        write_row(m.s, int32_t(i + 1), typename sum_of<T>::type(0));
}
