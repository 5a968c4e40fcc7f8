/* SpMV `csr_segmented`: the kernel of cuda_segments.cuh over the entries of a CSR matrix. The room
 * has a record for each block, and where shares begin if no plan says so.
 *
 *     entries a row    below 32    from 32 on     in the mean; it decides the order of sums, so
 * that a share has      128         256            it must follow from the matrix alone */
#include "cuda_segments_run.cuh"

static segment_way way_of(const fmm_call *call)
{
    return call->a->nnz >= 32 * call->a->rows ? LONG_ROWS : SEGMENTED;
}

extern "C" size_t fmm_spmv_csr_segmented_workspace(const fmm_call *call)
{
    return records_room(call, way_of(call));
}

extern "C" fmm_status fmm_spmv_csr_segmented(const fmm_exec *exec, const fmm_call *call)
{
    const auto launch =
        way_of(call) == LONG_ROWS ? launch_segments<LONG_ROWS> : launch_segments<SEGMENTED>;
    return on_device("spmv", exec, [&] { launch(exec, call, exec->workspace, NULL); });
}
