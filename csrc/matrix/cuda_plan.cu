/* Making a plan (cuda_plan.cuh): a stable counting sort of the rows by length class, and the list
 * of the pieces of long rows.
 *
 *     plan_count    all blocks   ptr                       --> a number for each class and block
 *     plan_scan     one block    those numbers             --> first positions, header
 *     plan_place    all blocks   ptr and first positions   --> order, first, segments
 *
 * Classes fall: hubs, long, 8 per octave down to 33 entries, then up to 32, 16, 8, and empty. A
 * block owns neighbouring rows, each of its warps a stretch of them. `count` leaves one number per
 * class and block (and one line for the pieces), `scan` turns them into first positions, `place`
 * walks the same rows in the same order and ranks them by a ballot among equal classes: stable,
 * without atomics on memory, the same plan every time. Three launches and no synchronisation,
 * whatever the matrix. */
#include "cuda_plan_steps.cuh"

static __global__ void __launch_bounds__(BLOCK) plan_count(const rows_view v) { count_rows(v); }

/* One block: there are some 60 numbers per block of rows. */
static __global__ void __launch_bounds__(1024) plan_scan(const rows_view v, const plan_view p)
{
    scan_classes(v, p);
}

static __global__ void __launch_bounds__(BLOCK) plan_place(const rows_view v, const plan_view p)
{
    place_rows(v, p);
}

/* Rows per warp: enough blocks for a card, but not so many that one block scans them for long. */
static int32_t stretch_of(int64_t rows)
{
    const int64_t even = ceil_div(ceil_div(rows, 256 * WARPS), WARP) * WARP;
    return even < WARP ? 32 : even > 256 ? 256 : (int32_t)even;
}

static int64_t blocks_of(int64_t rows)
{
    return ceil_div(rows > 0 ? rows : 1, WARPS * stretch_of(rows));
}

size_t plan_scratch(int64_t rows)
{
    return (size_t)LINES * (size_t)blocks_of(rows) * sizeof(int32_t);
}

void plan_build(cudaStream_t stream, const fmm_csr *a, void *plan, void *scratch)
{
    const plan_size n = size_of_plan(a);
    const plan_view p = view_plan(plan, n, plan_segments_max(n));
    const rows_view v = {view_csr(a), p.segment, (int32_t)blocks_of(a->rows), stretch_of(a->rows),
                         static_cast<int32_t *>(scratch)};
    plan_count<<<(unsigned)v.blocks, BLOCK, 0, stream>>>(v);
    plan_scan<<<1, 1024, 0, stream>>>(v, p);
    plan_place<<<(unsigned)v.blocks, BLOCK, 0, stream>>>(v, p);
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
    return on_device("plan", exec, [&] { plan_build(stream_of(exec), a, plan, exec->workspace); });
}
