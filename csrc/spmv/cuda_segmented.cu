/* SpMV `csr_segmented`: the kernel of cuda_merge.cuh over a CSR matrix, with a segmented scan.
 *
 * The products of a piece lie in shared memory. Each row marks its first one as a head; then thread
 * t owns the products 8t .. 8t + 7, and all runs are added up (cuda_runs.cuh):
 *
 *     thread      0                 1                 2
 *     products  | p p p p p p p p | p p p p p p p p | p p p p ...
 *     heads     | 5 . . 6 . . . . | . . . . . . . . | 8 . . . ...
 *
 * The heads are the segment descriptors of Blelloch et al. 1993 and Sengupta et al. 2007. */
#include "cuda_merge.cuh"

extern "C" fmm_status fmm_spmv_csr_segmented(const fmm_exec *exec, const fmm_call *call)
{
    return on_device(exec, [&] { launch_way<SEGMENTED>(exec, call, exec->workspace, NULL); });
}
