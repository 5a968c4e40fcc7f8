/* The symbolic phase on CUDA: where C has entries.
 *
 *     look      products of each row of A; whether B's columns rise (cuda_look.cuh)
 *     bin       counts small rows (cuda_small.cuh), and puts others into classes, by their products
 *     count     each other row's columns, as a set (cuda_sets.cuh), by a warp or a block
 *     scan      ptr
 *     the host  waits once for C's entries and what else was counted, and takes memory
 *     small     columns of small rows, and their values where they are known: one pass for both
 *     bin       other rows into classes, by their entries; nothing follows where there are none
 *     fill      each row's columns once more
 *     values    of other rows, by the numeric phase, where values are known
 *     keep      where each product goes, for a plan (cuda_kept.cu)
 *
 * Where C is small, bits of all rows are kept when they are counted (cuda_bits.cuh), and one launch
 * reads them out in order instead of bin and fill. Where rows are few besides, two launches stand
 * for look, bin, count and scan (cuda_few.cuh).
 *
 * Sets do not depend on the order in which columns come, so each row's entries and their order
 * follow from the structures alone. Columns always rise: an unsorted order would depend on which
 * thread came first. B may change meanwhile: what is written stays inside the counted room. */
#include "cuda_few.cuh"
#include "cuda_kept.cuh"

/* CUB includes <iostream> for a file of its own that is not used here; with libstdc++ before 13
 * that alone would link the C++ runtime. */
#include <ostream>
#define _GLIBCXX_IOSTREAM 1

#include <cub/device/device_scan.cuh>

extern "C" {
#include "../core/checks.h"
}

#include <inttypes.h>

/* ---- the rows of the classes ---- */

/* Row i, by a warp or a block. It is counted, its number replacing that of its products in ptr, or
 * written, if C's columns have memory. A row that is equal to one of B is not walked through to be
 * counted: a column times a row may have more entries than there is time for. Places that nobody
 * filled, because B has changed, get column 0, so that C never names a column that it does not
 * have. */
template <int WARPS>
static __device__ __forceinline__ void find_row(const symbolic_args &s, told *says, char *room,
                                                int64_t i)
{
    typedef group<WARPS> g;
    const int64_t begin = s.idx ? s.ptr[i] : 0, most = s.ptr[i + 1] - begin;
    const set_size size(most, s.b.cols, s.idx);
    int32_t *const to = s.idx ? s.idx + begin : NULL;
    const bool lone = !to && !s.bits.words && s.is_lone(i);
    if (agreed<WARPS>(lone)) return;
    g::sync(); /* all have read ptr */
    int64_t found;
    column_range range = {0, s.b.cols};
    /* A row for which hashing is less work than bits of all columns. The group may have no memory
     * to hash it: then its columns lie so close together that bits of these fit, or B changed. */
    const bool hashes = size.hashed && !s.bits.words, fits = size.hash <= WARPS * ROOM;
    if (hashes && *s.schedule == 1) range = range_of<WARPS>(s, says, i);
    if (hashes && fits && (range.high - range.low) / 8 > size.hash)
        found = hash_row<WARPS>(s, says, reinterpret_cast<int32_t *>(room), i, (int)size.slots, to,
                                most);
    else
        found = bits_row<WARPS>(s, says, reinterpret_cast<uint32_t *>(room), i, WARPS * ROOM, range,
                                to, most);
    if (!to && !g::thread()) s.ptr[i + 1] = found;
    for (int64_t at = found + g::thread(); to && at < most; at += g::THREADS) to[at] = 0;
    g::sync();
}

/* The set of a block lies where those of its warps do. */
static __global__ void __launch_bounds__(BLOCK, 4)
    symbolic_rows(const symbolic_args s, const row_work w)
{
    __shared__ told says[WARPS];
    const int warp = threadIdx.x / WARP;
    for_rows(w, [&](int64_t i, int k, int) {
        if (k > 1)
            find_row<WARPS>(s, says, spgemm_shared, i);
        else
            find_row<1>(s, says + warp, spgemm_shared + warp * ROOM, i);
    });
}

static void launch_sets(const fmm_exec *exec, const symbolic_args &s, const row_work &w)
{
    launch_rows<symbolic_args>(exec, symbolic_rows, w, class_of_set{s}, s, WARPS * ROOM);
}

/* Columns of rows whose bits were kept. They fit into C also if B has changed since. */
template <int WARPS> static __global__ void __launch_bounds__(BLOCK) read_out(const symbolic_args s)
{
    enum { THREADS = group<WARPS>::THREADS };
    __shared__ told says[BLOCK / THREADS];
    const int64_t i = this_thread() / THREADS;
    if (i >= s.a.rows) return;
    const int64_t begin = s.ptr[i], most = s.ptr[i + 1] - begin;
    if (!most) return; /* a row without products has no bits */
    write_bits<WARPS>(s.bits.of(i), s.bits.words, 0, s.idx + begin, 0, most,
                      says + threadIdx.x / THREADS);
}

/* A warp reads a row out, or a block where it has more words than a warp takes in four steps. */
static void launch_read_out(const fmm_exec *exec, const symbolic_args &s)
{
    const bool is_long = s.bits.words > 4 * WARP;
    const int64_t blocks = is_long ? s.a.rows : ceil_div(s.a.rows, WARPS);
    const auto run = is_long ? read_out<WARPS> : read_out<1>;
    run<<<(unsigned)blocks, BLOCK, 0, stream_of(exec)>>>(s);
}

/* ---- the phase ---- */

/* What CUB asks for to add the rows' numbers up in ptr. */
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

/* Counts the rows' entries into ptr. */
static cudaError_t count_entries(const fmm_exec *exec, const symbolic_args &s, const row_work &w,
                                 void *scratch, size_t scratch_bytes)
{
    const cudaStream_t stream = stream_of(exec);
    launch_look(exec, look_args{s.a, s.b, s.ptr, s.schedule, w.lists});
    if (s.bits.packs)
        pack_rows<<<(unsigned)ceil_div(s.b.rows, WARPS), BLOCK, 0, stream>>>(s.b, s.bits);
    launch_sets(exec, s, w);
    /* CUB would give another name to what an earlier launch failed with. */
    cudaError_t said = cudaPeekAtLastError();
    if (said == cudaSuccess)
        said = cub::DeviceScan::InclusiveSum(scratch, scratch_bytes, s.ptr + 1, s.ptr + 1, w.rows,
                                             stream);
    cudaMemcpyAsync(&w.lists->entries, s.ptr + w.rows, sizeof *s.ptr, cudaMemcpyDeviceToDevice,
                    stream);
    return said;
}

/* Whether no row was in a class when rows were counted, and none will be. */
static bool all_small(const row_lists &found)
{
    counter others = 0;
    for (int k = 0; k < CLASSES; k++) others += found.counts[k];
    return !others;
}

/* Small rows come first, and where there are no others, all is done in one launch. C's columns, and
 * its values where those of A and B are known. */
static fmm_status fill_entries(const fmm_exec *exec, const fmm_spgemm_symbolic_call *call,
                               const symbolic_args &s, const row_work &w, const row_lists &found)
{
    const fmm_spgemm_pattern *out = call->out;
    const int64_t nnz = (int64_t)found.entries;
    const fmm_csr c = {w.rows, call->b->cols, nnz, s.ptr, s.idx};
    const fmm_spgemm_values *with = out->with;
    fmm_dense values = {.rows = nnz, .heads = 1, .feat = 1, .row_stride = 1, .head_stride = 1};
    fmm_spgemm of = {.b = call->b, .c = &c, .schedule = out->schedule};
    if (with) {
        values.dtype = with->dtype;
        values.data = with->values(out->owner, nnz);
        REQUIRE(values.data, FMM_OUT_OF_MEMORY,
                "spgemm: no memory for the %" PRId64 " entries of the product", nnz);
        of.b_val = with->b_val;
    }
    /* Small rows get columns and values in one pass; bits have the columns of all rows. */
    const fmm_call numeric = {
        .a = call->a, .val = with ? &with->a_val : NULL, .y = &values, .own = &of};
    numeric_args args = numeric_of(&numeric, SPGEMM_AUTO);
    args.merges = !s.bits.words;
    if (args.merges) {
        fmm_spgemm_small(exec, args, s.idx);
        if (all_small(found)) return FMM_OK;
        launch_sets(exec, s, w);
    } else
        launch_read_out(exec, s);
    if (with) fmm_spgemm_other_rows(exec, args, !found.falls && !found.has_long, w.lists);
    return FMM_OK;
}

/* What a plan keeps: where products go, if columns of B rise; or a number where all rows are small
 * and products many, since merges are faster there. */
static fmm_status keep_products(const fmm_exec *exec, const fmm_spgemm_symbolic_call *call,
                                const symbolic_args &s, const row_lists &found)
{
    const fmm_spgemm_pattern *out = call->out;
    const csr_view c = {s.ptr, s.idx, s.a.rows, (int64_t)found.entries, s.b.cols};
    enum { MANY = 1 << 23 };
    const bool merges = all_small(found);
    bool made = false;
    if (!found.falls && !(merges && found.products > MANY))
        TRY(fmm_spgemm_keep(exec, out, s.a, s.b, c, (int64_t)found.products, &made));
    if (made || !merges) return FMM_OK;
    REQUIRE(out->kept(out->owner, 1), FMM_OUT_OF_MEMORY, "spgemm: no memory for a number");
    return FMM_OK;
}

/* Between entering and leaving the device. The workspace has the lists of rows, the bits, if there
 * are any, and what counting needs; C's own memory comes from the pattern's owner. */
static fmm_status find_pattern(const fmm_exec *exec, const fmm_spgemm_symbolic_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_spgemm_pattern *out = call->out;
    symbolic_args s = {view_csr(a), view_csr(call->b), out->ptr, NULL, out->schedule, {}};
    const bool counts = out->want > FMM_SPGEMM_CHUNKS;
    row_work w = {};
    row_lists found = {};
    if (counts) TRY(may_wait(exec));
    if (counts && !a->rows) cudaMemsetAsync(out->ptr, 0, sizeof *out->ptr, stream_of(exec));
    if (!counts || !a->rows)
        launch_look(exec, look_args{s.a, s.b, NULL, out->schedule, NULL});
    else {
        s.bits.size(a, call->b);
        const bool few = !out->kept && are_few(s);
        const size_t lists = (row_work_bytes(a->rows) + 255) / 256 * 256;
        const size_t scratch_bytes =
            few ? blocks_of_few(s) * sizeof(int32_t) : scan_bytes(out->ptr, a->rows);
        spgemm_memory m;
        TRY(fmm_spgemm_ask(exec, lists + s.bits.bytes + scratch_bytes, &m));
        w = row_work_in(m.base, a->rows, 0);
        s.bits.place(m.base + lists);
        char *const scratch = m.base + lists + s.bits.bytes;
        cudaError_t said =
            few ? launch_count_few(exec, s, w.lists, reinterpret_cast<int32_t *>(scratch))
                : count_entries(exec, s, w, scratch, scratch_bytes);
        cudaMemcpyAsync(&found, w.lists, sizeof found, cudaMemcpyDeviceToHost, stream_of(exec));
        if (said == cudaSuccess) said = cudaStreamSynchronize(stream_of(exec));
        REQUIRE(said == cudaSuccess, FMM_DEVICE_ERROR, "spgemm: CUDA device %d: %s", exec->index,
                cudaGetErrorString(said));
    }
    if (out->want <= FMM_SPGEMM_COUNTS) return FMM_OK;
    const int64_t nnz = (int64_t)found.entries;
    s.idx = out->columns(out->owner, nnz);
    REQUIRE(s.idx || !nnz, FMM_OUT_OF_MEMORY,
            "spgemm: no memory for the %" PRId64 " entries of the product", nnz);
    if (!nnz) return FMM_OK;
    TRY(fill_entries(exec, call, s, w, found));
    return out->kept ? keep_products(exec, call, s, found) : FMM_OK;
}

extern "C" fmm_status fmm_spgemm_symbolic_cuda(const fmm_exec *exec,
                                               const fmm_spgemm_symbolic_call *call)
{
    int before;
    TRY(fmm_spgemm_countable(call->a));
    TRY(cuda_enter("spgemm", exec, &before));
    const fmm_status status = find_pattern(exec, call);
    const fmm_status left = cuda_leave("spgemm", exec, before);
    return status == FMM_OK ? left : status;
}
