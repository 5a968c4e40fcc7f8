/* The symbolic phase on CUDA: where C has entries.
 *
 *     look      products of each row of A; whether B's columns rise (cuda_look.cuh)
 *     bin       rows into classes, by their products (cuda_classes.cuh)
 *     count     each row's columns, as a set (cuda_sets.cuh); a launch for each class
 *     scan      ptr
 *     the host  waits for one number, C's entries, and takes memory for its columns
 *     bin       rows into classes, by their entries
 *     fill      each row's columns once more, read out in order; a launch for each class
 *
 * Sets do not depend on the order in which columns come, so each row's entries and their order
 * follow from the structures alone. Columns always rise: an unsorted order would depend on which
 * thread came first. B may change meanwhile: what is written stays inside the counted room. */
#include "cuda_look.cuh"
#include "cuda_sets.cuh"

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

/* A set needs nothing beside its memory. */
struct no_head {
};

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
