/* The facts about coordinates that decide how they are compressed (compress.c): how many are loops,
 * whether one lies outside, and whether they are in order already.
 *
 *     coordinates    | block 0      | block 1      | ...      a thread takes every step-th of them
 *     lines          | loops, outside, falls | ...            one line a block, which nobody zeroed
 *     facts          the sum of the lines, made on the host
 *
 * Of all calls that make a matrix only this one waits for the device: it copies the lines. The
 * search and the wait can be asked for one by one, so that other work goes on between them. A copy
 * of the lines would wait for that work too. So a search that is waited for later also tells host
 * memory that a coordinate is outside, and an event behind it says when it is over. */
#include "cuda_sort.cuh"

/* What a block found among its coordinates. */
struct facts {
    unsigned long long loops;
    unsigned outside, falls;
};
static_assert(sizeof(facts) == FMM_COO_LINE * sizeof(int64_t), "a line as others see it");
enum { LINES_MAX = FMM_COO_CHECK_BYTES / sizeof(facts) };

/* A line of facts for each block, so that nothing need be zero before. Where host memory is to be
 * told, it becomes 1 if a coordinate is outside, whichever block finds it. */
static __global__ void __launch_bounds__(BLOCK)
    find_facts(const fmm_coo a, facts *found, unsigned *told)
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
    if (any_outside && told) *told = 1;
}

/* As many lines as there are blocks; without coordinates there are none. */
extern "C" int64_t fmm_cuda_coo_lines(int64_t nnz)
{
    enum { EASY = 4 * BLOCK }; /* entries of a block before another is worth its line */
    return smaller(ceil_div(nnz, EASY), LINES_MAX);
}

/* ---- searches that are waited for later ---- */

/* What waits for one. A thread keeps a few of them, with their event and host memory, for good. */
struct answer {
    const int64_t *lines; /* of the search that it belongs to, or NULL */
    cudaEvent_t over;
    unsigned *outside; /* in host memory that the device writes to */
    int device;
};
enum { ANSWERS = 8 }; /* searches of a thread that nobody has waited for yet */
static thread_local answer answers[ANSWERS];

/* An answer for a search on the current device, whose own search before is over: nothing writes to
 * it any more. NULL where there is none left, and in a stream that is captured, whose kernels would
 * write to it at every replay; then the wait copies the lines. */
static answer *take_answer(const fmm_exec *exec, const int64_t *lines)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    answer *found = NULL;
    cudaStreamIsCapturing(stream_of(exec), &capture);
    for (int k = 0; k < ANSWERS; k++) {
        answer *const a = answers + k;
        if (a->lines == lines) a->lines = NULL; /* memory of a matrix that is gone */
        if (found || capture != cudaStreamCaptureStatusNone) continue;
        if (!a->over) {
            a->device = exec->index;
            if (cudaHostAlloc((void **)&a->outside, sizeof *a->outside, cudaHostAllocMapped) ==
                cudaSuccess)
                cudaEventCreateWithFlags(&a->over, cudaEventDisableTiming);
        }
        if (a->over && a->device == exec->index && cudaEventQuery(a->over) == cudaSuccess)
            found = a;
    }
    cudaGetLastError(); /* that a search is not over is none */
    if (!found) return NULL;
    found->lines = lines;
    *found->outside = 0;
    return found;
}

/* Waits for the answer to a search, if this thread has one: says so, and what it is. */
static bool read_answer(const fmm_exec *exec, const int64_t *lines, bool *outside)
{
    for (int k = 0; k < ANSWERS; k++) {
        answer *const a = answers + k;
        if (!lines || a->lines != lines || a->device != exec->index) continue;
        a->lines = NULL;
        if (cudaEventSynchronize(a->over) != cudaSuccess) return false; /* the copy will say why */
        *outside = *(volatile unsigned *)a->outside != 0;
        return true;
    }
    return false;
}

/* Launches the search for facts and waits for nothing. */
static fmm_status start(const fmm_exec *exec, const fmm_coo *a, int64_t *lines, bool later)
{
    int before;
    const int64_t blocks = fmm_cuda_coo_lines(a->nnz);
    TRY(cuda_enter("compress", exec, &before));
    if (blocks) {
        answer *const wanted = later ? take_answer(exec, lines) : NULL;
        find_facts<<<(unsigned)blocks, BLOCK, 0, stream_of(exec)>>>(
            *a, reinterpret_cast<facts *>(lines), wanted ? wanted->outside : NULL);
        if (wanted) cudaEventRecord(wanted->over, stream_of(exec));
    }
    return cuda_leave("compress", exec, before);
}

extern "C" fmm_status fmm_cuda_coo_check_start(const fmm_exec *exec, const fmm_coo *a,
                                               int64_t *lines)
{
    return start(exec, a, lines, true);
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
    bool outside = false;
    REQUIRE(count <= LINES_MAX, FMM_INVALID_ARGUMENT, "compress: no check leaves so many lines");
    TRY(may_wait(exec));
    if (!count || !read_answer(exec, lines, &outside))
        return read_facts(exec, lines, count, facts_of);
    REQUIRE(!outside, FMM_INVALID_ARGUMENT, "compress: a coordinate is outside");
    *facts_of = fmm_coo_facts{}; /* nobody asks a check that comes after the compression */
    return FMM_OK;
}

/* Launches the search and waits for it. */
extern "C" fmm_status fmm_cuda_coo_check(const fmm_exec *exec, const fmm_coo *a,
                                         fmm_coo_facts *facts_of)
{
    int64_t *const lines = static_cast<int64_t *>(exec->workspace);
    TRY(may_wait(exec)); /* before a kernel is captured for nothing */
    TRY(start(exec, a, lines, false));
    return read_facts(exec, lines, fmm_cuda_coo_lines(a->nnz), facts_of);
}
