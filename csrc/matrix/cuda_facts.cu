/* The facts about coordinates that decide how they are compressed (compress.c): how many are loops,
 * whether one lies outside, and whether they are in order already.
 *
 *     coordinates    | block 0      | block 1      | ...      a thread takes every step-th of them
 *     lines          | loops, outside, falls | ...            one line a block, which nobody zeroed
 *     facts          the sum of the lines, made on the host
 *
 * Of all calls that make a matrix only this one waits for the device: it copies the lines. The
 * search and the wait can be asked for one by one, so that other work goes on between them. What
 * one launch puts in order is looked at there (cuda_sort.cu), and its answer is one line. */
#include "cuda_sort.cuh"

enum { LINES_MAX = FMM_COO_CHECK_BYTES / sizeof(facts) };

/* A line of facts for each block, so that nothing need be zero before. */
static __global__ void __launch_bounds__(BLOCK) find_facts(const fmm_coo a, facts *found)
{
    __shared__ unsigned of_warp[BLOCK / WARP];
    unsigned loops = 0;
    bool outside = false, falls = false;
    for (int64_t p = this_thread(); p < a.nnz; p += all_threads()) {
        const int64_t r = row_of(a, p), c = col_of(a, p), before = p ? p - 1 : 0;
        const int64_t last = row_of(a, before);
        /* Loops, and whether the entry comes before the one that stands before it. */
        outside |= uint64_t(r) >= uint64_t(a.rows) || uint64_t(c) >= uint64_t(a.cols);
        loops += r == c;
        falls |= r < last || (r == last && c < col_of(a, before));
    }
    for (int d = WARP / 2; d; d /= 2) loops += __shfl_xor_sync(ALL, loops, d);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = loops;
    /* A block's warps meet in shared memory, and its first thread writes the line. */
    const unsigned any_outside = __syncthreads_or(outside), any_falls = __syncthreads_or(falls);
    if (threadIdx.x) return;
    facts here = {0, any_outside, any_falls};
    for (int w = 0; w < BLOCK / WARP; w++) here.loops += of_warp[w];
    found[blockIdx.x] = here;
}

/* Blocks of the search, each of which leaves a line; without coordinates there are none. */
static int64_t blocks_of(int64_t nnz)
{
    enum { EASY = 4 * BLOCK }; /* entries of a block before another is worth its line */
    return smaller(ceil_div(nnz, EASY), LINES_MAX);
}

extern "C" int64_t fmm_cuda_coo_lines(const fmm_exec *exec, const fmm_coo *a)
{
    const int64_t blocks = blocks_of(a->nnz);
    return few_bytes(exec, a->nnz, a->rows, a->cols) ? smaller(blocks, 1) : blocks;
}

void search_facts(const fmm_exec *exec, const fmm_coo *a, int64_t *found)
{
    const int64_t blocks = blocks_of(a->nnz);
    if (blocks)
        find_facts<<<(unsigned)blocks, BLOCK, 0, stream_of(exec)>>>(
            *a, reinterpret_cast<facts *>(found));
}

/* A stream whose work is being captured into a CUDA graph cannot be waited for. */
static fmm_status may_wait(const fmm_exec *exec)
{
    int before;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TRY(cuda_enter("compress", exec, &before));
    cudaStreamIsCapturing(stream_of(exec), &capture);
    cuda_leave("compress", exec, before);
    REQUIRE(capture == cudaStreamCaptureStatusNone, FMM_UNSUPPORTED,
            "compress: a check of coordinates waits for the device, which a captured CUDA graph "
            "cannot: make the CSR before the capture");
    return FMM_OK;
}

/* Waits for the lines of all blocks and adds them up. */
static fmm_status read_facts(const fmm_exec *exec, const int64_t *lines, int64_t count,
                             fmm_coo_facts *facts_of)
{
    facts here[LINES_MAX], all = {};
    int before;
    const cudaStream_t stream = stream_of(exec);
    TRY(cuda_enter("compress", exec, &before));
    if (count) {
        cudaMemcpyAsync(here, lines, (size_t)count * sizeof *here, cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
    }
    TRY(cuda_leave("compress", exec, before));
    for (int64_t k = 0; k < count; k++) {
        all.loops += here[k].loops;
        all.outside |= here[k].outside;
        all.falls |= here[k].falls;
    }
    REQUIRE(!all.outside, FMM_INVALID_ARGUMENT, "compress: a coordinate is outside");
    *facts_of = fmm_coo_facts{(int64_t)all.loops, !all.falls};
    return FMM_OK;
}

/* Reads what a search left that was launched earlier. */
extern "C" fmm_status fmm_cuda_coo_check_wait(const fmm_exec *exec, const int64_t *lines,
                                              int64_t count, fmm_coo_facts *facts_of)
{
    REQUIRE(count <= LINES_MAX, FMM_INVALID_ARGUMENT, "compress: no check leaves so many lines");
    TRY(may_wait(exec));
    return read_facts(exec, lines, count, facts_of);
}

/* Launches the search and waits for it. */
extern "C" fmm_status fmm_cuda_coo_check(const fmm_exec *exec, const fmm_coo *a,
                                         fmm_coo_facts *facts_of)
{
    int64_t *const lines = static_cast<int64_t *>(exec->workspace);
    int before;
    TRY(may_wait(exec)); /* before a kernel is captured for nothing */
    TRY(cuda_enter("compress", exec, &before));
    search_facts(exec, a, lines);
    TRY(cuda_leave("compress", exec, before));
    return read_facts(exec, lines, blocks_of(a->nnz), facts_of);
}
