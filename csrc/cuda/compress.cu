/* The calls of compress.c on CUDA, for any content: what was not looked at is put where it does no
 * harm.
 *
 * Two stable radix sorts (CUB) of 32-bit keys, by column and then by row, each over the bits that
 * the sizes need; what travels with a key is the entry's number. Four arrays of 4 bytes, two of
 * which become idx and eid, are all that a sort of 2^31 entries takes. Self loops follow the other
 * entries and have a column beyond all others, which makes them the last of their rows. Then a
 * search per row finds ptr, and a gather idx. Sorts are the only launches whose number depends on
 * the sizes; nothing waits for the device but the look at the coordinates. */
#include "common.cuh"

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
    cudaStreamIsCapturing(stream, &capture);
    REQUIRE(capture == cudaStreamCaptureStatusNone, FMM_UNSUPPORTED,
            "compress: a look at coordinates waits for the device, which a captured CUDA graph "
            "cannot: make the CSR before the capture");
    TRY(cuda_enter("compress", exec, &before));
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

static void sort(const scratch &s, pair *keys, pair *values, int64_t n, int64_t most,
                 cudaStream_t stream)
{
    size_t bytes = s.sort_bytes;
    cub::DeviceRadixSort::SortPairs(s.sort, bytes, *keys, *values, (int)n, 0, bits_for(most),
                                    stream);
}

/* The first of n rising keys that is at least k. */
template <class K>
static __device__ __forceinline__ int64_t first_at_least(const K *keys, int64_t stride, int64_t n,
                                                         int64_t k)
{
    int64_t low = 0;
    for (int64_t count = n; count > 0;) {
        const int64_t half = count / 2, at = low + half;
        const bool below = int64_t(__ldg(keys + at * stride)) < k;
        low = below ? at + 1 : low;
        count = below ? count - half - 1 : half;
    }
    return low;
}

template <class K>
static __global__ void __launch_bounds__(BLOCK)
    find_groups(const K *keys, int64_t stride, int64_t n, int64_t groups, int64_t *ptr)
{
    const int64_t g = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (g <= groups) ptr[g] = first_at_least(keys, stride, n, g);
}

/* The row of entry p: the last that begins at or before it. */
static __device__ __forceinline__ int64_t row_at(const int64_t *ptr, int64_t rows, int64_t p)
{
    return clamp(first_at_least(ptr + 1, 1, rows, p + 1), 0, rows - 1);
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

extern "C" size_t fmm_cuda_compress_workspace(const fmm_coo *a, const fmm_coo_facts *f, bool loops)
{
    const int64_t n = entries_of(a, f, loops);
    size_t bytes = sort_bytes(n);
    if (loops && f->loops) {
        const size_t select = COUNT + select_bytes(a);
        bytes = select > bytes ? select : bytes;
    }
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
    if (kept) {
        size_t bytes = s.sort_bytes - COUNT;
        cub::DeviceSelect::If(static_cast<char *>(s.sort) + COUNT, bytes, numbers_from(0), kept,
                              static_cast<int64_t *>(s.sort), (int)a->nnz, is_no_loop{*a}, stream);
    }
    pair keys(reinterpret_cast<uint32_t *>(idx), s.keys);
    pair values(reinterpret_cast<uint32_t *>(eid), s.values);
    if (n) {
        const unsigned blocks = blocks_for(n);
        fill_columns<<<blocks, BLOCK, 0, stream>>>(c, keys.Current(), values.Current());
        sort(s, &keys, &values, n, a->cols, stream);
        fill_rows<<<blocks, BLOCK, 0, stream>>>(c, keys.Current(), values.Current());
        sort(s, &keys, &values, n, a->rows, stream);
    }
    find_groups<<<row_blocks, BLOCK, 0, stream>>>(keys.Current(), 1, n, a->rows, ptr);
    if (n) finish_rows<<<blocks_for(n), BLOCK, 0, stream>>>(c, values.Current(), idx, eid);
    return cuda_leave("compress", exec, before);
}

/* ---- a CSR to its transpose ---- */

static __global__ void __launch_bounds__(BLOCK)
    fill_entries(const csr_view a, uint32_t *key, uint32_t *value, uint32_t *row)
{
    const int64_t p = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (p >= a.nnz) return;
    key[p] = bounded(__ldg(a.idx + p), a.cols);
    value[p] = (uint32_t)p;
    row[p] = (uint32_t)row_at(a.ptr, a.rows, p);
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

extern "C" size_t fmm_cuda_transpose_workspace(const fmm_csr *a)
{
    return 3 * padded(a->nnz) + sort_bytes(a->nnz);
}

extern "C" fmm_status fmm_cuda_transpose(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr,
                                         int32_t *idx, int32_t *eid)
{
    int before;
    const cudaStream_t stream = stream_of(exec);
    TRY(cuda_enter("transpose", exec, &before));
    const scratch s = share_out(exec, a->nnz, 3);
    pair keys(reinterpret_cast<uint32_t *>(idx), s.keys);
    pair values(reinterpret_cast<uint32_t *>(eid), s.values);
    const unsigned blocks = blocks_for(a->nnz);
    if (a->nnz && a->rows) {
        fill_entries<<<blocks, BLOCK, 0, stream>>>(view_csr(a), keys.Current(), values.Current(),
                                                   s.rows);
        sort(s, &keys, &values, a->nnz, a->cols, stream);
    }
    find_groups<<<blocks_for(a->cols + 1), BLOCK, 0, stream>>>(keys.Current(), 1, a->nnz, a->cols,
                                                               ptr);
    if (a->nnz && a->rows)
        finish_columns<<<blocks, BLOCK, 0, stream>>>(
            a->nnz, values.Current(), s.rows, static_cast<const int32_t *>(a->eid), idx, eid);
    return cuda_leave("transpose", exec, before);
}

/* ---- the weights of a graph convolution ---- */

static __device__ __forceinline__ float root_of(const csr_view &a, int64_t i)
{
    int64_t begin;
    const int64_t degree = row_range(a, i, &begin);
    return degree ? rsqrtf((float)degree) : 0.0f;
}

static __global__ void __launch_bounds__(BLOCK)
    normalize(const csr_view a, const int32_t *eid, float *val, float *here)
{
    const int64_t p = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (p >= a.nnz) return;
    const int64_t j = __ldg(a.idx + p), e = eid ? __ldg(eid + p) : p;
    const float weight = uint64_t(j) < uint64_t(a.rows)
                             ? root_of(a, row_at(a.ptr, a.rows, p)) * root_of(a, j)
                             : 0.0f;
    here[p] = weight;
    if (uint64_t(e) < uint64_t(a.nnz)) val[e] = weight;
}

extern "C" fmm_status fmm_cuda_normalize(const fmm_exec *exec, const fmm_csr *a, float *val,
                                         float *here)
{
    int before;
    TRY(cuda_enter("normalize", exec, &before));
    if (a->nnz)
        normalize<<<blocks_for(a->nnz), BLOCK, 0, stream_of(exec)>>>(
            view_csr(a), static_cast<const int32_t *>(a->eid), val, here);
    return cuda_leave("normalize", exec, before);
}

/* ---- the gradient of a mean ---- */

/* A warp to a row. */
static __global__ void __launch_bounds__(BLOCK)
    mean_back(const int64_t *ptr, const float *g, int64_t rows, uint32_t feat, uint32_t width,
              int64_t row_stride, int64_t head_stride, float *out)
{
    const int64_t i = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / WARP;
    if (i >= rows) return;
    const int64_t entries = __ldg(ptr + i + 1) - __ldg(ptr + i);
    const float share = float(entries > 1 ? entries : 1);
    for (uint32_t c = threadIdx.x % WARP; c < width; c += WARP) {
        const uint32_t h = c / feat;
        out[i * width + c] = __ldg(g + i * row_stride + h * head_stride + (c - h * feat)) / share;
    }
}

extern "C" fmm_status fmm_cuda_mean_back(const fmm_exec *exec, const int64_t *ptr,
                                         const fmm_dense *g, float *out)
{
    int before;
    const int64_t width = g->heads * g->feat;
    REQUIRE(width <= INT32_MAX, FMM_UNSUPPORTED, "mean_back: more channels than int32 counts");
    TRY(cuda_enter("mean_back", exec, &before));
    if (g->rows && width)
        mean_back<<<blocks_for(g->rows * WARP), BLOCK, 0, stream_of(exec)>>>(
            ptr, static_cast<const float *>(g->data), g->rows, (uint32_t)g->feat, (uint32_t)width,
            g->row_stride, g->head_stride, out);
    return cuda_leave("mean_back", exec, before);
}
