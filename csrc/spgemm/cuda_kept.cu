/* What a plan keeps of the products: where each of them goes, so that values need no search.
 *
 *     entries of C   0 ....... | width ....... | 2 width ...     windows: a warp each
 *     runs           e0: q ..  | e0: q ..        products of one entry of A that fall into a
 *                    e1: q ..  | e2: q ..        window: neighbours in a row of B
 *     records        0 3 4 | 0 2 | ...           the slot of each product: its entry of C, counted
 *                    *       *                   from the window's first; * begins a run
 *
 * A warp has the sums of its window in shared memory, reads records in order, and adds 32 products
 * at once. A record also says in which turn: those that share a sum follow each other. So a sum has
 * its terms in the order of A's entries, as everywhere, and the same bits. A record takes two
 * bytes and a run eight, and columns of B and C are not read. Records are those of the batches in
 * which products are found (cuda_entries.cuh), whose last lanes may have none. Windows with most
 * products come first, so that none of them is the last to end. */
#include "cuda_entries.cuh"
#include "cuda_kept.cuh"

#include <ostream>
#define _GLIBCXX_IOSTREAM 1 /* as in cuda_symbolic.cu */

#include <cub/device/device_scan.cuh>

/* Bits of a record: the slot, whether it begins a run, the turn; and one of no product. */
enum { SLOT_BITS = 9, BEGINS = 1 << SLOT_BITS, TURN = SLOT_BITS + 1, NO_PRODUCT = INT16_MIN };

/* Product t of a window has entries p of A and origin + t of B; the sign of p says that sums are
 * put aside before. */
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

static int64_t windows_for(int64_t entries) { return ceil_div(entries, width_for(entries)); }
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
                     width_for(entries),
                     (numbers & 1) != 0};
}

/* ---- how it is made ---- */

/* What the host learns on the way: the most products of a window, and whether sums are put aside.
 */
struct made_of {
    counter most, parts;
};

/* What is needed meanwhile: of each window its runs and products, and where its words end; lists of
 * windows; what CUB asks for. `base` may be NULL to learn the size. */
struct making {
    int64_t *ends;
    int2 *counts;
    made_of *found;
    char *lists;
    void *scratch;
    size_t scratch_bytes, bytes;

    making(char *base, int64_t windows)
    {
        const auto take = [&](size_t n) {
            char *const at = base + bytes;
            bytes += (n + 255) / 256 * 256;
            return at;
        };
        bytes = 0;
        ends = reinterpret_cast<int64_t *>(take((size_t)windows * sizeof *ends));
        counts = reinterpret_cast<int2 *>(take((size_t)windows * sizeof *counts));
        found = reinterpret_cast<made_of *>(take(sizeof *found));
        lists = take(row_work_bytes(windows));
        cub::DeviceScan::InclusiveSum(NULL, scratch_bytes, ends, ends, windows);
        scratch = take(scratch_bytes);
    }
};

/* No warp has to add so many products. */
enum { TOO_MANY = 1 << 20 };

/* A warp for each window. What is counted here is found once more when it is written, so that
 * nothing is kept of it meanwhile. */
static __global__ void __launch_bounds__(BLOCK)
    count_runs(const csr_view a, const csr_view b, const csr_view c, const kept_view to,
               const making m)
{
    const int64_t w = this_thread() / WARP;
    if (w >= to.count) return;
    const window_rows rows(a, c, w, to.width);
    int64_t products = 0, begin;
    int runs = 0;
    bool parts = false;
    for (int64_t base = rows.begin; base < rows.end; base += WARP) {
        const int64_t p = base + threadIdx.x % WARP, i = rows.row(a, p);
        const int64_t length = rows.products(a, b, c, p, i).length;
        const unsigned all = sum_of_lanes((unsigned)(length < TOO_MANY ? length : TOO_MANY));
        products += (all + WARP - 1) / WARP * WARP;
        runs += __popc(__ballot_sync(ALL, length > 0));
        parts |= row_range(a, i, &begin) > SPGEMM_TERMS;
    }
    if (products > TOO_MANY) products = TOO_MANY;
    parts = __any_sync(ALL, parts);
    if (threadIdx.x % WARP) return;
    if (parts) m.found->parts = 1;
    m.counts[w] = make_int2(runs, (int)products);
    m.ends[w] = runs + products / 4;
    atomicMax(&m.found->most, (counter)products);
}

/* Windows with more than four times, twice and once the mean of products, and others:
 *
 *     class     3              2              1          0
 *     blocks    first                                    last
 *
 * so that the card is not left with one window that takes long. */
struct class_of_window {
    const int2 *counts;
    int64_t mean;
    __device__ int operator()(int64_t w) const
    {
        const int64_t n = counts[w].y;
        return n > 4 * mean ? 3 : n > 2 * mean ? 2 : n > mean;
    }
};

/* Writes a window's runs and records; no more of them than were counted. */
static __global__ void __launch_bounds__(BLOCK)
    write_kept(const csr_view a, const csr_view b, const csr_view c, const kept_view to,
               const making m, const row_work list)
{
    __shared__ found_room rooms[WARPS];
    const int64_t place = this_thread() / WARP;
    if (place >= to.count) return;
    int64_t at = place;
    int k = LARGEST;
    for (; k > 0 && at >= (int64_t)list.lists->counts[k]; k--) at -= list.lists->counts[k];
    const int64_t w = *list.place(k, at);
    const kept_window own = {w ? m.ends[w - 1] : 0, m.counts[w].x, m.counts[w].y, w};
    kept_run *const runs = to.words + own.at;
    int16_t *const records = to.records(own);
    if (threadIdx.x % WARP == 0) to.windows[place] = own;
    for_batches(
        a, b, c, window_rows(a, c, w, to.width), rooms[threadIdx.x / WARP],
        [](const found_product &) { return 0; },
        [&](const found_product &of, int) {
            const int record = of.slot | of.turn << TURN | (of.begins ? BEGINS : 0);
            if (of.t < own.products) records[of.t] = int16_t(of.exists ? record : NO_PRODUCT);
            if (of.begins && of.run < own.runs)
                runs[of.run] = kept_run{of.q - unsigned(of.t), of.p};
        });
}

fmm_status fmm_spgemm_keep(const fmm_exec *exec, const fmm_spgemm_pattern *out, const csr_view &a,
                           const csr_view &b, const csr_view &c, int64_t products, bool *made)
{
    /* All that a plan keeps takes no more than three times the memory of A, B and C. */
    enum { TIMES = 3, LITTLE = 32 << 20 };
    const int64_t room = LITTLE / 8 + TIMES * (a.nnz + b.nnz + c.nnz); /* in words */
    /* CUB takes over what an earlier launch failed with, here where it only says sizes. */
    *made = a.nnz <= INT32_MAX && b.nnz <= INT32_MAX && products / 4 <= room &&
            cudaPeekAtLastError() == cudaSuccess;
    if (!*made) return FMM_OK; /* cuda_leave says why, if a launch failed */
    const cudaStream_t stream = stream_of(exec);
    const int64_t windows = windows_for(c.nnz);
    const unsigned blocks = blocks_for(windows * WARP);
    spgemm_memory lent;
    TRY(fmm_spgemm_ask(exec, making(NULL, windows).bytes, &lent));
    const making m(lent.base, windows);
    const row_work list = row_work_in(m.lists, windows, 0);
    kept_view to = view_kept(NULL, 0, c.nnz);
    made_of found = {};
    int64_t words = 0;
    cudaMemsetAsync(m.found, 0, sizeof found, stream);
    count_runs<<<blocks, BLOCK, 0, stream>>>(a, b, c, to, m);
    launch_bins(exec, list, class_of_window{m.counts, products / windows});
    size_t scratch_bytes = m.scratch_bytes;
    cudaError_t said =
        cub::DeviceScan::InclusiveSum(m.scratch, scratch_bytes, m.ends, m.ends, windows, stream);
    cudaMemcpyAsync(&found, m.found, sizeof found, cudaMemcpyDeviceToHost, stream);
    cudaMemcpyAsync(&words, m.ends + windows - 1, sizeof words, cudaMemcpyDeviceToHost, stream);
    if (said == cudaSuccess) said = cudaStreamSynchronize(stream);
    REQUIRE(said == cudaSuccess, FMM_DEVICE_ERROR, "spgemm: a plan on CUDA device %d: %s",
            exec->index, cudaGetErrorString(said));
    *made = words <= room && found.most < TOO_MANY;
    if (!*made) return FMM_OK;
    const int64_t numbers = head_of(c.nnz) + 2 * words + (found.parts != 0);
    int32_t *const kept = out->kept(out->owner, numbers);
    REQUIRE(kept, FMM_OUT_OF_MEMORY,
            "spgemm: no memory for what a plan keeps of %" PRId64 " products", products);
    to = view_kept(kept, numbers, c.nnz);
    write_kept<<<blocks, BLOCK, 0, stream>>>(a, b, c, to, m, list);
    return FMM_OK;
}

/* ---- how it is used ---- */

/* The number of the run that this lane's record belongs to; *runs is that of the last record before
 * the warp's, and then that of its last. */
static __device__ __forceinline__ int run_of_lane(unsigned record, unsigned *begins, int *runs)
{
    *begins = __ballot_sync(ALL, record & BEGINS);
    const int own = *runs + __popc(*begins & (lanes_below() | 1u << threadIdx.x % WARP));
    *runs += __popc(*begins);
    return own;
}

enum { AHEAD = 4 }; /* batches of records whose values are under way at once */

/* What a kernel may trust of a window: it stays inside the words. */
static __device__ __forceinline__ kept_window window_at(const kept_view &of, int64_t w)
{
    kept_window own = of.windows[w];
    own.at = clamp(own.at, 0, of.all - 1);
    own.runs = (int)clamp(own.runs, 0, of.all - own.at);
    own.products = (int)clamp(own.products, 0, (of.all - own.at - own.runs) * 4);
    own.number = clamp(own.number, 0, of.count - 1);
    if (!own.runs) own.products = 0;
    return own;
}

/* Sums that are never put aside leave half of the shared memory to other blocks. Records of the
 * next batches are asked for while these are added. */
template <class A, bool PLAIN, bool PARTS>
static __global__ void __launch_bounds__(ENTRY_WARPS *WARP)
    add_kept(const numeric_args s, const kept_view of)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t w = int64_t(blockIdx.x) * ENTRY_WARPS + warp;
    if (w >= of.count) return;
    const kept_window own = window_at(of, w);
    const kept_run *const runs = of.words + own.at;
    const int16_t *const records = of.records(own);
    A *const sums = of_shared<A>(warp * (PARTS ? 2 : 1) * of.width * (int)sizeof(A));
    entry_sums<A> to = {sums, sums + of.width, of.width};
    for (int h = lane; h < (PARTS ? 2 : 1) * of.width; h += WARP) sums[h] = A(0);
    __syncwarp();
    int last = -1;
    int next[AHEAD]; /* records of the next batches; none behind the end */
    UNROLLED(u, AHEAD) {
        const int t = u * WARP + lane;
        next[u] = t < own.products ? int(__ldg(records + t)) : NO_PRODUCT;
    }
    for (int base = 0; base < own.products; base += AHEAD * WARP) {
        int record[AHEAD], turn[AHEAD];
        unsigned begins[AHEAD], parts[AHEAD];
        factors<A> values[AHEAD];
        UNROLLED(u, AHEAD) record[u] = next[u];
        UNROLLED(u, AHEAD) {
            const int t = base + u * WARP + lane;
            const bool inside = record[u] >= 0;
            const int k = run_of_lane(inside ? record[u] : 0, begins + u, &last);
            const int2 run = __ldg(reinterpret_cast<const int2 *>(runs) +
                                   (unsigned(k) < unsigned(own.runs) ? k : 0));
            const unsigned p = run.y & INT32_MAX, q = unsigned(run.x) + unsigned(t);
            const bool exists = inside && p < s.a.nnz && q < s.b.nnz; /* else forged, or behind */
            parts[u] = PARTS ? __ballot_sync(ALL, run.y < 0) & begins[u] : 0;
            turn[u] = exists ? record[u] >> TURN : -1;
            values[u] = factors_of<A, PLAIN>(s, p, q, exists);
        }
        UNROLLED(u, AHEAD) {
            const int t = base + (AHEAD + u) * WARP + lane;
            next[u] = t < own.products ? int(__ldg(records + t)) : NO_PRODUCT;
        }
        UNROLLED(u, AHEAD) {
            const int slot = record[u] & (of.width - 1);
            to.add(slot, turn[u], values[u], parts[u]);
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
    if (of.all < 1 || uintptr_t(kept) % sizeof(int2)) return false;
    if (s.out.dtype == FMM_F64)
        launch_kept<double, false>(exec, s, of);
    else if (s.plain && s.plain_a)
        launch_kept<float, true>(exec, s, of);
    else
        launch_kept<float, false>(exec, s, of);
    return true;
}
