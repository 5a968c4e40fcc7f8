/* SpMV `csr_segmented` and `coo`: the kernel of cuda_segments.cuh over the entries of a matrix,
 * which say their rows in COO.
 *
 *     row     0 0 0 2 | 2 2 2 2 | 2 3 5 5      shares of equally many entries
 *
 * Of COO a launch before writes every row as if it had no entry, so that rows 1 and 4 stay right.
 * The room has a record for each block, and where shares begin if no plan says so.
 *
 *     entries a row of CSR     below 32    from 32 on     in the mean; it decides the order of
 *     that a share has         128         256            sums, so it must follow from the matrix
 *                                                         alone */
#include "cuda_segments_run.cuh"

static segment_way way_of(const fmm_call *call)
{
    if (fmm_spmv_of(call)->matrix->format != FMM_FORMAT_CSR) return COORDINATES;
    return call->a->nnz < 32 * call->a->rows ? SHORT_ROWS : LONG_ROWS;
}

extern "C" size_t fmm_spmv_segmented_workspace(const fmm_call *call)
{
    return records_room(call, way_of(call));
}

extern "C" void fmm_spmv_segmented_sums(const fmm_exec *exec, const fmm_call *call, void *room,
                                        void *sums)
{
    const segment_way way = way_of(call);
    (way == COORDINATES  ? launch_segments<COORDINATES>
     : way == SHORT_ROWS ? launch_segments<SHORT_ROWS>
                         : launch_segments<LONG_ROWS>)(exec, call, room, sums);
}

extern "C" fmm_status fmm_spmv_segmented(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec,
                     [&] { fmm_spmv_segmented_sums(exec, call, exec->workspace, NULL); });
}
