/* The calls of compress.c on CUDA, for any content: what was not looked at is put where it does no
 * harm.
 *
 * Two stable radix sorts (CUB) of 32-bit keys, by column and then by row, each over the bits that
 * the sizes need; what travels with a key is the entry's number. Four arrays of 4 bytes, two of
 * which become idx and eid, are all that a sort of 2^31 entries takes. Self loops follow the other
 * entries and have a column beyond all others, which makes them the last of their rows. Then a
 * search per row finds ptr, and a gather idx. Sorts are the only launches whose number depends on
 * the sizes; nothing waits for the device but the look at the coordinates. */
#include "search.cuh"

/* CUB includes <iostream> for a file of its own that is not used here; with libstdc++ before 13
 * that alone would link the C++ runtime. */
#include <ostream>
#define _GLIBCXX_IOSTREAM 1

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

extern "C" {
#include "../compress.h"
}

typedef cub::DoubleBuffer<uint32_t> pair; /* of arrays, between which a sort goes to and fro */

/* ---- what the coordinates are ---- */

typedef struct facts {
    unsigned long long loops;
    unsigned outside, falls;
} facts;
static_assert(sizeof(facts) <= FMM_COO_LOOK_BYTES, "the workspace of a look");

static __device__ __forceinline__ int64_t row_of(const fmm_coo &a, int64_t p)
{
    return __ldg(a.row + p * a.row_stride);
}
static __device__ __forceinline__ int64_t col_of(const fmm_coo &a, int64_t p)
{
    return __ldg(a.col + p * a.col_stride);
}

static __global__ void __launch_bounds__(BLOCK) coo_look(const fmm_coo a, facts *found)
{
    const int64_t step = int64_t(gridDim.x) * BLOCK;
    unsigned loops = 0;
    bool outside = false, falls = false;
    for (int64_t p = int64_t(blockIdx.x) * BLOCK + threadIdx.x; p < a.nnz; p += step) {
        const int64_t r = row_of(a, p), c = col_of(a, p), before = p ? p - 1 : 0;
        const int64_t last = row_of(a, before);
        outside |= uint64_t(r) >= uint64_t(a.rows) || uint64_t(c) >= uint64_t(a.cols);
        loops += r == c;
        falls |= r < last || (r == last && c < col_of(a, before));
    }
    for (int d = WARP / 2; d; d /= 2) loops += __shfl_xor_sync(ALL, loops, d);
    const bool any_outside = __any_sync(ALL, outside), any_falls = __any_sync(ALL, falls);
    if (threadIdx.x % WARP) return;
    if (loops) atomicAdd(&found->loops, (unsigned long long)loops);
    if (any_outside) found->outside = 1;
    if (any_falls) found->falls = 1;
}

extern "C" fmm_status fmm_cuda_coo_look(const fmm_exec *exec, const fmm_coo *a,
                                        fmm_coo_facts *facts_of)
{
    enum { BLOCKS_MAX = 4096 };
    facts here = {};
    int before;
    const cudaStream_t stream = stream_of(exec);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TRY(cuda_enter("compress", exec, &before));
    cudaStreamIsCapturing(stream, &capture);
    if (capture != cudaStreamCaptureStatusNone) {
        cuda_leave("compress", exec, before);
        return fmm_fail(FMM_UNSUPPORTED, "compress: a look at coordinates waits for the device, "
                                         "which a captured CUDA graph cannot: make the CSR before "
                                         "the capture");
    }
    facts *const found = static_cast<facts *>(exec->workspace);
    cudaMemsetAsync(found, 0, sizeof *found, stream);
    const int64_t blocks = smaller(blocks_for(a->nnz), BLOCKS_MAX);
    if (blocks) coo_look<<<(unsigned)blocks, BLOCK, 0, stream>>>(*a, found);
    cudaMemcpyAsync(&here, found, sizeof here, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    TRY(cuda_leave("compress", exec, before));
    REQUIRE(!here.outside, FMM_INVALID_ARGUMENT, "compress: a coordinate is outside");
    *facts_of = fmm_coo_facts{(int64_t)here.loops, !here.falls};
    return FMM_OK;
}

/* ---- sorts ---- */

/* Bits that tell the keys 0 .. most apart. */
static int bits_for(int64_t most)
{
    int bits = 1;
    while (most >> bits) bits++;
    return bits;
}

static size_t sort_bytes(int64_t n)
{
    size_t bytes = 0;
    pair keys, values;
    cub::DeviceRadixSort::SortPairs(NULL, bytes, keys, values, (int)n);
    return bytes;
}

struct scratch {
    void *sort;
    size_t sort_bytes;
    uint32_t *keys, *values, *rows; /* [n] each; rows of a transpose */
};

static size_t padded(int64_t n) { return ((size_t)n * 4 + 255) / 256 * 256; }

static scratch share_out(const fmm_exec *exec, int64_t n, int arrays)
{
    char *const at = static_cast<char *>(exec->workspace);
    const size_t size = padded(n);
    return scratch{at + arrays * size, exec->workspace_bytes - arrays * size,
                   reinterpret_cast<uint32_t *>(at), reinterpret_cast<uint32_t *>(at + size),
                   reinterpret_cast<uint32_t *>(at + 2 * size)};
}

static cudaError_t sort(const scratch &s, pair *keys, pair *values, int64_t n, int64_t most,
                        cudaStream_t stream)
{
    size_t bytes = s.sort_bytes;
    return cub::DeviceRadixSort::SortPairs(s.sort, bytes, *keys, *values, (int)n, 0, bits_for(most),
                                           stream);
}

/* Leaves the device; what CUB says of a call is no error of the runtime. */
static fmm_status leave(const char *op, const fmm_exec *exec, int before, cudaError_t said)
{
    const fmm_status status = cuda_leave(op, exec, before);
    REQUIRE(status != FMM_OK || said == cudaSuccess, FMM_DEVICE_ERROR,
            "%s: sort on CUDA device %d: %s", op, exec->index, cudaGetErrorString(said));
    return status;
}

template <class K>
static __global__ void __launch_bounds__(BLOCK)
    find_groups(const K *keys, int64_t stride, int64_t n, int64_t groups, int64_t *ptr)
{
    const int64_t g = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (g <= groups) ptr[g] = first_at_least(keys, stride, n, g);
}

/* ---- coordinates to a CSR ---- */

struct coordinates {
    fmm_coo a;
    const int64_t *kept; /* NULL: all */
    int64_t others, total;
};

/* Entry k of those that are sorted: a coordinate, or behind them the loop of a node. */
static __device__ __forceinline__ int64_t source(const coordinates &c, int64_t k)
{
    return c.kept ? __ldg(c.kept + k) : k;
}

static __device__ __forceinline__ uint32_t bounded(int64_t v, int64_t n)
{
    return (uint32_t)(uint64_t(v) < uint64_t(n) ? v : n);
}

static __global__ void __launch_bounds__(BLOCK)
    fill_columns(const coordinates c, uint32_t *key, uint32_t *value)
{
    const int64_t k = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (k >= c.total) return;
    key[k] = k < c.others ? bounded(col_of(c.a, source(c, k)), c.a.cols) : (uint32_t)c.a.cols;
    value[k] = (uint32_t)k;
}

static __global__ void __launch_bounds__(BLOCK)
    fill_rows(const coordinates c, uint32_t *key, const uint32_t *value)
{
    const int64_t q = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (q >= c.total) return;
    const int64_t k = value[q];
    key[q] = k < c.others ? bounded(row_of(c.a, source(c, k)), c.a.rows) : (uint32_t)(k - c.others);
}

static __global__ void __launch_bounds__(BLOCK)
    finish_rows(const coordinates c, const uint32_t *value, int32_t *idx, int32_t *eid)
{
    const int64_t q = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (q >= c.total) return;
    const int64_t k = value[q];
    idx[q] = (int32_t)(k < c.others ? col_of(c.a, source(c, k)) : k - c.others);
    if (reinterpret_cast<uint32_t *>(eid) != value) eid[q] = (int32_t)k;
}

static __global__ void __launch_bounds__(BLOCK) take_columns(const fmm_coo a, int32_t *idx)
{
    const int64_t p = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (p < a.nnz) idx[p] = (int32_t)col_of(a, p);
}

struct is_no_loop {
    fmm_coo a;
    __device__ bool operator()(int64_t p) const { return row_of(a, p) != col_of(a, p); }
};

typedef thrust::counting_iterator<int64_t> numbers_from;

enum { COUNT = 256 }; /* bytes before what a selection needs, for how many it found */

static size_t select_bytes(const fmm_coo *a)
{
    size_t bytes = 0;
    cub::DeviceSelect::If(NULL, bytes, numbers_from(0), (int64_t *)NULL, (int64_t *)NULL,
                          (int)a->nnz, is_no_loop{*a});
    return bytes;
}

static int64_t entries_of(const fmm_coo *a, const fmm_coo_facts *f, bool loops)
{
    return loops ? a->nnz - f->loops + smaller(a->rows, a->cols) : a->nnz;
}

/* What CUB needs depends on the card; where it cannot say, its call will. */
extern "C" size_t fmm_cuda_compress_workspace(const fmm_exec *exec, const fmm_coo *a,
                                              const fmm_coo_facts *f, bool loops)
{
    int before;
    const int64_t n = entries_of(a, f, loops);
    if (cuda_enter("compress", exec, &before) != FMM_OK) return 0;
    size_t bytes = sort_bytes(n);
    if (loops && f->loops) {
        const size_t select = COUNT + select_bytes(a);
        bytes = select > bytes ? select : bytes;
    }
    cuda_leave("compress", exec, before);
    return 2 * padded(n) + bytes;
}

extern "C" fmm_status fmm_cuda_compress(const fmm_exec *exec, const fmm_coo *a,
                                        const fmm_coo_facts *f, bool loops, int64_t *ptr,
                                        int32_t *idx, int32_t *eid, int64_t *kept)
{
    int before;
    const cudaStream_t stream = stream_of(exec);
    const unsigned row_blocks = blocks_for(a->rows + 1);
    TRY(cuda_enter("compress", exec, &before));
    if (!eid) {
        find_groups<<<row_blocks, BLOCK, 0, stream>>>(a->row, a->row_stride, a->nnz, a->rows, ptr);
        if (a->nnz) take_columns<<<blocks_for(a->nnz), BLOCK, 0, stream>>>(*a, idx);
        return cuda_leave("compress", exec, before);
    }
    const int64_t n = entries_of(a, f, loops);
    const coordinates c = {*a, kept, loops ? a->nnz - f->loops : a->nnz, n};
    const scratch s = share_out(exec, n, 2);
    cudaError_t said = cudaSuccess;
    if (kept) {
        size_t bytes = s.sort_bytes - COUNT;
        said = cub::DeviceSelect::If(static_cast<char *>(s.sort) + COUNT, bytes, numbers_from(0),
                                     kept, static_cast<int64_t *>(s.sort), (int)a->nnz,
                                     is_no_loop{*a}, stream);
    }
    pair keys(reinterpret_cast<uint32_t *>(idx), s.keys);
    pair values(reinterpret_cast<uint32_t *>(eid), s.values);
    if (n) {
        const unsigned blocks = blocks_for(n);
        fill_columns<<<blocks, BLOCK, 0, stream>>>(c, keys.Current(), values.Current());
        if (said == cudaSuccess) said = sort(s, &keys, &values, n, a->cols, stream);
        fill_rows<<<blocks, BLOCK, 0, stream>>>(c, keys.Current(), values.Current());
        if (said == cudaSuccess) said = sort(s, &keys, &values, n, a->rows, stream);
    }
    find_groups<<<row_blocks, BLOCK, 0, stream>>>(keys.Current(), 1, n, a->rows, ptr);
    if (n) finish_rows<<<blocks_for(n), BLOCK, 0, stream>>>(c, values.Current(), idx, eid);
    return leave("compress", exec, before, said);
}

/* ---- a CSR to its transpose ---- */

static __global__ void __launch_bounds__(BLOCK)
    fill_entries(const csr_view a, uint32_t *key, uint32_t *value, uint32_t *row)
{
    const int64_t p = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (p >= a.nnz) return;
    key[p] = bounded(__ldg(a.idx + p), a.cols);
    value[p] = (uint32_t)p;
    row[p] = (uint32_t)row_of_entry(a.ptr, a.rows, p);
}

static __global__ void __launch_bounds__(BLOCK)
    finish_columns(int64_t nnz, const uint32_t *value, const uint32_t *row, const int32_t *given,
                   int32_t *idx, int32_t *eid)
{
    const int64_t q = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (q >= nnz) return;
    const uint32_t p = value[q];
    idx[q] = (int32_t)row[p];
    eid[q] = given ? given[p] : (int32_t)p;
}

extern "C" size_t fmm_cuda_transpose_workspace(const fmm_exec *exec, const fmm_csr *a)
{
    int before;
    if (cuda_enter("transpose", exec, &before) != FMM_OK) return 0;
    const size_t bytes = sort_bytes(a->nnz);
    cuda_leave("transpose", exec, before);
    return 3 * padded(a->nnz) + bytes;
}

extern "C" fmm_status fmm_cuda_transpose(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr,
                                         int32_t *idx, int32_t *eid)
{
    int before;
    const cudaStream_t stream = stream_of(exec);
    TRY(cuda_enter("transpose", exec, &before));
    const scratch s = share_out(exec, a->nnz, 3);
    cudaError_t said = cudaSuccess;
    pair keys(reinterpret_cast<uint32_t *>(idx), s.keys);
    pair values(reinterpret_cast<uint32_t *>(eid), s.values);
    const unsigned blocks = blocks_for(a->nnz);
    if (a->nnz && a->rows) {
        fill_entries<<<blocks, BLOCK, 0, stream>>>(view_csr(a), keys.Current(), values.Current(),
                                                   s.rows);
        said = sort(s, &keys, &values, a->nnz, a->cols, stream);
    }
    find_groups<<<blocks_for(a->cols + 1), BLOCK, 0, stream>>>(keys.Current(), 1, a->nnz, a->cols,
                                                               ptr);
    if (a->nnz && a->rows)
        finish_columns<<<blocks, BLOCK, 0, stream>>>(
            a->nnz, values.Current(), s.rows, static_cast<const int32_t *>(a->eid), idx, eid);
    return leave("transpose", exec, before, said);
}
