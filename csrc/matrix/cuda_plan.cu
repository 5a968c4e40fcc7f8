/* Making a plan (cuda_plan.cuh): a stable counting sort of the rows by length class, and the list
 * of the pieces of long rows, in one launch whose steps cuda_plan_steps.cuh has.
 *
 *     count    ptr              --> how many rows each block has of each class
 *     place    ptr and these    --> header, starts, order, first, segments
 *
 * Classes fall: hubs, long, 8 per octave down to 33 entries, then up to 32, 16, 8, and empty. A
 * block owns neighbouring rows, each of its warps a stretch of them. Between the steps all blocks
 * wait for each other. Then each adds up the counts of those before it, walks the same rows in the
 * same order and ranks them by a ballot among equal classes: stable, without atomics on memory, the
 * same plan every time. The host waits for nothing. */
#include "cuda_plan_steps.cuh"
#include "../cuda/device.h"

/* Each block adds up the counts of all, so there are few, of many threads, and no more of them than
 * multiprocessors: then all are there at once, which the launch asks for. */
enum { BLOCKS_MAX = 128, THREADS_MIN = 512, THREADS_MAX = WARPS_MAX * WARP };

static __global__ void __launch_bounds__(THREADS_MAX)
    plan_make(const rows_view v, const plan_view p)
{
    __shared__ int counter[WARPS_MAX][LINES];
    count_rows(v, counter);
    wait_for_all<false>();
    place_rows(v, p, counter);
}

size_t plan_scratch(int64_t rows)
{
    return LINES * (size_t)smaller(rows / THREADS_MIN + 1, BLOCKS_MAX) * sizeof(int32_t);
}

void plan_build(const fmm_exec *exec, const fmm_csr *a, void *plan, void *scratch)
{
    const plan_size n = size_of_plan(a);
    plan_view p = view_plan(plan, n, plan_segments_max(n));
    /* Rows of a thread, then threads that spread the rows over all blocks. */
    const int64_t most = smaller(fmm_cuda_processors(exec->index), BLOCKS_MAX);
    const int64_t rows = a->rows ? a->rows : 1, each = ceil_div(rows, most * THREADS_MAX);
    int64_t threads = ceil_div(rows, most * each * 128) * 128;
    if (threads < THREADS_MIN) threads = THREADS_MIN;
    const unsigned blocks = (unsigned)ceil_div(rows, threads * each);
    rows_view v = {view_csr(a), p.segment, (int32_t)each * WARP, static_cast<int32_t *>(scratch)};
    void *args[] = {&v, &p};
    cudaLaunchCooperativeKernel(plan_make, dim3(blocks), dim3((unsigned)threads), args, 0,
                                stream_of(exec));
}

/* ---- for plan's entry in core/checks.c ---- */

extern "C" size_t fmm_cuda_plan_bytes(const fmm_csr *a)
{
    return plan_possible(a->rows, a->nnz) ? plan_bytes(size_of_plan(a)) : 0;
}

extern "C" fmm_status fmm_cuda_plan_workspace(const fmm_csr *a, size_t *bytes)
{
    *bytes = plan_possible(a->rows, a->nnz) ? plan_scratch(a->rows) : 0;
    return FMM_OK;
}

extern "C" fmm_status fmm_cuda_plan(const fmm_exec *exec, const fmm_csr *a, void *plan)
{
    if (!plan_possible(a->rows, a->nnz)) return FMM_OK;
    REQUIRE(plan && (uintptr_t)plan % 16 == 0, FMM_INVALID_ARGUMENT,
            "plan: the memory for the plan must be given, aligned to 16 bytes");
    return on_device("plan", exec, [&] { plan_build(exec, a, plan, exec->workspace); });
}
