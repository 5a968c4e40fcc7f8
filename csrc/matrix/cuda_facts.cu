/* The facts about coordinates that decide how they are compressed (compress.c): how many are loops,
 * whether one lies outside, and whether they are in order already.
 *
 *     coordinates    | block 0      | block 1      | ...      a thread takes every step-th of them
 *     lines          | loops, outside, falls | ...            one line a block, which nobody zeroed
 *     facts          the sum of the lines, made on the host
 *
 * This waits for the device: it copies the lines. A deferred check does not. Few coordinates are
 * looked at by the launch that sorts them (cuda_sort.cu), which writes what it found to a word of
 * host memory as soon as it knows, and goes on. The host reads the word when it has launched all
 * that follows. */
#include "cuda_sort.cuh"

/* What a block found among its coordinates. */
struct facts {
    unsigned long long loops;
    unsigned outside, falls;
};
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
    loops = lane_sum<WARP>(loops);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = loops;
    /* A block's warps meet in shared memory, and its first thread writes the line. */
    const unsigned any_outside = __syncthreads_or(outside), any_falls = __syncthreads_or(falls);
    if (threadIdx.x) return;
    facts here = {0, any_outside, any_falls};
    for (int w = 0; w < BLOCK / WARP; w++) here.loops += of_warp[w];
    found[blockIdx.x] = here;
}

/* As many lines as there are blocks; without coordinates there are none. */
static int64_t lines_of(int64_t nnz)
{
    enum { EASY = 4 * BLOCK }; /* entries of a block before another is worth its line */
    return smaller(ceil_div(nnz, EASY), LINES_MAX);
}

/* A stream whose work is being captured into a CUDA graph cannot be waited for. */
static fmm_status may_wait(const fmm_exec *exec)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TRY(on_device("compress", exec, [&] { cudaStreamIsCapturing(stream_of(exec), &capture); }));
    REQUIRE(capture == cudaStreamCaptureStatusNone, FMM_UNSUPPORTED,
            "compress: a check of coordinates waits for the device, which a captured CUDA graph "
            "cannot: make the CSR before the capture");
    return FMM_OK;
}

/* Searches, waits for the lines of all blocks, and adds them up. */
extern "C" fmm_status fmm_cuda_coo_check(const fmm_exec *exec, const fmm_coo *a,
                                         fmm_coo_facts *facts_of)
{
    facts here[LINES_MAX], all = {};
    facts *const lines = static_cast<facts *>(exec->workspace);
    const cudaStream_t stream = stream_of(exec);
    const int64_t count = lines_of(a->nnz);
    TRY(may_wait(exec)); /* before a kernel is captured for nothing */
    TRY(on_device("compress", exec, [&] {
        if (!count) return;
        find_facts<<<(unsigned)count, BLOCK, 0, stream>>>(*a, lines);
        cudaMemcpyAsync(here, lines, (size_t)count * sizeof *here, cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
    }));
    for (int64_t k = 0; k < count; k++) {
        all.loops += here[k].loops;
        all.outside |= here[k].outside;
        all.falls |= here[k].falls;
    }
    REQUIRE(!all.outside, FMM_INVALID_ARGUMENT, "compress: a coordinate is outside");
    *facts_of = fmm_coo_facts{(int64_t)all.loops, !all.falls};
    return FMM_OK;
}

/* ---- answers of deferred checks ---- */

enum { ANSWERS = 4096 }; /* of the last so many tickets; a ticket's word is that of its remainder */

/* Host memory that devices write to, made once for the process; NULL where there is none. */
static uint64_t *answers(void)
{
    static uint64_t *kept;
    uint64_t *found = __atomic_load_n(&kept, __ATOMIC_ACQUIRE), *none = NULL;
    if (found) return found;
    if (cudaHostAlloc((void **)&found, ANSWERS * sizeof *found, cudaHostAllocPortable)) return NULL;
    for (int k = 0; k < ANSWERS; k++) found[k] = 0;
    if (__atomic_compare_exchange_n(&kept, &none, found, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return found;
    cudaFreeHost(found); /* another thread was earlier */
    return none;
}

/* What a word holds once its ticket has an answer. */
static uint64_t said_of(int64_t ticket) { return ((uint64_t)ticket + 1) * 2; }

/* A captured launch would answer again whenever it is replayed, in the place of later tickets.
 * Where there are no entries, nothing is launched to sort them, so nothing would answer. */
extern "C" fmm_answer fmm_cuda_coo_answer(const fmm_exec *exec, const fmm_coo *a, int64_t ticket)
{
    const bool sorts = a->nnz && few_bytes(exec, a->nnz, a->rows, a->cols);
    uint64_t *const all = sorts && may_wait(exec) == FMM_OK ? answers() : NULL;
    return fmm_answer{all ? all + (uint64_t)ticket % ANSWERS : NULL, said_of(ticket)};
}

/* The answer is there long before the stream has ended, as a rule, and asking the stream would wait
 * for all of it. So the word is read for a while first. A word that a later ticket has taken has no
 * answer any more: whoever waits then has to look at the coordinates. */
extern "C" fmm_status fmm_cuda_coo_wait(const fmm_exec *exec, int64_t ticket)
{
    enum { LOOKS = 1 << 14 };
    const uint64_t said = said_of(ticket);
    const uint64_t *const all = answers();
    REQUIRE(all, FMM_INVALID_ARGUMENT, "compress: no check of coordinates was deferred");
    const uint64_t *const word = all + (uint64_t)ticket % ANSWERS;
    uint64_t now = 0;
    for (int k = 0; k < LOOKS && now / 2 != said / 2; k++)
        now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (now / 2 != said / 2) {
        TRY(may_wait(exec));
        cudaStreamSynchronize(stream_of(exec)); /* what failed there gave no answer */
        now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    }
    REQUIRE(now == said, FMM_INVALID_ARGUMENT, "compress: a coordinate is outside");
    return FMM_OK;
}
