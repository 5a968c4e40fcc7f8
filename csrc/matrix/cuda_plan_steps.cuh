/* The two steps of making a plan: a stable counting sort of the rows by their length class. All
 * blocks take both, in one launch, and all must have ended the first before the second begins.
 *
 *     rows          | warp 0 | warp 1 | ... | last warp | warp 0 | ...     a stretch of rows each
 *                   |              block 0              |  block 1
 *     count_rows    lines[block][class]: how many rows of the class the block has
 *     wait_for_all
 *     place_rows    where the first of them go; order, first, segments, starts; the header
 *
 * `lines` has a number for each class, one for the slots of long rows, and one for each step by
 * which pieces are ordered. Every block adds up those of all blocks for itself: they are so few
 * that the loads are in flight together, while all blocks would wait for one that did it for them.
 * ptr and lines are read through the caches, not past them, since the same launch has just written
 * them. */
#pragma once

#include "cuda_plan.cuh"

#include <cooperative_groups.h>

/* Classes, in the plan's order. Rows of more than 32 entries that are not long have 8 classes for
 * each octave of lengths. */
enum {
    WARPS = BLOCK / WARP,
    HUBS = 0,
    LONG = 1,
    OCTAVES = 7, /* above 32 entries, up to LONGEST */
    ABOVE_16 = LONG + 8 * OCTAVES + 1,
    ABOVE_8,
    ABOVE_0,
    EMPTY,
    CLASSES,
    SLOTS = CLASSES, /* the pieces of long rows, in row order */
    SHARES = 64,     /* and in steps by their place within the row */
    PIECES = SLOTS + 1,
    LINES = PIECES + SHARES,
    WARPS_MAX = 32, /* of a block */
};

static __device__ __forceinline__ int class_of(int64_t length, int32_t segment)
{
    if (length > segment) return length > int64_t(segment) * HUB_PIECES ? HUBS : LONG;
    if (length <= SINGLE)
        return length > 16 ? ABOVE_16 : length > 8 ? ABOVE_8 : length ? ABOVE_0 : EMPTY;
    /* The octave of n, and in it the three bits below its leading one. */
    const int n = (int)length - 1, octave = 31 - __clz(n);
    return ABOVE_16 - 1 - ((octave - 5) * 8 + ((n >> (octave - 3)) & 7));
}

/* How many pieces a row has in the list of pieces; a row that is not long has none there. */
static __device__ __forceinline__ int long_pieces(int64_t length, int32_t segment)
{
    return length > segment ? (int)pieces_of(length, segment) : 0;
}

/* Every block waits here for all others. */
template <bool ALONE> static __device__ __forceinline__ void wait_for_all(void)
{
    ALONE ? __syncthreads() : cooperative_groups::this_grid().sync();
}

struct rows_view {
    csr_view a;
    int32_t segment, stretch; /* rows per warp */
    int32_t *lines;           /* [blocks][LINES] */
};

/* The entries of a row, for any ptr: ptr may fall, or point outside, where it was changed after the
 * check of its matrix. Of rows behind the last there are none. */
struct row_entries {
    int64_t begin, length;
};
static __device__ __forceinline__ row_entries entries_of(const csr_view &a, int64_t row)
{
    if (row >= a.rows) return row_entries{0, 0};
    const int64_t begin = clamp(a.ptr[row], 0, a.nnz), end = clamp(a.ptr[row + 1], 0, a.nnz);
    return row_entries{begin, end > begin ? end - begin : 0};
}

/* The first row of the warp's stretch. */
static __device__ __forceinline__ int64_t first_row(const rows_view &v)
{
    return (int64_t(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP) * v.stretch;
}

/* The sum of the numbers of the warp's lanes up to this one. */
static __device__ __forceinline__ int sum_to_lane(int v)
{
    for (int d = 1; d < WARP; d *= 2) {
        const int below = __shfl_up_sync(ALL, v, d);
        if (int(threadIdx.x) % WARP >= d) v += below;
    }
    return v;
}

/* Deals the pieces of a warp's 32 rows to its lanes, in order, and calls take(lane, piece, step,
 * same) until all are dealt: which lane has the row, which of the row's pieces it is, in which step
 * its middle lies, and which lanes now have pieces of this step. A lane that gets no piece is told
 * the step SHARES. Returns how many pieces there are. A row has fewer than 2^23 of them, since it
 * has at most 2^34 entries. */
template <class Take> static __device__ __forceinline__ int for_pieces(int pieces, Take take)
{
    const int up_to = sum_to_lane(pieces), all = __shfl_sync(ALL, up_to, WARP - 1);
#pragma unroll 1
    for (int at = threadIdx.x % WARP; at < (all + WARP - 1) / WARP * WARP; at += WARP) {
        int lane = 0; /* that many lanes' pieces end before this one */
        for (int half = WARP / 2; half; half /= 2)
            lane += __shfl_sync(ALL, up_to, lane + half - 1) <= at ? half : 0;
        const int count = __shfl_sync(ALL, pieces, lane);
        const int piece = at - (__shfl_sync(ALL, up_to, lane) - count);
        const int step = at < all ? (2u * piece + 1) * SHARES / (2u * count) : unsigned(SHARES);
        take(lane, piece, step, __match_any_sync(ALL, step));
    }
    return all;
}

/* The first step: counts the rows of each class in a warp's stretch, into its own line of shared
 * memory, and adds up these lines. Lanes of one class elect the lowest, which adds for all, and so
 * do those with pieces of one step: no two threads write one counter. */
static __device__ void count_rows(const rows_view &v, int counter[][LINES])
{
    const int lane = threadIdx.x % WARP;
    int *const mine = counter[threadIdx.x / WARP];
    for (int c = lane; c < LINES; c += WARP) mine[c] = 0;
    __syncwarp();
    for (int k = 0; k < v.stretch; k += WARP) {
        const int64_t row = first_row(v) + k + lane, length = entries_of(v.a, row).length;
        const int c = row < v.a.rows ? class_of(length, v.segment) : CLASSES;
        const unsigned same = __match_any_sync(ALL, c);
        if (c < CLASSES && lane == __ffs(same) - 1) mine[c] += __popc(same);
        __syncwarp();
        const int pieces = long_pieces(length, v.segment);
        if (!__any_sync(ALL, pieces)) continue;
        const int all = for_pieces(pieces, [&](int, int, int step, unsigned same) {
            if (step < SHARES && lane == __ffs(same) - 1) mine[PIECES + step] += __popc(same);
            __syncwarp();
        });
        if (lane == 0) mine[SLOTS] += all;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < LINES; c += blockDim.x) {
        int sum = 0;
        for (int w = 0; w < blockDim.x / WARP; w++) sum += counter[w][c];
        v.lines[blockIdx.x * LINES + c] = sum;
    }
}

/* The sum of the numbers of the block's threads before this one, and of all: each warp scans its
 * lanes by shuffles, and then the warps' sums, which meet in `sums`, scratch of the block. */
static __device__ int sum_before(int number, int *sums, int *total)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int inclusive = sum_to_lane(number);
    if (lane == WARP - 1) sums[warp] = inclusive;
    __syncthreads();
    const int up_to = sum_to_lane(lane < blockDim.x / WARP ? sums[lane] : 0);
    *total = __shfl_sync(ALL, up_to, WARP - 1);
    return inclusive - number + (warp ? __shfl_sync(ALL, up_to, warp - 1) : 0);
}

/* Makes counts of the warps their first places. Classes follow each other in the plan, and steps in
 * the list of pieces; a block's rows come behind those of a class in blocks and warps before. Where
 * classes begin, and how many pieces there are in all, comes to `begins`. */
static __device__ void find_places(const rows_view &v, int counter[][LINES], int begins[LINES])
{
    enum { SIDE = 128 }; /* threads that have a line each; others have blocks of their own */
    static_assert(int(LINES) <= int(SIDE), "a thread has a line");
    __shared__ int before[LINES], sums[2][WARPS_MAX];
    const int c = threadIdx.x, line = c % SIDE;
    if (c < LINES) begins[c] = before[c] = 0;
    __syncthreads();
    if (line < LINES) {
        int all = 0, earlier = 0;
#pragma unroll 8 /* so that loads are in flight together */
        for (int k = c / SIDE; k < gridDim.x; k += blockDim.x / SIDE) {
            const int there = v.lines[k * LINES + line];
            all += there;
            earlier += k < blockIdx.x ? there : 0;
        }
        atomicAdd(&begins[line], all);
        atomicAdd(&before[line], earlier);
    }
    __syncthreads();
    int total;
    const int here = c < LINES ? begins[c] : 0;
    const int rows = sum_before(c < CLASSES ? here : 0, sums[0], &total);
    const int pieces = sum_before(c > SLOTS ? here : 0, sums[1], &total);
    if (c < LINES) {
        const int begin = c < CLASSES ? rows : c > SLOTS ? pieces : 0;
        begins[c] = c == SLOTS ? total : begin;
        int next = begin + before[c];
        for (int w = 0; w < blockDim.x / WARP; w++) {
            const int count = counter[w][c];
            counter[w][c] = next;
            next += count;
        }
    }
    __syncthreads();
}

/* What is used of the plan ends behind the last piece. */
static __device__ void write_header(const rows_view &v, const plan_view &p, const int begins[LINES])
{
    const int segments = begins[SLOTS];
    const int64_t used =
        reinterpret_cast<const char *>(p.segments + clamp(segments, 0, p.segments_max)) -
        reinterpret_cast<const char *>(p.header);
    *const_cast<plan_header *>(p.header) =
        plan_header{v.a.rows,
                    v.a.nnz,
                    5,
                    v.segment,
                    begins[LONG],
                    begins[LONG + 1],
                    segments,
                    {begins[ABOVE_16], begins[ABOVE_8], begins[ABOVE_0], begins[EMPTY]},
                    0,
                    used};
}

/* The shares of SpMV that begin behind the first of a row's entries from `begin` on, and not behind
 * their end, begin with the row behind it. */
static __device__ __forceinline__ void place_starts(int32_t *starts, int64_t nnz, int row,
                                                    int64_t begin, int64_t length)
{
    const int64_t end = min(begin + length, nnz - 1) / PLAN_SHARE;
#pragma unroll 1
    for (int64_t k = begin / PLAN_SHARE + 1; k <= end; k++) starts[k] = row + 1;
}

/* Zeros behind the last of starts, of order and of first, where arrays have room left: plans of one
 * matrix have the same bytes, and a copy of a plan reads nothing that was never written. */
static __device__ void place_rest(const csr_view &a, const plan_view &p, int long_rows)
{
    int32_t *const starts = plan_starts(p.header);
    const int64_t shares = plan_shares(a.nnz), step = int64_t(gridDim.x) * blockDim.x;
    const int32_t *const from[] = {starts + shares + 1, p.order + a.rows,
                                   p.first + clamp(long_rows, 0, p.long_rows_max)};
    const void *const to[] = {p.order, p.first, p.segments};
    const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int k = 0; k < 3; k++)
#pragma unroll 1
        for (int64_t i = thread; from[k] + i < to[k]; i += step)
            const_cast<int32_t *>(from[k])[i] = 0;
    if (thread == 0) starts[0] = 0, starts[shares] = (int32_t)a.rows;
}

/* The second step: a warp walks over its rows again, 32 at a time, in the same order as it counted
 * them. A row goes behind those of its class in blocks, warps and lanes before. */
static __device__ void place_rows(const rows_view &v, const plan_view &p, int counter[][LINES])
{
    int32_t *const order = const_cast<int32_t *>(p.order);
    int32_t *const first = const_cast<int32_t *>(p.first);
    uint4 *const segments = const_cast<uint4 *>(p.segments);
    int32_t *const starts = plan_starts(p.header);
    __shared__ int begins[LINES];
    find_places(v, counter, begins);
    if (blockIdx.x == 0 && threadIdx.x == 0) write_header(v, p, begins);
    place_rest(v.a, p, begins[LONG + 1]);
    const int lane = threadIdx.x % WARP;
    int *const mine = counter[threadIdx.x / WARP];
    const unsigned below = (1u << lane) - 1;
    for (int k = 0; k < v.stretch; k += WARP) {
        const int64_t row = first_row(v) + k + lane;
        const row_entries e = entries_of(v.a, row);
        /* Lanes of one class take neighbouring places, in the order of lanes. */
        const int c = row < v.a.rows ? class_of(e.length, v.segment) : CLASSES;
        const unsigned same = __match_any_sync(ALL, c);
        const int position = c < CLASSES ? mine[c] + __popc(same & below) : 0;
        __syncwarp();
        if (c < CLASSES) {
            if (position >= 0 && position < v.a.rows) order[position] = (int32_t)row;
            if (lane == __ffs(same) - 1) mine[c] += __popc(same);
        }

        const int pieces = long_pieces(e.length, v.segment);
        if (!pieces) place_starts(starts, v.a.nnz, (int)row, e.begin, e.length);
        __syncwarp();
        if (!__any_sync(ALL, pieces)) continue;
        const int slot = mine[SLOTS] + sum_to_lane(pieces) - pieces;
        if (pieces && position >= 0 && position < p.long_rows_max) first[position] = slot;
        const int each = pieces ? (int)piece_length(e.length, pieces) : 0;
        const int all = for_pieces(pieces, [&](int from, int piece, int step, unsigned same) {
            const int64_t length = __shfl_sync(ALL, e.length, from);
            const int most = __shfl_sync(ALL, each, from), its_slot = __shfl_sync(ALL, slot, from);
            const int64_t skip = min(int64_t(piece) * most, length);
            const int64_t begin = __shfl_sync(ALL, e.begin, from) + skip;
            const int64_t count = min(length - skip, int64_t(most)), its_row = row - lane + from;
            if (step < SHARES) {
                const int at = mine[PIECES + step] + __popc(same & below);
                if (at >= 0 && at < p.segments_max)
                    segments[at] = pack_piece(its_row, its_slot + piece, begin, count);
                place_starts(starts, v.a.nnz, (int)its_row, begin, count);
            }
            __syncwarp();
            if (step < SHARES && lane == __ffs(same) - 1) mine[PIECES + step] += __popc(same);
            __syncwarp();
        });
        if (lane == 0) mine[SLOTS] += all;
        __syncwarp();
    }
}
