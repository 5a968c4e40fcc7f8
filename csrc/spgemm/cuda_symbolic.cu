/* The symbolic phase on CUDA: where C has entries.
 *
 *     look      products of each row of A, left in ptr; whether B's columns rise     two launches
 *     bin       rows into classes, by their products                                 two launches
 *     count     each row's columns, as a set                                  a launch for each
 * class scan      ptr                                                                  CUB the host
 * waits for one number, C's entries, and takes memory for its columns bin       rows into classes,
 * by their entries fill      each row's columns once more, read out in order               a launch
 * for each class
 *
 *     a set     a hash table of two slots for each product (each entry, when it is filled)
 *                   | 7 . 3 . . 9 . . |  ---> 9 3 7 ---> sorted
 *               or a bit for each column, where that is smaller or the row is long; bits come out
 *               in order. Columns beyond the memory of the class come in further windows.
 *                   | ...1...1.1 | ......
 *
 * Sets do not depend on the order in which columns come, so each row's entries and their order
 * follow from the structures alone. Columns always rise: an unsorted order would depend on which
 * thread came first. B may change meanwhile: what is written stays inside the counted room. */
#include "cuda_small.cuh"

/* CUB includes <iostream> for a file of its own that is not used here; with libstdc++ before 13
 * that alone would link the C++ runtime. */
#include <ostream>
#define _GLIBCXX_IOSTREAM 1

#include <cub/device/device_scan.cuh>

extern "C" {
#include "../core/checks.h"
}

#include <inttypes.h>

/* ---- look: sums over the entries of rows ---- */

enum { SHARE = 8, LONG_ROW = 512 }; /* lanes of a row; entries from which its block helps */

/* Calls put(i, sum of count(p, first entry of the row)) for every row i. A block takes BLOCK /
 * SHARE rows, SHARE lanes each, and then all of its threads take the rows that are long. */
template <class Count, class Put>
static __global__ void __launch_bounds__(BLOCK) sum_rows(const csr_view a, Count count, Put put)
{
    enum { ROWS = BLOCK / SHARE };
    __shared__ counter sums[ROWS];
    const int own = threadIdx.x / SHARE, lane = threadIdx.x % SHARE;
    for (int64_t base = int64_t(blockIdx.x) * ROWS; base < a.rows;
         base += int64_t(gridDim.x) * ROWS) {
        int64_t begin = 0, sum = 0;
        const int64_t i = base + own, length = i < a.rows ? row_range(a, i, &begin) : 0;
        const bool is_long = length > LONG_ROW;
        for (int64_t p = begin + lane; p < begin + length && !is_long; p += SHARE)
            sum += count(p, begin);
        for (int d = SHARE / 2; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
        if (!lane) sums[own] = (counter)sum;
        if (__syncthreads_or(is_long)) {
            for (int r = 0; r < ROWS && base + r < a.rows; r++) {
                const int64_t end = row_range(a, base + r, &begin) + begin;
                if (end - begin <= LONG_ROW) continue;
                sum = 0;
                for (int64_t p = begin + threadIdx.x; p < end; p += BLOCK) sum += count(p, begin);
                if (sum) atomicAdd(sums + r, (counter)sum);
            }
            __syncthreads();
        }
        if (!lane && i < a.rows) put(i, (int64_t)sums[own]);
        __syncthreads();
    }
}

/* Entries of B whose column is outside of it, or not above the one before. */
struct count_falls {
    csr_view b;
    __device__ int64_t operator()(int64_t q, int64_t begin) const
    {
        const int32_t j = __ldg(b.idx + q);
        return uint32_t(j) >= uint32_t(b.cols) || (q > begin && j <= __ldg(b.idx + q - 1));
    }
};
struct put_falls {
    int64_t *repeats;
    __device__ void operator()(int64_t, int64_t falls) const
    {
        if (falls) *repeats = 2;
    }
};

/* Products of A's rows. */
struct count_products {
    csr_view a, b;
    __device__ int64_t operator()(int64_t p, int64_t) const
    {
        int64_t begin;
        const int64_t k = __ldg(a.idx + p);
        return uint64_t(k) < uint64_t(b.rows) ? row_range(b, k, &begin) : 0;
    }
};
struct put_products {
    int64_t *ptr;
    __device__ void operator()(int64_t i, int64_t products) const { ptr[i + 1] = products; }
};

static __global__ void start_schedule(int64_t *schedule)
{
    for (int k = threadIdx.x; k < FMM_SPGEMM_SCHEDULE; k += BLOCK) schedule[k] = k == 0;
}

template <class Count, class Put>
static void launch_sums(const fmm_exec *exec, const csr_view &a, Count count, Put put)
{
    const unsigned blocks = (unsigned)smaller(ceil_div(a.rows, BLOCK / SHARE), 1 << 16);
    if (blocks) sum_rows<<<blocks, BLOCK, 0, stream_of(exec)>>>(a, count, put);
}

/* ---- the columns of a row, as a set ---- */

struct symbolic_args {
    csr_view a, b;
    int64_t *ptr;
    int32_t *idx; /* NULL while rows are counted; ptr[i + 1] is then the products of row i */
    const int64_t *schedule;

    /* Whether row i of C is equal to a row of B: A's row has one entry, and all columns of B rise.
     */
    __device__ bool is_lone(int64_t i) const
    {
        int64_t begin;
        return row_range(a, i, &begin) == 1 && *schedule == 1;
    }
};

/* Bytes of the two kinds of sets for a row of so many products or entries. Hashing is for rows that
 * fit into the middle classes: above, bits cost no more and come out in order. Hashed columns that
 * are wanted have to be sorted, which pays where they are few. */
struct set_size {
    int64_t slots, hash, bits;
    bool hashed;
    __host__ __device__ set_size(const class_bytes &bytes, int64_t most, int64_t cols, bool wanted)
    {
        slots = 2 * most;
        hash = most > INT32_MAX ? INT64_MAX / 8 : slots * int64_t(sizeof(int32_t));
        bits = ceil_div(cols, 32) * int64_t(sizeof(uint32_t));
        hashed = hash * (wanted ? 4 : 1) < bits && hash <= bytes.of[LARGEST - 1];
    }
};

/* A row's class, by its products or its entries. */
struct class_of_set {
    symbolic_args s;
    class_bytes bytes;
    __device__ int operator()(int64_t i) const
    {
        int64_t begin;
        const int64_t most = s.idx ? s.ptr[i + 1] - s.ptr[i] : s.ptr[i + 1];
        if (most <= 0 || (!s.idx && s.is_lone(i))) return -1;
        const int64_t entries = row_range(s.a, i, &begin);
        if (entries <= SMALL_A && most <= (s.idx ? SMALL_C : SMALL_PRODUCTS)) return SMALL;
        if (s.is_lone(i)) return 0;
        const set_size size(bytes, most, s.b.cols, s.idx);
        const int fits = bytes.smallest(size.hashed ? size.hash : size.bits);
        const int work = class_of_work(entries);
        return fits > work ? fits : work;
    }
};

/* Enters column j; returns whether it is new. Most columns are there already, so a plain read comes
 * before the atomic. A table that is full, because a matrix has changed, takes no more. */
static __device__ __forceinline__ bool enter(int32_t *keys, int slots, int32_t j)
{
    int h = (int)__umulhi((unsigned)j * 0x9E3779B1u, (unsigned)slots);
    for (int tries = 0; tries < slots; tries++) {
        int32_t found = *(volatile int32_t *)(keys + h);
        if (found == NO_COLUMN) found = atomicCAS(keys + h, (int32_t)NO_COLUMN, j);
        if (found == NO_COLUMN) return true;
        if (found == j) return false;
        h = h + 1 == slots ? 0 : h + 1;
    }
    return false;
}

/* A set needs nothing beside its memory. */
struct no_head {
};

/* Brings the keys of a table to its front, in any order; returns how many there are. `count` is 0.
 */
template <int WARPS>
static __device__ __forceinline__ int packed(int32_t *keys, int slots, int *count)
{
    typedef group<WARPS> g;
    for (int first = 0; first < slots; first += g::THREADS) {
        const int h = first + g::thread();
        const int32_t key = h < slots ? keys[h] : int32_t(NO_COLUMN);
        g::sync(); /* all have read what the next lines may overwrite */
        const unsigned kept = __ballot_sync(ALL, key != NO_COLUMN);
        int at = 0;
        if (!g::lane()) at = atomicAdd(count, __popc(kept));
        at = __shfl_sync(ALL, at, 0) + __popc(kept & lanes_below());
        if (key != NO_COLUMN) keys[at] = key;
    }
    g::sync();
    return *count;
}

/* Row i by hashing; returns how many columns there are. */
template <int WARPS>
static __device__ __forceinline__ int64_t hash_row(const symbolic_args &s, told<WARPS> *says,
                                                   int32_t *keys, int64_t i, int slots, int32_t *to,
                                                   int64_t places)
{
    typedef group<WARPS> g;
    enum { FEW = 128 }; /* keys that are ranked; more are sorted */
    for (int h = g::thread(); h < slots; h += g::THREADS) keys[h] = NO_COLUMN;
    if (!g::thread()) says->sum = 0;
    g::sync();
    int fresh = 0;
    for_columns<WARPS>(s.a, s.b, i, [&](int32_t j) { fresh += enter(keys, slots, j); });
    if (!to) return added<WARPS>(fresh, &says->sum);
    g::sync();
    const int all = packed<WARPS>(keys, slots, &says->sum);
    const int here = all < places ? all : (int)places;
    if (here <= FEW) {
        write_ranked<WARPS>(keys, here, to);
        return here;
    }
    const int sorted = (int)power_of_two(here);
    for (int h = here + g::thread(); h < sorted; h += g::THREADS) keys[h] = NO_COLUMN;
    g::sync();
    sort_keys<WARPS>(keys, sorted);
    for (int h = g::thread(); h < here; h += g::THREADS) to[h] = keys[h];
    return here;
}

/* Writes the columns low + n of the bits n that are set, from to[at] on, as far as there are
 * places; returns where the next one goes. */
template <int WARPS>
static __device__ __forceinline__ int64_t write_bits(const uint32_t *bits, int words, int32_t low,
                                                     int32_t *to, int64_t at, int64_t places,
                                                     told<WARPS> *says)
{
    typedef group<WARPS> g;
    for (int first = 0; first < words; first += g::THREADS) {
        const int w = first + g::thread();
        uint32_t word = w < words ? bits[w] : 0;
        const int until = scanned<WARPS>(__popc(word), says->totals);
        int64_t own = at + until - __popc(word);
        for (; word && own < places; word &= word - 1) to[own++] = low + w * 32 + __ffs(word) - 1;
        if (g::thread() == g::THREADS - 1) says->sum = until;
        g::sync();
        at += says->sum;
        g::sync();
    }
    return at;
}

/* Columns [low, high) among which all of a row's are. */
struct column_range {
    int64_t low, high;
};

/* Those between the first and the last of A's rows of B, whose columns rise. */
template <int WARPS>
static __device__ __forceinline__ column_range range_of(const symbolic_args &s, told<WARPS> *says,
                                                        int64_t i)
{
    typedef group<WARPS> g;
    int64_t begin;
    const int64_t end = row_range(s.a, i, &begin) + begin;
    int low = NO_COLUMN, high = 0;
    for (int64_t p = begin + g::thread(); p < end; p += g::THREADS) {
        const row_of_b row(s.a, s.b, p, end);
        if (!row.length) continue;
        const int32_t first = __ldg(s.b.idx + row.begin);
        const int32_t last = __ldg(s.b.idx + row.begin + row.length - 1);
        low = first < low ? first : low;
        high = last > high ? last : high;
    }
    if (!g::thread()) says->next = NO_COLUMN, says->sum = 0;
    g::sync();
    if (low != NO_COLUMN) {
        atomicMin(&says->next, low);
        atomicMax(&says->sum, high);
    }
    g::sync();
    const column_range found = {says->next < 0 ? 0 : says->next, int64_t(says->sum) + 1};
    g::sync();
    return column_range{found.low, found.high < s.b.cols ? found.high : int64_t(s.b.cols)};
}

/* Row i by bits; the same. */
template <int WARPS>
static __device__ __forceinline__ int64_t bits_row(const symbolic_args &s, told<WARPS> *says,
                                                   uint32_t *bits, int64_t i, int bytes,
                                                   const column_range &range, int32_t *to,
                                                   int64_t places)
{
    typedef group<WARPS> g;
    const int64_t width = int64_t(bytes / sizeof *bits) * 32;
    int64_t count = 0;
    for (int64_t low = range.low; low < range.high;) {
        const int columns = (int)(low + width < range.high ? width : range.high - low);
        const int words = (columns + 31) / 32;
        for (int w = g::thread(); w < words; w += g::THREADS) bits[w] = 0;
        if (!g::thread()) says->next = NO_COLUMN, says->sum = 0;
        g::sync();
        int32_t further = NO_COLUMN; /* the first column beyond this window */
        for_columns<WARPS>(s.a, s.b, i, [&](int32_t j) {
            const unsigned at = unsigned(j) - unsigned(low);
            if (at < unsigned(columns)) {
                const uint32_t bit = 1u << at % 32;
                if (!(*(volatile uint32_t *)(bits + at / 32) & bit)) atomicOr(bits + at / 32, bit);
            } else if (j > low && j < further)
                further = j;
        });
        if (further != NO_COLUMN) atomicMin(&says->next, further);
        g::sync();
        if (to)
            count = write_bits<WARPS>(bits, words, (int32_t)low, to, count, places, says);
        else {
            int set = 0;
            for (int w = g::thread(); w < words; w += g::THREADS) set += __popc(bits[w]);
            count += added<WARPS>(set, &says->sum);
        }
        low = says->next == NO_COLUMN ? range.high : int64_t(says->next);
        g::sync();
    }
    return count < places || !to ? count : places;
}

/* Row i as it stands in B. */
template <int WARPS>
static __device__ __forceinline__ int64_t copy_row(const symbolic_args &s, int64_t i, int32_t *to,
                                                   int64_t places)
{
    int64_t p, begin = 0;
    row_range(s.a, i, &p);
    const int64_t k = __ldg(s.a.idx + p);
    const int64_t length = uint64_t(k) < uint64_t(s.b.rows) ? row_range(s.b, k, &begin) : 0;
    const int64_t here = length < places ? length : places;
    for (int64_t at = group<WARPS>::thread(); at < here; at += group<WARPS>::THREADS)
        to[at] = __ldg(s.b.idx + begin + at);
    return here;
}

template <int WARPS>
static __global__ void __launch_bounds__(group<WARPS>::BLOCK_OF, group<WARPS>::RESIDENT)
    symbolic_rows(const symbolic_args s, const row_work w, int k)
{
    typedef group<WARPS> g;
    extern __shared__ __align__(16) char spgemm_shared[];
    const auto room = shared_room<WARPS, no_head>::of(spgemm_shared, w.bytes.of[k]);
    int32_t *const keys = reinterpret_cast<int32_t *>(room.row);
    uint32_t *const bits = reinterpret_cast<uint32_t *>(room.row);
    for_rows<WARPS>(w, k, 1, &room.says->ticket, [&](int64_t i, int) {
        const int64_t begin = s.idx ? s.ptr[i] : 0, most = s.ptr[i + 1] - begin;
        const set_size size(w.bytes, most, s.b.cols, s.idx);
        int32_t *const to = s.idx ? s.idx + begin : NULL;
        g::sync(); /* all have read ptr */
        int64_t found;
        if (s.is_lone(i))
            found = copy_row<WARPS>(s, i, to, most);
        else {
            column_range range = {0, s.b.cols};
            if (size.hashed && *s.schedule == 1) range = range_of<WARPS>(s, room.says, i);
            if (size.hashed && (range.high - range.low) / 8 > size.hash)
                found = hash_row<WARPS>(s, room.says, keys, i, (int)size.slots, to, most);
            else
                found = bits_row<WARPS>(s, room.says, bits, i, w.bytes.of[k], range, to, most);
        }
        if (!to && !g::thread()) s.ptr[i + 1] = found;
        for (int64_t at = found + g::thread(); to && at < most; at += g::THREADS) to[at] = 0;
        g::sync();
    });
}

/* Small rows: sets of so many slots, and of C's columns where they are wanted. */
template <int SLOTS>
static __global__ void __launch_bounds__(BLOCK)
    symbolic_small(const symbolic_args s, const row_work w)
{
    __shared__ int32_t sets[SMALL_ROWS][SLOTS];
    int32_t *const keys = sets[threadIdx.x / LANES];
    for_small_rows(w, [&](int64_t i) {
        const small_row<float> row(s.a, s.b, NULL, i);
#pragma unroll
        for (int h = 0; h < SLOTS; h += LANES) keys[h + small_lane()] = NO_COLUMN;
        __syncwarp();
        int fresh = 0;
        for_small(row, s.b, NULL, [&](int32_t j, float, float) { fresh += enter(keys, SLOTS, j); });
        if (!s.idx) {
            for (int d = LANES / 2; d; d /= 2) fresh += __shfl_xor_sync(ALL, fresh, d);
            if (i >= 0 && !small_lane()) s.ptr[i + 1] = fresh;
            return;
        }
        const int64_t begin = i < 0 ? 0 : s.ptr[i];
        const int places = i < 0 ? 0 : (int)clamp(s.ptr[i + 1] - begin, 0, SMALL_C);
        const unsigned own = ((1u << LANES) - 1) << threadIdx.x % WARP / LANES * LANES;
        int all = 0;
        for (int h = 0; h < SLOTS; h += LANES) { /* the keys to the front, as `packed` does */
            const int32_t key = keys[h + small_lane()];
            const unsigned kept = __ballot_sync(ALL, key != NO_COLUMN) & own;
            if (key != NO_COLUMN) keys[all + __popc(kept & lanes_below())] = key;
            all += __popc(kept);
            __syncwarp();
        }
        const int here = all < places ? all : places;
        for (int at = small_lane(); at < places; at += LANES) {
            int below = 0;
            for (int other = 0; other < here; other++) below += keys[other] < keys[at];
            s.idx[begin + (at < here ? below : at)] = at < here ? keys[at] : 0;
        }
    });
}

/* No row needs a larger class than all columns, or the longest row that there can be, would. */
static void launch_sets(const fmm_exec *exec, const symbolic_args &s, const row_work &w)
{
    const int fits = w.bytes.smallest(set_size(w.bytes, 0, s.b.cols, false).bits);
    const int work = class_of_work(s.a.nnz);
    launch_bins(exec, w, class_of_set{s, w.bytes});
    launch_small(exec, s.idx ? symbolic_small<SMALL_FILLED> : symbolic_small<SMALL_SLOTS>, w, s);
    for_classes(fits > work ? fits : work, [&](int k, auto warps) {
        enum { WARPS = decltype(warps)::WARPS };
        launch_class<WARPS, no_head>(exec, symbolic_rows<WARPS>, w, k, 1, s);
    });
}

/* ---- the phase ---- */

static size_t scan_bytes(int64_t *ptr, int64_t rows)
{
    size_t bytes = 0;
    cub::DeviceScan::InclusiveSum(NULL, bytes, ptr, ptr, rows);
    return bytes;
}

/* Where a stream is captured into a CUDA graph, nobody can wait for C's size. */
static fmm_status may_wait(const fmm_exec *exec)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream_of(exec), &capture);
    REQUIRE(
        capture == cudaStreamCaptureStatusNone, FMM_UNSUPPORTED,
        "spgemm: to find the structure of a product waits for the device, which a captured CUDA "
        "graph cannot: make a fusedmm.spgemm_plan before the capture");
    return FMM_OK;
}

/* Counts the rows' entries into ptr; says how many there are in all. */
static fmm_status count_entries(const fmm_exec *exec, const symbolic_args &s, const row_work &w,
                                void *scratch, size_t scratch_bytes, int64_t *nnz)
{
    const cudaStream_t stream = stream_of(exec);
    launch_sums(exec, s.a, count_products{s.a, s.b}, put_products{s.ptr});
    launch_sets(exec, s, w);
    cudaError_t said =
        cub::DeviceScan::InclusiveSum(scratch, scratch_bytes, s.ptr + 1, s.ptr + 1, w.rows, stream);
    cudaMemcpyAsync(nnz, s.ptr + w.rows, sizeof *nnz, cudaMemcpyDeviceToHost, stream);
    if (said == cudaSuccess) said = cudaStreamSynchronize(stream);
    REQUIRE(said == cudaSuccess, FMM_DEVICE_ERROR, "spgemm: CUDA device %d: %s", exec->index,
            cudaGetErrorString(said));
    return FMM_OK;
}

/* Between entering and leaving the device. */
static fmm_status find_pattern(const fmm_exec *exec, const fmm_spgemm_symbolic_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_spgemm_pattern *out = call->out;
    const cudaStream_t stream = stream_of(exec);
    symbolic_args s = {view_csr(a), view_csr(call->b), out->ptr, NULL, out->schedule};
    if (out->want > FMM_SPGEMM_CHUNKS) TRY(may_wait(exec));
    start_schedule<<<1, BLOCK, 0, stream>>>(out->schedule);
    launch_sums(exec, s.b, count_falls{s.b}, put_falls{out->schedule});
    if (out->want == FMM_SPGEMM_CHUNKS) return FMM_OK;
    cudaMemsetAsync(out->ptr, 0, sizeof *out->ptr, stream);
    int64_t nnz = 0;
    row_work w = {};
    if (a->rows) {
        const size_t lists = (row_work_bytes(a->rows) + 255) / 256 * 256;
        const size_t scratch_bytes = scan_bytes(out->ptr, a->rows);
        void *base = NULL;
        const fmm_status status = exec->allocate(exec->owner, lists + scratch_bytes, &base);
        REQUIRE(status == FMM_OK, status, "spgemm: no workspace of %zu bytes",
                lists + scratch_bytes);
        w = row_work_in(exec, base, a->rows);
        TRY(count_entries(exec, s, w, static_cast<char *>(base) + lists, scratch_bytes, &nnz));
    }
    if (out->want == FMM_SPGEMM_COUNTS) return FMM_OK;
    s.idx = out->columns(out->owner, nnz);
    REQUIRE(s.idx || !nnz, FMM_OUT_OF_MEMORY,
            "spgemm: no memory for the %" PRId64 " entries of the product", nnz);
    if (nnz) launch_sets(exec, s, w);
    return FMM_OK;
}

extern "C" fmm_status fmm_spgemm_symbolic_cuda(const fmm_exec *exec,
                                               const fmm_spgemm_symbolic_call *call)
{
    int before;
    REQUIRE(exec->allocate, FMM_INVALID_ARGUMENT, "spgemm: exec.allocate must be given");
    TRY(fmm_spgemm_countable(call->a));
    TRY(cuda_enter("spgemm", exec, &before));
    const fmm_status status = find_pattern(exec, call);
    const fmm_status left = cuda_leave("spgemm", exec, before);
    return status == FMM_OK ? left : status;
}
