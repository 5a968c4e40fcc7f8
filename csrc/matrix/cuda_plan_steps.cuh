/* The steps of making a plan: a stable counting sort of the rows by their length class. Each step
 * is taken by all blocks, and all blocks must have ended it before the next begins. So a step is a
 * launch of its own (cuda_plan.cu), or the blocks of one launch wait for each other (cuda_sort.cu).
 *
 *     rows          | warp 0 | warp 1 | ... | warp 7 | warp 0 | ...     a stretch of rows each
 *                   |             block 0            |  block 1
 *     count_rows    lines[class][block]: how many rows of the class the block has
 *     scan_classes  lines[class][block]: where the first of them goes; the header
 *     place_rows    order, first and segments; starts
 *
 * `lines` has a line for each class, one for the slots of long rows, and one for each step by which
 * pieces are ordered. ptr is read through the caches, not past them, since the launch of
 * cuda_sort.cu has just written it. */
#pragma once

#include "cuda_plan.cuh"

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

/* The first of a row's pieces whose middle lies in the given step, of SHARES in the row. */
static __device__ __forceinline__ int piece_at(int pieces, int share)
{
    return int((2 * int64_t(pieces) * share + SHARES - 1) / (2 * SHARES));
}

struct rows_view {
    csr_view a;
    int32_t segment, blocks, stretch; /* rows per warp */
    int32_t *lines;                   /* [LINES][blocks] */
};

/* Entries of a row, for any ptr: ptr may fall, or point outside, where it was changed after the
 * check of its matrix. */
static __device__ __forceinline__ int64_t length_of(const csr_view &a, int64_t row)
{
    const int64_t begin = clamp(a.ptr[row], 0, a.nnz), end = clamp(a.ptr[row + 1], 0, a.nnz);
    return end > begin ? end - begin : 0;
}

/* Counts the rows of each class in the warp's stretch, into its own line of shared memory. Lanes of
 * one class elect the lowest, which adds for all: no two threads write one counter. */
static __device__ void count_block(const rows_view &v, int counter[WARPS][LINES])
{
    for (int k = threadIdx.x; k < WARPS * LINES; k += BLOCK) (&counter[0][0])[k] = 0;
    __syncthreads();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t first = (int64_t(blockIdx.x) * WARPS + warp) * v.stretch;
    for (int k = 0; k < v.stretch; k += WARP) {
        const int64_t row = first + k + lane, length = row < v.a.rows ? length_of(v.a, row) : 0;
        const int c = row < v.a.rows ? class_of(length, v.segment) : CLASSES;
        const unsigned same = __match_any_sync(ALL, c);
        if (c < CLASSES && lane == __ffs(same) - 1) counter[warp][c] += __popc(same);
        __syncwarp();
        /* The pieces need no order among the lanes yet, only their number. */
        const int pieces = long_pieces(length, v.segment);
        if (pieces) atomicAdd(&counter[warp][SLOTS], pieces);
        for (int s = 0; s < SHARES && pieces; s++)
            if (const int here = piece_at(pieces, s + 1) - piece_at(pieces, s); here)
                atomicAdd(&counter[warp][PIECES + s], here);
    }
    __syncthreads();
}

/* The first step: what the block's warps counted, added up. */
static __device__ void count_rows(const rows_view &v)
{
    __shared__ int counter[WARPS][LINES];
    count_block(v, counter);
    for (int c = threadIdx.x; c < LINES; c += BLOCK) {
        int sum = 0;
        for (int w = 0; w < WARPS; w++) sum += counter[w][c];
        v.lines[int64_t(c) * v.blocks + blockIdx.x] = sum;
    }
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

/* The sum of the numbers of the block's threads before this one, and of all: each warp scans its
 * lanes by shuffles, and the warps' sums meet in `sums`, scratch of the block. */
static __device__ int sum_before(int number, int *sums, int *total)
{
    const int warp = threadIdx.x / WARP, inclusive = sum_to_lane(number);
    if (threadIdx.x % WARP == WARP - 1) sums[warp] = inclusive;
    __syncthreads();
    int before = inclusive - number;
    *total = 0;
    for (int w = 0; w < int(blockDim.x / WARP); w++) {
        if (w < warp) before += sums[w];
        *total += sums[w];
    }
    return before;
}

/* Makes each of `count` numbers the sum of `carry` and of those before it, by one block. Each
 * thread takes EACH neighbours at a time. Returns the sum of all, for whoever goes on from there.
 */
static __device__ int scan_line(int32_t *line, int64_t count, int carry, int *sums)
{
    enum { EACH = 4 };
    for (int64_t from = 0; from < count; from += int64_t(blockDim.x) * EACH) {
        const int64_t mine = from + int64_t(threadIdx.x) * EACH;
        int v[EACH], sum = 0;
        for (int k = 0; k < EACH; k++) {
            v[k] = mine + k < count ? line[mine + k] : 0;
            sum += v[k];
        }
        int total, before = carry + sum_before(sum, sums, &total);
        for (int k = 0; k < EACH; k++) {
            if (mine + k < count) line[mine + k] = before;
            before += v[k];
        }
        carry += total;
        __syncthreads();
    }
    return carry;
}

/* The second step, by one block, since there are only some 130 numbers for each block of rows.
 * Classes follow each other in one running sum; the slots start anew, and so do the steps. The
 * first of a class's numbers is then where the class begins. */
static __device__ void scan_classes(const rows_view &v, const plan_view &p)
{
    __shared__ int sums[1024 / WARP];
    scan_line(v.lines, int64_t(CLASSES) * v.blocks, 0, sums);
    const int segments = scan_line(v.lines + int64_t(SLOTS) * v.blocks, v.blocks, 0, sums);
    scan_line(v.lines + int64_t(PIECES) * v.blocks, int64_t(SHARES) * v.blocks, 0, sums);
    __syncthreads();
    if (threadIdx.x == 0) {
        const int32_t *const begins = v.lines;
        /* What is used of the plan ends behind the last piece. */
        const int64_t n = v.blocks, room = p.segments_max;
        const int64_t used = reinterpret_cast<const char *>(p.segments + clamp(segments, 0, room)) -
                             reinterpret_cast<const char *>(p.header);
        *const_cast<plan_header *>(p.header) = plan_header{
            v.a.rows,
            v.a.nnz,
            5,
            v.segment,
            begins[LONG * n],
            begins[(LONG + 1) * n],
            segments,
            {begins[ABOVE_16 * n], begins[ABOVE_8 * n], begins[ABOVE_0 * n], begins[EMPTY * n]},
            0,
            used};
    }
}

/* A row that is long. */
struct long_row {
    int64_t row, begin, length;
    int pieces, slot; /* how many; the slot of the first */
};

/* The row that another lane found. */
static __device__ __forceinline__ long_row row_of_lane(const long_row &r, int lane)
{
    return long_row{__shfl_sync(ALL, r.row, lane), __shfl_sync(ALL, r.begin, lane),
                    __shfl_sync(ALL, r.length, lane), __shfl_sync(ALL, r.pieces, lane),
                    __shfl_sync(ALL, r.slot, lane)};
}

/* Lists pieces begin, begin + step, ... before `end` from place `at` on, if there is room. */
static __device__ __forceinline__ void list(const plan_view &p, const long_row &r, int at,
                                            int begin, int end, int step)
{
    if (begin >= end) return;
    const int64_t each = piece_length(r.length, r.pieces);
    for (int piece = begin; piece < end; piece += step, at += step) {
        const int64_t skip = min(piece * each, r.length), left = r.length - skip;
        if (at >= 0 && at < p.segments_max)
            const_cast<uint4 *>(p.segments)[at] =
                pack_piece(r.row, r.slot + piece, r.begin + skip, min(left, each));
    }
}

/* The pieces of 32 neighbouring rows, one a lane, step by step and in a step in row order: a lane
 * lists those of its own row, the warp together those of a hub. `next` counts what was listed. */
static __device__ void list_pieces(const plan_view &p, const long_row &mine, int *next)
{
    const int lane = threadIdx.x % WARP;
    for (int s = 0; s < SHARES; s++) {
        const int begin = piece_at(mine.pieces, s), end = piece_at(mine.pieces, s + 1);
        if (!__any_sync(ALL, begin < end)) continue;
        const int up_to = sum_to_lane(end - begin), at = next[s] + up_to - (end - begin);
        if (mine.pieces <= HUB_PIECES) list(p, mine, at, begin, end, 1);
        for (unsigned left = __ballot_sync(ALL, mine.pieces > HUB_PIECES); left; left &= left - 1) {
            const int from = __ffs(left) - 1;
            const long_row hub = row_of_lane(mine, from);
            list(p, hub, __shfl_sync(ALL, at, from) + lane, piece_at(hub.pieces, s) + lane,
                 piece_at(hub.pieces, s + 1), WARP);
        }
        __syncwarp();
        if (lane == WARP - 1) next[s] += up_to;
        __syncwarp();
    }
}

/* The first row of each share of SpMV: a thread searches for each. */
static __device__ void place_starts(const csr_view &a, int32_t *starts)
{
    const int64_t count = plan_shares(a.nnz);
    for (int64_t k = this_thread(); k <= count; k += all_threads()) {
        int64_t low = k < count ? 0 : a.rows, high = a.rows;
        /* Rows in front of `low` begin before the share, those from `high` on do not. */
        while (low < high) {
            const int64_t row = (low + high) / 2;
            const bool before = a.ptr[row] < k * PLAN_SHARE;
            low = before ? row + 1 : low, high = before ? high : row;
        }
        starts[k] = int32_t(low);
    }
}

/* Zeros behind the last of starts, of order and of first, where arrays have room left: plans of one
 * matrix have the same bytes, and a copy of a plan reads nothing that was never written. */
static __device__ void place_rest(const csr_view &a, const plan_view &p)
{
    const int32_t *const from[] = {plan_starts(p.header) + plan_shares(a.nnz) + 1, p.order + a.rows,
                                   p.first + clamp(p.header->long_rows, 0, p.long_rows_max)};
    const void *const to[] = {p.order, p.first, p.segments};
    for (int k = 0; k < 3; k++)
        for (int64_t i = this_thread(); from[k] + i < to[k]; i += all_threads())
            const_cast<int32_t *>(from[k])[i] = 0;
}

/* The third step: a warp walks over its rows again, 32 at a time, in the same order as it counted
 * them. A row goes behind those of its class in blocks, warps and lanes before. */
static __device__ void place_rows(const rows_view &v, const plan_view &p)
{
    place_starts(v.a, plan_starts(p.header));
    place_rest(v.a, p);
    int32_t *const order = const_cast<int32_t *>(p.order);
    int32_t *const first = const_cast<int32_t *>(p.first);
    __shared__ int counter[WARPS][LINES];
    count_block(v, counter);
    /* Counts of the warps become their first positions: the block's, then the warps' in turn. */
    for (int c = threadIdx.x; c < LINES; c += BLOCK) {
        int next = v.lines[int64_t(c) * v.blocks + blockIdx.x];
        for (int w = 0; w < WARPS; w++) {
            const int here = counter[w][c];
            counter[w][c] = next;
            next += here;
        }
    }
    __syncthreads();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const unsigned below = (1u << lane) - 1;
    for (int k = 0; k < v.stretch; k += WARP) {
        const int64_t row = (int64_t(blockIdx.x) * WARPS + warp) * v.stretch + k + lane;
        const int64_t length = row < v.a.rows ? length_of(v.a, row) : 0;
        /* Lanes of one class take neighbouring places, in the order of lanes. */
        const int c = row < v.a.rows ? class_of(length, v.segment) : CLASSES;
        const unsigned same = __match_any_sync(ALL, c);
        const int position = c < CLASSES ? counter[warp][c] + __popc(same & below) : 0;
        __syncwarp();
        if (c < CLASSES) {
            if (position >= 0 && position < v.a.rows) order[position] = (int32_t)row;
            if (lane == __ffs(same) - 1) counter[warp][c] += __popc(same);
        }

        const int pieces = long_pieces(length, v.segment), up_to = sum_to_lane(pieces);
        __syncwarp();
        if (!__any_sync(ALL, pieces)) continue;
        const int slot = counter[warp][SLOTS] + up_to - pieces;
        if (pieces && position >= 0 && position < p.long_rows_max) first[position] = slot;
        const int64_t begin = pieces ? clamp(v.a.ptr[row], 0, v.a.nnz) : 0;
        list_pieces(p, long_row{row, begin, length, pieces, slot}, &counter[warp][PIECES]);
        if (lane == WARP - 1) counter[warp][SLOTS] += up_to;
        __syncwarp();
    }
}
