/* SpMV `coo`: the kernel of cuda_segments.cuh over a COO matrix, whose entries say their rows.
 *
 *     row     0 0 0 2 | 2 2 2 2 | 2 3 5 5      shares of equally many entries
 *
 *     launch 1: every row is written as if it had no entry, so that rows 1 and 4 stay right
 *
 *     launch 2: each share adds up its runs of equal rows
 *
 *     launch 3: row 2 is added up from what the shares left of it
 *
 * HYB calls it for its sums alone, which are then neither scaled nor rounded. */
#include "cuda_segments_run.cuh"

extern "C" size_t fmm_spmv_coo_workspace(const fmm_call *call)
{
    return records_room(call, COORDINATES);
}

extern "C" void fmm_spmv_coo_sums(const fmm_exec *exec, const fmm_call *call, void *room,
                                  void *sums)
{
    launch_segments<COORDINATES>(exec, call, room, sums);
}

extern "C" fmm_status fmm_spmv_coo(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec,
                     [&] { launch_segments<COORDINATES>(exec, call, exec->workspace, NULL); });
}
