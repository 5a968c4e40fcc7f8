/* What a plan keeps of the products: where each of them goes, so that values need no search.
 *
 *     entries of C   0 ....... | width ....... | 2 width ...     windows: a warp each
 *     runs           e0: q ..  | e0: q ..        products of one entry of A that fall into a
 *                    e1: q ..  | e2: q ..        window: neighbours in a row of B
 *     slots          0 3 4   | 0 2   | ...       of each product: its entry of C, counted from the
 *                    *         *                 window's first; * begins a run
 *     records        00 03 21 42 34 | ...        slot and number of each product of a batch, sorted
 *
 * A warp has the sums of its window in shared memory, and adds a batch of 32 products at once.
 * Where sums are put aside, since a row of A is long, another batch begins. Their records are
 * sorted, so that those that share a sum are neighbours, and lanes hand it on. So a sum has its
 * terms in the order of A's entries, as everywhere, and the same bits. A record takes two bytes and
 * a run eight, and columns of B and C are not read. Batches are those in which products are found
 * (cuda_entries.cuh). Windows with most products come first, so that none of them is the last to
 * end. */
#include "cuda_entries.cuh"
#include "cuda_kept.cuh"

/* Bits of a record: a product's number in its batch, and its slot. Another bit says that product
 * number `lane` begins a run; and the sign, that there is no product, as B has changed. */
enum { NUMBER_BITS = 5, SLOT_BITS = 9, BEGINS = 1 << (NUMBER_BITS + SLOT_BITS) };
enum { NO_PRODUCT = INT16_MIN };

/* Product t of a window has entries p of A and origin + t of B; the sign of p says that sums are
 * put aside before. It is then the first of a batch. */
struct kept_run {
    uint32_t origin;
    int32_t p;
};
/* What is kept, in the order of memory:
 *
 *     windows     at, runs, products, number        those with most products first
 *     words       runs, records | runs, records     of 8 bytes each, window number 0 first; `at` is
 *                 ^ at of window 0                   where the runs of a window begin
 *     a number    only where a row of A is so long that sums are put aside
 */
struct kept_window {
    int64_t at;
    int32_t runs, products;
    int64_t number;
};
struct kept_view {
    kept_window *windows;
    kept_run *words;
    int64_t count, all; /* of windows, of words */
    int width;
    bool parts; /* whether sums are put aside */
    __device__ __forceinline__ int16_t *records(const kept_window &w) const
    {
        return reinterpret_cast<int16_t *>(words + w.at + w.runs);
    }
};

/* Windows are narrow while a card still has a warp for each of them at once. */
static int kept_width(int64_t entries) { return entries <= 1 << 17 ? 32 : width_for(entries); }
static int64_t windows_for(int64_t entries) { return ceil_div(entries, kept_width(entries)); }
/* Numbers before the words, which are two numbers each. One more behind them says `parts`: the host
 * has to know it, and reads nothing of what a plan keeps. */
static int64_t head_of(int64_t entries)
{
    return windows_for(entries) * int64_t(sizeof(kept_window) / sizeof(int32_t));
}
static kept_view view_kept(int32_t *kept, int64_t numbers, int64_t entries)
{
    return kept_view{reinterpret_cast<kept_window *>(kept),
                     reinterpret_cast<kept_run *>(kept + head_of(entries)),
                     windows_for(entries),
                     (numbers - head_of(entries)) / 2,
                     kept_width(entries),
                     (numbers & 1) != 0};
}

/* ---- how it is made ---- */

/* What all windows have, which the host learns on the way: their words, the most products of one,
 * whether sums are put aside, and how many windows are of each class. */
enum { WINDOW_CLASSES = 4 };
struct made_of {
    counter words, most, parts, of_class[WINDOW_CLASSES];
};

/* The class of a window, by its products; windows of the first one come first, so that the card is
 * not left with one that takes long.
 *
 *     class        0                       1       2            3
 *     products     more than 4 times       twice   once         others      the mean */
static __device__ __forceinline__ int class_of_window(int64_t products, int64_t mean)
{
    return (products <= 4 * mean) + (products <= 2 * mean) + (products <= mean);
}

/* No warp has to add so many products. */
enum { TOO_MANY = 1 << 20 };

/* A warp for each window. What is counted here is found once more when it is written, so that
 * nothing is kept of it meanwhile. Words are taken as windows come, which no sum depends on; until
 * all are counted, a window's number is its class and its place there. */
static __global__ void __launch_bounds__(BLOCK)
    count_runs(const csr_view a, const csr_view b, const csr_view c, const kept_view to,
               int64_t mean, made_of *found)
{
    const int64_t w = this_thread() / WARP;
    if (w >= to.count) return;
    const window_rows rows(a, c, w, to.width);
    int64_t products = 0, before = -1, begin;
    int runs = 0;
    bool parts = false;
    for (int64_t base = rows.begin; base < rows.end; base += WARP) {
        const int64_t p = base + threadIdx.x % WARP, i = rows.row(a, p);
        const int64_t length = rows.products(a, b, c, p, i).length;
        const unsigned all = sum_of_lanes((unsigned)(length < TOO_MANY ? length : TOO_MANY));
        const unsigned some = __ballot_sync(ALL, length > 0);
        const bool new_part = begins_part(a, i, base, some, before);
        /* A part begins a batch, and leaves at most so many records of the one before empty. */
        products += all + (WARP - 1) * __popc(__ballot_sync(ALL, new_part));
        runs += __popc(some);
        parts |= row_range(a, i, &begin) > SPGEMM_TERMS;
        if (some) before = base + WARP - 1 - __clz(some);
    }
    if (products > TOO_MANY) products = TOO_MANY;
    parts = __any_sync(ALL, parts);
    if (threadIdx.x % WARP) return;
    if (parts) found->parts = 1;
    atomicMax(&found->most, (counter)products);
    const int k = class_of_window(products, mean);
    const int64_t at = (int64_t)atomicAdd(&found->words, (counter)(runs + (products + 3) / 4));
    const int64_t place = (int64_t)atomicAdd(found->of_class + k, (counter)1);
    to.windows[w] = kept_window{at, runs, (int)products, place * WINDOW_CLASSES + k};
}

/* Sorts the records of each batch by slot and number, which is the lane's until then. What says
 * that a run begins stays where it is. */
static __device__ __forceinline__ void sort_batches(int16_t *records, int products)
{
    const int lane = threadIdx.x % WARP;
    for (int t = lane; t - lane < products; t += WARP) {
        const int record = t < products ? records[t] : NO_PRODUCT, begins = record & BEGINS;
        int key = record < 0 ? BEGINS | lane : record ^ begins;
        for (int run = 2; run <= WARP; run *= 2)
            for (int apart = run / 2; apart; apart /= 2) {
                const int other = __shfl_xor_sync(ALL, key, apart);
                key = !(lane & apart) == !(lane & run) ? min(key, other) : max(key, other);
            }
        if (t < products) records[t] = int16_t((key < BEGINS ? key : NO_PRODUCT) | begins);
    }
}

/* Writes a window's runs and records; no more of them than were counted. */
static __global__ void __launch_bounds__(BLOCK)
    write_kept(const csr_view a, const csr_view b, const csr_view c, const kept_view to,
               const kept_window *counted, const made_of *found)
{
    __shared__ found_room rooms[WARPS];
    const int64_t w = this_thread() / WARP;
    if (w >= to.count) return;
    const int lane = threadIdx.x % WARP;
    kept_window own = counted[w]; /* its products are as many as there is room for */
    int64_t place = own.number / WINDOW_CLASSES;
    for (int k = own.number % WINDOW_CLASSES; k > 0; k--) place += found->of_class[k - 1];
    own.number = w;
    kept_run *const runs = to.words + own.at;
    int16_t *const records = to.records(own);
    const int products = for_batches(
        a, b, c, window_rows(a, c, w, to.width), rooms[threadIdx.x / WARP],
        [](const found_product &) { return 0; },
        [&](const found_product &of, int) {
            const int record = of.exists ? of.slot << NUMBER_BITS | of.t % WARP : NO_PRODUCT;
            if (of.inside && of.t < own.products)
                records[of.t] = int16_t(record | (of.begins ? BEGINS : 0));
            if (of.begins && of.run < own.runs)
                runs[of.run] = kept_run{of.q - unsigned(of.t), of.p};
        },
        [&](int t, int end) {
            if (t + lane < end && t + lane < own.products) records[t + lane] = NO_PRODUCT;
        });
    own.products = min(own.products, products);
    if (!lane) to.windows[place] = own;
    __syncwarp();
    sort_batches(records, own.products);
}

fmm_status fmm_spgemm_keep(const fmm_exec *exec, const fmm_spgemm_pattern *out, const csr_view &a,
                           const csr_view &b, const csr_view &c, int64_t products, bool *made)
{
    /* All that a plan keeps takes no more than three times the memory of A, B and C. */
    enum { TIMES = 3, LITTLE = 32 << 20 };
    const int64_t room = LITTLE / 8 + TIMES * (a.nnz + b.nnz + c.nnz); /* in words */
    *made = a.nnz <= INT32_MAX && b.nnz <= INT32_MAX && products / 4 <= room &&
            cudaPeekAtLastError() == cudaSuccess;
    if (!*made) return FMM_OK; /* cuda_leave says why, if a launch failed */
    const cudaStream_t stream = stream_of(exec);
    const int64_t windows = windows_for(c.nnz);
    const unsigned blocks = blocks_for(windows * WARP);
    spgemm_memory lent;
    TRY(fmm_spgemm_ask(exec, sizeof(made_of) + windows * sizeof(kept_window), &lent));
    made_of *const counts = reinterpret_cast<made_of *>(lent.base);
    kept_window *const counted = reinterpret_cast<kept_window *>(counts + 1);
    kept_view to = view_kept(NULL, 0, c.nnz);
    made_of found = {};
    to.windows = counted;
    cudaMemsetAsync(counts, 0, sizeof found, stream);
    count_runs<<<blocks, BLOCK, 0, stream>>>(a, b, c, to, products / windows, counts);
    cudaMemcpyAsync(&found, counts, sizeof found, cudaMemcpyDeviceToHost, stream);
    const cudaError_t said = cudaStreamSynchronize(stream);
    REQUIRE(said == cudaSuccess, FMM_DEVICE_ERROR, "spgemm: a plan on CUDA device %d: %s",
            exec->index, cudaGetErrorString(said));
    const int64_t words = (int64_t)found.words;
    *made = words <= room && found.most < TOO_MANY;
    if (!*made) return FMM_OK;
    const int64_t numbers = head_of(c.nnz) + 2 * words + (found.parts != 0);
    int32_t *const kept = out->kept(out->owner, numbers);
    REQUIRE(kept, FMM_OUT_OF_MEMORY,
            "spgemm: no memory for what a plan keeps of %" PRId64 " products", products);
    to = view_kept(kept, numbers, c.nnz);
    write_kept<<<blocks, BLOCK, 0, stream>>>(a, b, c, to, counted, counts);
    return FMM_OK;
}

/* ---- how it is used ---- */

enum { AHEAD = 4 }; /* batches of records whose values are under way at once */

/* What all lanes have. The compiler knows so of a shuffle alone. It then keeps the number once for
 * the warp, and makes no code for lanes that go apart where their ways depend on it. */
template <class T> static __device__ __forceinline__ T of_warp(T v)
{
    return __shfl_sync(ALL, v, 0);
}

/* What a kernel may trust of a window: it stays inside the words. */
static __device__ __forceinline__ kept_window window_at(const kept_view &of, int64_t w)
{
    kept_window own = of.windows[w];
    own.at = clamp(own.at, 0, of.all - 1);
    own.runs = of_warp((int)clamp(own.runs, 0, of.all - own.at));
    own.products = (int)clamp(own.products, 0, (of.all - own.at - own.runs) * 4);
    own.products = of_warp(own.runs ? own.products : 0);
    own.number = of_warp(clamp(own.number, 0, of.count - 1));
    return own;
}

/* Lanes whose slot is that of the lane before. */
static __device__ __forceinline__ unsigned neighbours(int slot)
{
    return __ballot_sync(ALL, __shfl_up_sync(ALL, slot, 1) == slot) & ~1u;
}

/* Adds a product of each lane to the sum in its slot; a slot below 0 is none, and stands once.
 * Neighbours that share a slot hand the sum on, and the last of them has it in the end.
 *
 *     slot      3 3 3 5 7 7
 *     waits       + +     +      for the lane before it, which has the sum
 *                   +            and once more, as only now the one before has all terms */
template <class A>
static __device__ __forceinline__ void add_neighbours(A *sums, int slot, unsigned waits,
                                                      const factors<A> &of)
{
    const unsigned own = 1u << threadIdx.x % WARP;
    const bool is_first = !(waits & own), is_last = !(waits >> 1 & own);
    A sum = multiply_add(of.x, of.y, is_first && slot >= 0 ? sums[slot] : A(0));
    for (; waits; waits &= waits << 1) {
        const A before = __shfl_up_sync(ALL, sum, 1);
        if (waits & own) sum = multiply_add(of.x, of.y, before);
    }
    if (is_last && slot >= 0) sums[slot] = sum;
    __syncwarp();
}

/* Sums that are never put aside leave half of the shared memory to other blocks. Records of the
 * next batches are asked for while these are added. Numbers that somebody forged stay inside. */
template <class A, bool PLAIN, bool PARTS>
static __global__ void __launch_bounds__(ENTRY_WARPS *WARP)
    add_kept(const numeric_args s, const kept_view of)
{
    const int lane = threadIdx.x % WARP, warp = of_warp(threadIdx.x / WARP);
    const int64_t w = int64_t(blockIdx.x) * ENTRY_WARPS + warp;
    if (w >= of.count) return;
    const kept_window own = window_at(of, w);
    const int2 *const runs = reinterpret_cast<const int2 *>(of_warp(uintptr_t(of.words + own.at)));
    const int16_t *const records = reinterpret_cast<const int16_t *>(runs + own.runs);
    const unsigned last_p = unsigned(s.a.nnz - 1), last_q = unsigned(s.b.nnz - 1);
    A *const sums = of_shared<A>(warp * (PARTS ? 2 : 1) * of.width * (int)sizeof(A));
    const entry_sums<A> to = {sums, sums + of.width, of.width};
    for (int h = lane; h < (PARTS ? 2 : 1) * of.width; h += WARP) sums[h] = A(0);
    __syncwarp();
    unsigned last = ~0u;
    int record[AHEAD]; /* of the next batches; none behind the end */
    UNROLLED(u, AHEAD) {
        const int t = u * WARP + lane;
        record[u] = t < own.products ? int(__ldg(records + t)) : NO_PRODUCT;
    }
    for (int base = 0; base < own.products; base += AHEAD * WARP) {
        int slot[AHEAD];
        unsigned waits[AHEAD];
        bool new_part[AHEAD];
        factors<A> values[AHEAD];
        UNROLLED(u, AHEAD) {
            const unsigned begins = __ballot_sync(ALL, record[u] & BEGINS);
            const unsigned number = record[u] & (WARP - 1);
            const unsigned k = last + __popc(begins & ((2u << number) - 1));
            last += __popc(begins);
            const int2 run = __ldg(runs + min(k, unsigned(own.runs - 1)));
            const unsigned p = run.y & INT32_MAX, q = unsigned(run.x) + base + u * WARP + number;
            new_part[u] = PARTS && __any_sync(ALL, run.y < 0) && (begins & 1);
            slot[u] = record[u] >= 0 ? record[u] >> NUMBER_BITS & (of.width - 1) : -1 - lane;
            values[u] = factors_of<A, PLAIN>(s, min(p, last_p), min(q, last_q), true);
        }
        UNROLLED(u, AHEAD) {
            const int t = base + (AHEAD + u) * WARP + lane;
            record[u] = t < own.products ? int(__ldg(records + t)) : NO_PRODUCT;
        }
        UNROLLED(u, AHEAD) waits[u] = neighbours(slot[u]);
        UNROLLED(u, AHEAD) {
            if (new_part[u]) to.put_aside();
            add_neighbours(sums, slot[u], waits[u], values[u]);
        }
    }
    for (int h = lane; h < of.width; h += WARP) {
        const int64_t r = own.number * of.width + h;
        if (r < s.c.nnz) write(s.out, r, PARTS ? to.aside[h] + to.sums[h] : to.sums[h]);
    }
}

template <class A, bool PLAIN>
static void launch_kept(const fmm_exec *exec, const numeric_args &s, const kept_view &of)
{
    const int bytes = ENTRY_WARPS * (of.parts ? 2 : 1) * of.width * (int)sizeof(A);
    const unsigned blocks = (unsigned)ceil_div(of.count, ENTRY_WARPS);
    const auto run = of.parts ? add_kept<A, PLAIN, true> : add_kept<A, PLAIN, false>;
    run<<<blocks, ENTRY_WARPS * WARP, bytes, stream_of(exec)>>>(s, of);
}

/* Numbers too few for this C are of another; neither are those taken that begin at an odd place,
 * because the caller cut them, since runs are read as one word. */
bool fmm_spgemm_add_kept(const fmm_exec *exec, const numeric_args &s, const int32_t *kept,
                         int64_t n)
{
    const kept_view of = view_kept(const_cast<int32_t *>(kept), n, s.c.nnz);
    if (of.all < 1 || s.a.nnz < 1 || s.b.nnz < 1 || uintptr_t(kept) % sizeof(int2)) return false;
    const bool is_double = s.out.dtype == FMM_F64;
    if (s.plain && s.plain_a)
        (is_double ? launch_kept<double, true> : launch_kept<float, true>)(exec, s, of);
    else
        (is_double ? launch_kept<double, false> : launch_kept<float, false>)(exec, s, of);
    return true;
}
