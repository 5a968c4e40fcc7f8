/* Making a plan (plan.cuh): a stable counting sort of the rows by length class, and the list of the
 * pieces of long rows.
 *
 * Classes fall: long, then 8 per octave, exact below 16, empty last. A block owns ROWS neighbouring
 * rows, each of its warps a stretch of them. `count` leaves one number per class and block (and one
 * line for the pieces), `scan` turns them into first positions, `place` walks the same rows in the
 * same order and ranks them by a ballot among equal classes: stable, without atomics on memory, the
 * same plan every time. Three launches and no synchronisation, whatever the matrix. */
#include "plan.cuh"

enum {
    WARPS = BLOCK / WARP,
    ROWS = 2048,           /* per block */
    STRETCH = ROWS / WARPS, /* per warp */
    CLASSES = 64,
    LINES = CLASSES + 1, /* and the pieces of long rows */
};

/* 0: longer than `segment`; 1 .. 62: falling length; 63: empty. Lengths 1 to 16 have a class each;
 * above, the three bits below the leading one count, which suffices up to 512. */
static __device__ __forceinline__ int class_of(int64_t length, int32_t segment)
{
    if (length > segment) return 0;
    if (length <= 16) return CLASSES - 1 - (int)length;
    const int n = (int)length - 1, octave = 31 - __clz(n); /* 4 .. 8 */
    return CLASSES - 1 - 16 - ((octave - 4) * 8 + ((n >> (octave - 3)) & 7) + 1);
}

static __device__ __forceinline__ int long_pieces(int64_t length, int32_t segment)
{
    return length > segment ? (int)pieces_of(length, segment) : 0;
}

struct rows_view {
    csr_view a;
    int32_t segment, blocks;
    int32_t *lines; /* [LINES][blocks] */
};

/* How many rows of each class the warp's stretch has, into its own line of shared memory. Lanes of
 * one class elect the lowest, which adds for all: no two threads write one counter. */
static __device__ int count_stretch(const rows_view &v, int64_t first, int *counter)
{
    const int lane = threadIdx.x % WARP;
    int pieces = 0;
    for (int k = 0; k < STRETCH; k += WARP) {
        const int64_t row = first + k + lane;
        int64_t begin;
        const int64_t length = row < v.a.rows ? row_range(v.a, row, &begin) : 0;
        const int c = row < v.a.rows ? class_of(length, v.segment) : CLASSES;
        const unsigned same = __match_any_sync(ALL, c);
        if (c < CLASSES && lane == __ffs(same) - 1) counter[c] += __popc(same);
        __syncwarp();
        pieces += long_pieces(length, v.segment);
    }
    for (int d = WARP / 2; d; d /= 2) pieces += __shfl_xor_sync(ALL, pieces, d);
    return pieces;
}

static __device__ void count_block(const rows_view &v, int counter[WARPS][LINES])
{
    for (int k = threadIdx.x; k < WARPS * LINES; k += BLOCK) (&counter[0][0])[k] = 0;
    __syncthreads();
    const int warp = threadIdx.x / WARP;
    const int pieces = count_stretch(v, int64_t(blockIdx.x) * ROWS + warp * STRETCH, counter[warp]);
    if (threadIdx.x % WARP == 0) counter[warp][CLASSES] = pieces;
    __syncthreads();
}

static __global__ void __launch_bounds__(BLOCK) plan_count(const rows_view v)
{
    __shared__ int counter[WARPS][LINES];
    count_block(v, counter);
    for (int c = threadIdx.x; c < LINES; c += BLOCK) {
        int sum = 0;
        for (int w = 0; w < WARPS; w++) sum += counter[w][c];
        v.lines[int64_t(c) * v.blocks + blockIdx.x] = sum;
    }
}

/* Exclusive sums of `count` numbers in place by one block, which carries the total on. */
static __device__ int scan_line(int32_t *line, int64_t count, int carry, int *sums)
{
    enum { EACH = 4 };
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (int64_t from = 0; from < count; from += int64_t(blockDim.x) * EACH) {
        const int64_t mine = from + int64_t(threadIdx.x) * EACH;
        int v[EACH], sum = 0;
        for (int k = 0; k < EACH; k++) {
            v[k] = mine + k < count ? line[mine + k] : 0;
            sum += v[k];
        }
        int inclusive = sum;
        for (int d = 1; d < WARP; d *= 2) {
            const int below = __shfl_up_sync(ALL, inclusive, d);
            if (lane >= d) inclusive += below;
        }
        if (lane == WARP - 1) sums[warp] = inclusive;
        __syncthreads();
        int before = carry + inclusive - sum, total = 0;
        for (int w = 0; w < warps; w++) {
            if (w < warp) before += sums[w];
            total += sums[w];
        }
        for (int k = 0; k < EACH; k++) {
            if (mine + k < count) line[mine + k] = before;
            before += v[k];
        }
        carry += total;
        __syncthreads();
    }
    return carry;
}

/* One block: there are 65 numbers per 2048 rows. Classes follow each other in one running sum; the
 * pieces start anew. */
static __global__ void __launch_bounds__(1024) plan_scan(const rows_view v, plan_header *header)
{
    __shared__ int sums[1024 / WARP];
    const int64_t empty = int64_t(CLASSES - 1) * v.blocks;
    scan_line(v.lines, int64_t(CLASSES) * v.blocks, 0, sums);
    const int segments = scan_line(v.lines + int64_t(CLASSES) * v.blocks, v.blocks, 0, sums);
    __syncthreads();
    if (threadIdx.x == 0)
        *header = plan_header{v.a.rows,        v.a.nnz,  1,
                              v.segment,       v.lines[v.blocks], segments,
                              v.lines[empty], {0, 0, 0, 0, 0, 0, 0}};
}

static __global__ void __launch_bounds__(BLOCK)
    plan_place(const rows_view v, int32_t *order, int32_t *first, uint2 *segments,
               int32_t long_rows_max, int32_t segments_max)
{
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
    for (int k = 0; k < STRETCH; k += WARP) {
        const int64_t row = int64_t(blockIdx.x) * ROWS + warp * STRETCH + k + lane;
        int64_t begin;
        const int64_t length = row < v.a.rows ? row_range(v.a, row, &begin) : 0;
        const int c = row < v.a.rows ? class_of(length, v.segment) : CLASSES;
        const unsigned same = __match_any_sync(ALL, c);
        const int position = c < CLASSES ? counter[warp][c] + __popc(same & below) : 0;
        __syncwarp();
        if (c < CLASSES) {
            if (position >= 0 && position < v.a.rows) order[position] = (int32_t)row;
            if (lane == __ffs(same) - 1) counter[warp][c] += __popc(same);
        }

        /* Long rows of the 32, one after the other: the warp lists their pieces together. */
        const int pieces = long_pieces(length, v.segment);
        unsigned left = __ballot_sync(ALL, pieces > 0);
        int next = counter[warp][CLASSES];
        for (; left; left &= left - 1) {
            const int from = __ffs(left) - 1;
            const int count = __shfl_sync(ALL, pieces, from);
            const int at = __shfl_sync(ALL, position, from);
            const uint32_t the_row = (uint32_t)__shfl_sync(ALL, row, from);
            const int64_t whole = __shfl_sync(ALL, length, from);
            if (lane == 0 && at >= 0 && at < long_rows_max) first[at] = next;
            for (int piece = lane; piece < count; piece += WARP)
                if (next >= 0 && next + piece < segments_max)
                    segments[next + piece] = make_uint2(the_row, piece_code(whole, count, piece));
            next += count;
        }
        __syncwarp();
        if (lane == 0) counter[warp][CLASSES] = next;
        __syncwarp();
    }
}

size_t plan_scratch(int64_t rows)
{
    return (size_t)LINES * (size_t)ceil_div(rows > 0 ? rows : 1, ROWS) * sizeof(int32_t);
}

void plan_build(cudaStream_t stream, const fmm_csr *a, void *plan, void *scratch)
{
    const plan_view p = view_plan(plan, a->rows, a->nnz);
    const rows_view v = {view_csr(a), p.segment, (int32_t)ceil_div(a->rows > 0 ? a->rows : 1, ROWS),
                         static_cast<int32_t *>(scratch)};
    plan_count<<<(unsigned)v.blocks, BLOCK, 0, stream>>>(v);
    plan_scan<<<1, 1024, 0, stream>>>(v, const_cast<plan_header *>(p.header));
    plan_place<<<(unsigned)v.blocks, BLOCK, 0, stream>>>(
        v, const_cast<int32_t *>(p.order), const_cast<int32_t *>(p.first),
        const_cast<uint2 *>(p.segments), p.long_rows_max, p.segments_max);
}

/* ---- for plan's entry in check.c ---- */

extern "C" size_t fmm_cuda_plan_bytes(const fmm_csr *a)
{
    return plan_possible(a->rows, a->nnz) ? plan_size(a->rows, a->nnz) : 0;
}

extern "C" fmm_status fmm_cuda_plan_workspace(const fmm_csr *a, size_t *bytes)
{
    *bytes = plan_possible(a->rows, a->nnz) ? plan_scratch(a->rows) : 0;
    return FMM_OK;
}

extern "C" fmm_status fmm_cuda_plan(const fmm_exec *exec, const fmm_csr *a, void *plan)
{
    if (!plan_possible(a->rows, a->nnz)) return FMM_OK;
    REQUIRE(plan && (uintptr_t)plan % 16 == 0, FMM_INVALID_ARGUMENT,
            "plan: the memory for the plan must be given, aligned to 16 bytes");
    int before;
    TRY(cuda_enter("plan", exec, &before));
    plan_build(stream_of(exec), a, plan, exec->workspace);
    return cuda_leave("plan", exec, before);
}
