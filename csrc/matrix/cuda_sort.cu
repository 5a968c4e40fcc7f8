/* The sorts of cuda_compress.cu for few entries, a launch each. A small graph waits for launches,
 * of which two radix sorts with what stands around them take a dozen.
 *
 * A radix sort of 32-bit keys, row and column side by side, by digits of 8 bits from the lowest:
 *
 *     keys        | warp 0: a stretch | warp 1 | ... | warp 7 |   block 0, block 1, ...
 *     rank        by a ballot among equal digits, in the warp's registers
 *     place       = what all have of lower digits                 counted by all blocks
 *                 + what blocks and warps before this one have of the digit
 *                 + the rank
 *
 * Each warp owns a stretch of neighbouring entries, so equal keys stay in order: the sort is
 * stable, and the same every time, with no atomics on memory. All blocks are there at once and wait
 * for each other between the steps, those of the plan (cuda_plan_steps.cuh) included. One block
 * waits for nobody but its own threads. */
#include "cuda_sort.cuh"
#include "cuda_plan_steps.cuh"
#include "../cuda/device.h"

enum {
    DIGIT = 8,
    DIGITS = 1 << DIGIT,
    EACH = 16, /* entries of a thread */
    BLOCKS_MAX = 128,
};
static_assert(int(DIGITS) == int(BLOCK), "a thread adds up one digit");
static_assert(int(BLOCKS_MAX) <= int(BLOCK), "a thread asks one block what it found");
static_assert(int(LINES) <= int(DIGITS), "the plan's lines lie where counts of digits did");

/* [n] each: a step reads one and writes the other. */
struct pairs {
    uint32_t *key, *value;
};

/* A block to a multiprocessor at most, so that all are there at once on any card. */
static int64_t blocks_max(int device) { return smaller(fmm_cuda_processors(device), BLOCKS_MAX); }

/* Four arrays of n words, the counts of all blocks, and what each block found. A matrix is small
 * enough if a thread's registers hold its share of the entries and if row and column fit one key.
 */
size_t few_bytes(const fmm_exec *exec, int64_t n, int64_t rows, int64_t cols)
{
    const int64_t most = blocks_max(exec->index) * BLOCK * EACH;
    if (n > most || rows >= most || cols >= most || bits_for(rows) + bits_for(cols) > 32) return 0;
    return 4 * padded(n) + (size_t)BLOCKS_MAX * (DIGITS + 1) * sizeof(int);
}

/* ---- a step: a stable sort by one digit ---- */

/* One digit of a key. */
static __device__ __forceinline__ int digit_of(uint32_t key, int shift)
{
    return (int)((key >> shift) % DIGITS);
}

/* Puts n pairs in order of the digit of their keys at `shift`. */
template <bool ALONE>
static __device__ void sort_digit(const pairs &in, const pairs &out, int n, int shift, int *counts)
{
    __shared__ int counter[WARPS][DIGITS], sums[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, digit = threadIdx.x;
    const unsigned below = (1u << lane) - 1;
    const int warps = gridDim.x * WARPS, each = (n + warps * WARP - 1) / (warps * WARP);
    const int first = (int(blockIdx.x) * WARPS + warp) * each * WARP + lane;
    /* The warp's stretch: every WARP-th entry to a lane, so that loads are runs of memory. */
    uint32_t key[EACH], value[EACH];
    int rank[EACH]; /* among those of the warp with the same digit; -1: no entry */
    UNROLLED(i, EACH) {
        const int q = first + i * WARP;
        rank[i] = i < each && q < n ? 0 : -1;
        key[i] = rank[i] < 0 ? 0 : in.key[q];
        value[i] = rank[i] < 0 ? 0 : in.value[q];
    }
    /* Rank: what the warp had of the digit before, and the lanes before this one. The lowest lane
     * of each digit adds for all of them. */
    for (int w = 0; w < WARPS; w++) counter[w][digit] = 0;
    __syncthreads();
    UNROLLED(i, EACH) {
        if (i >= each) break;
        const int d = rank[i] < 0 ? DIGITS : digit_of(key[i], shift);
        const unsigned same = __match_any_sync(ALL, d);
        if (rank[i] == 0) rank[i] = counter[warp][d] + __popc(same & below);
        __syncwarp();
        if (rank[i] >= 0 && lane == __ffs(same) - 1) counter[warp][d] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    /* From here on a thread owns a digit. What the warps have of it becomes what those before each
     * warp have, and then what comes before the block is added. */
    int mine = 0;
    for (int w = 0; w < WARPS; w++) {
        const int here = counter[w][digit];
        counter[w][digit] = mine;
        mine += here;
    }
    counts[blockIdx.x * DIGITS + digit] = mine;
    wait_for_all<ALONE>();
    int before = 0, all = 0, total;
    for (int k = 0; k < gridDim.x; k++) {
        const int there = counts[k * DIGITS + digit];
        before += k < blockIdx.x ? there : 0;
        all += there;
    }
    before += sum_before(all, sums, &total);
    for (int w = 0; w < WARPS; w++) counter[w][digit] += before;
    __syncthreads();
    /* And a thread owns its entries again. */
    UNROLLED(i, EACH) {
        if (rank[i] < 0) continue;
        const int to = counter[warp][digit_of(key[i], shift)] + rank[i];
        out.key[to] = key[i];
        out.value[to] = value[i];
    }
    wait_for_all<ALONE>();
}

/* ---- what is sorted ---- */

/* A thread's entries, or rows: `first` and every step-th from there. EACH of them are enough for
 * all threads to cover all. The searches for them run side by side, since each waits for its loads.
 */
struct share {
    int first, step;
};

/* Coordinates: by row, then by column. Row and column stand in one key side by side. */
struct by_row { /* fill makes the keys; index and number say what idx and eid hold */
    coordinates c;
    int low; /* bits of a column */
    /* Tells whether one of the thread's coordinates is outside. */
    __device__ bool fill(const share &t, int n, uint32_t *key) const
    {
        bool outside = false;
        UNROLLED(i, EACH) {
            const int k = t.first + i * t.step;
            if (k >= n) continue;
            const uint32_t row = row_key(c, k), col = col_key(c, k);
            outside |= row == (uint32_t)c.a.rows || (k < c.others && col == (uint32_t)c.a.cols);
            key[k] = row << low | col;
        }
        return outside;
    }
    __device__ int32_t index(uint32_t key, int64_t k) const
    {
        return k < c.others ? key & ((1u << low) - 1) : int32_t(k - c.others);
    }
    __device__ int32_t number(int64_t k) const { return (int32_t)k; }
};

/* A CSR's entries, which are in order of row: by column. Only the column's digits are sorted by;
 * the row travels in the key, because it becomes idx. */
struct by_column {
    csr_view a;
    const int32_t *eid;
    int low; /* bits of a row */
    __device__ bool fill(const share &t, int n, uint32_t *key) const
    {
        int row[EACH] = {}; /* the last that begins at or before the entry */
        for (int half = 1 << (low - 1); half; half /= 2)
            UNROLLED(i, EACH) {
                const int p = t.first + i * t.step, at = row[i] + half;
                if (p < n && at < a.rows && __ldg(a.ptr + at) <= p) row[i] = at;
            }
        UNROLLED(i, EACH) {
            const int p = t.first + i * t.step;
            if (p < n) key[p] = bounded(__ldg(a.idx + p), a.cols) << low | (uint32_t)row[i];
        }
        return false; /* nobody asks */
    }
    __device__ int32_t index(uint32_t key, int64_t) const { return key & ((1u << low) - 1); }
    __device__ int32_t number(int64_t p) const { return eid ? __ldg(eid + p) : (int32_t)p; }
};

/* Where each of the groups begins, and where the last ends: as many keys are below it. A thread
 * searches for its EACH groups side by side. */
static __device__ void find_groups(const share &t, const uint32_t *key, int n, int groups, int low,
                                   int64_t *ptr)
{
    int below[EACH] = {};
    for (int half = n ? 1 << (31 - __clz(n)) : 0; half; half /= 2)
        UNROLLED(i, EACH) {
            const int g = t.first + i * t.step, at = below[i] + half;
            if (g <= groups && at <= n && key[at - 1] >> low < (uint32_t)g) below[i] = at;
        }
    UNROLLED(i, EACH) {
        const int g = t.first + i * t.step;
        if (g <= groups) ptr[g] = below[i];
    }
}

/* What a sort makes. */
struct target {
    int64_t *ptr;
    int32_t *idx, *eid;
    plan_view plan;
    fmm_answer answer;
};

/* The whole sort, and what becomes of it: ptr, idx, eid and the plan of the result. Every step
 * waits for all blocks before the next begins. */
template <bool ALONE, class Source>
static __global__ void __launch_bounds__(BLOCK)
    arrange(const Source s, pairs here, pairs there, int *counts, int n, int groups, int bit,
            int end_bit, const target out)
{
    const share t = {int(this_thread()), int(all_threads())};
    int *const found = counts + BLOCKS_MAX * DIGITS;
    const int outside = __syncthreads_or(s.fill(t, n, here.key));
    if (threadIdx.x == 0) found[blockIdx.x] = outside;
    for (int k = t.first; k < n; k += t.step) here.value[k] = (uint32_t)k;
    wait_for_all<ALONE>();
    if (blockIdx.x == 0 && out.answer.word) {
        const int any = __syncthreads_or(threadIdx.x < gridDim.x && found[threadIdx.x]);
        if (threadIdx.x == 0) {
            *(volatile uint64_t *)out.answer.word = out.answer.said + (any != 0);
            __threadfence_system(); /* the host reads it while this goes on */
        }
    }
    for (; bit < end_bit; bit += DIGIT) {
        sort_digit<ALONE>(here, there, n, bit, counts);
        const pairs last = here;
        here = there, there = last;
    }
    find_groups(t, here.key, n, groups, s.low, out.ptr);
    for (int q = t.first; q < n; q += t.step) {
        const uint32_t k = here.value[q];
        out.idx[q] = s.index(here.key[q], k);
        out.eid[q] = s.number(k);
    }
    /* The plan of what was made, with the same blocks; its lines lie where the counts did. */
    const int stretch = (groups + t.step - 1) / t.step * WARP;
    const rows_view rows = {{out.ptr, out.idx, groups, n, 0}, out.plan.segment, stretch, counts};
    __shared__ int rows_of[WARPS][LINES];
    wait_for_all<ALONE>();
    count_rows(rows, rows_of);
    wait_for_all<ALONE>();
    place_rows(rows, out.plan, rows_of);
}

/* Sorts by the bits [bit, end_bit) of the keys. */
template <class Source>
static void launch(const fmm_exec *exec, Source s, int n, int groups, int bit, int end_bit,
                   int64_t *ptr, int32_t *idx, int32_t *eid, void *plan, fmm_answer answer)
{
    enum { EASY = 4 * BLOCK }; /* entries that one block takes before another is worth its wait */
    const int64_t most = n > groups ? n : groups + 1;
    const int64_t blocks = smaller(ceil_div(most, EASY), blocks_max(exec->index));
    char *const at = static_cast<char *>(exec->workspace);
    uint32_t *array[4];
    for (int k = 0; k < 4; k++) array[k] = reinterpret_cast<uint32_t *>(at + k * padded(n));
    /* The sort goes to and fro between two pairs of arrays. */
    pairs here = {array[0], array[1]}, there = {array[2], array[3]};
    int *counts = reinterpret_cast<int *>(at + 4 * padded(n));
    const plan_size made = {groups, n, plan_segment(n)};
    target out = {ptr, idx, eid, view_plan(plan, made, plan_segments_max(made)), answer};
    void *args[] = {&s, &here, &there, &counts, &n, &groups, &bit, &end_bit, &out};
    const auto kernel = blocks == 1 ? arrange<true, Source> : arrange<false, Source>;
    cudaLaunchCooperativeKernel(kernel, dim3((unsigned)blocks), dim3(BLOCK), args, 0,
                                stream_of(exec));
}

void arrange_rows(const fmm_exec *exec, const coordinates &c, int64_t *ptr, int32_t *idx,
                  int32_t *eid, void *plan)
{
    const int low = bits_for(c.a.cols);
    launch(exec, by_row{c, low}, (int)c.total, (int)c.a.rows, 0, low + bits_for(c.a.rows), ptr, idx,
           eid, plan, c.a.answer);
}

void arrange_columns(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr, int32_t *idx,
                     int32_t *eid, void *plan)
{
    const int low = bits_for(a->rows);
    launch(exec, by_column{view_csr(a), static_cast<const int32_t *>(a->eid), low}, (int)a->nnz,
           (int)a->cols, low, low + bits_for(a->cols), ptr, idx, eid, plan, fmm_answer{});
}
