/* SpMV `coo`: the pieces of cuda_merge.cuh over a COO matrix, whose entries say their rows.
 *
 *     row     0 0 0 1 1 1 1 1 4 4 ...        a head wherever the row differs from the one before
 *     head    1 . . 2 . . . . 5 . ...
 *
 * Rows 2 and 3 have no entry. They are items of the piece too, which writes beta * y_in for those
 * that no head marks. So nothing clears y before, and no run of empty rows falls to one thread.
 *
 * Segmented reduction of COO: Bell and Garland, SC 2009; there a second kernel, too, joins what
 * warps leave open. */
#include "cuda_merge.cuh"

extern "C" void fmm_spmv_coo_sums(const fmm_exec *exec, const fmm_call *call, void *room,
                                  void *sums)
{
    launch_way<COORDINATES>(exec, call, room, sums);
}

extern "C" fmm_status fmm_spmv_coo(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] { launch_way<COORDINATES>(exec, call, exec->workspace, NULL); });
}
