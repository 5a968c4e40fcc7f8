/* What a training step that makes a graph of its own asks for beside the structure (compress.c):
 * the weights of a graph convolution, and the gradient of a mean.
 *
 *     normalize    a thread owns entry p and searches for its row i:  1 / sqrt(degree i * degree j)
 *     mean_back    a warp owns row i, its lanes the channels:         g[i] / degree i
 *
 * Each output has one owner and one product, so the bits are the same every time. */
#include "../cuda/search.cuh"
#include "compress.h"

/* ---- the weights of a graph convolution ---- */

/* A node without edges has weight 0, not infinity. */
static __device__ __forceinline__ float root_of(const csr_view &a, int64_t i)
{
    int64_t begin;
    const int64_t degree = row_range(a, i, &begin);
    return degree ? rsqrtf((float)degree) : 0.0f;
}

/* Writes each weight twice: at its edge in the caller's order, and at its entry in the matrix's. */
static __global__ void __launch_bounds__(BLOCK)
    normalize(const csr_view a, const int32_t *eid, float *val, float *here)
{
    const int64_t p = this_thread();
    if (p >= a.nnz) return;
    const int64_t j = __ldg(a.idx + p), e = eid ? __ldg(eid + p) : p;
    const float weight =
        uint64_t(j) < uint64_t(a.rows) ? root_of(a, row_of(a, p)) * root_of(a, j) : 0.0f;
    here[p] = weight;
    if (uint64_t(e) < uint64_t(a.nnz)) val[e] = weight;
}

extern "C" fmm_status fmm_cuda_normalize(const fmm_exec *exec, const fmm_csr *a, float *val,
                                         float *here)
{
    return on_device("normalize", exec, [&] {
        if (a->nnz)
            normalize<<<blocks_for(a->nnz), BLOCK, 0, stream_of(exec)>>>(
                view_csr(a), static_cast<const int32_t *>(a->eid), val, here);
    });
}

/* ---- the gradient of a mean ---- */

/* Rows of out are dense, [rows, heads * feat]; those of g have strides. Channels are counted in 32
 * bits, since a division of 64 takes longer than the rest. A row without entries is divided by 1,
 * as its mean was 0 for any x. */
static __global__ void __launch_bounds__(BLOCK)
    mean_back(const int64_t *ptr, const float *g, int64_t rows, uint32_t feat, uint32_t width,
              int64_t row_stride, int64_t head_stride, float *out)
{
    const int64_t i = this_thread() / WARP;
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
    const int64_t width = g->heads * g->feat;
    REQUIRE(width <= INT32_MAX, FMM_UNSUPPORTED, "mean_back: more channels than int32 counts");
    return on_device("mean_back", exec, [&] {
        if (g->rows && width)
            mean_back<<<blocks_for(g->rows * WARP), BLOCK, 0, stream_of(exec)>>>(
                ptr, static_cast<const float *>(g->data), g->rows, (uint32_t)g->feat,
                (uint32_t)width, g->row_stride, g->head_stride, out);
    });
}
