/* The check of a CSR's content: one pass over ptr and idx, one word out.
 *
 *     bit      63               62 ... 3        2 1 0
 *     word     fault of idx     its index       code of the fault
 *     all ones: nothing is wrong
 *
 * The smallest word is therefore the first culprit, faults of ptr before those of idx, and an
 * atomic minimum over all threads gives the same answer in any order. core/checks.c decodes it. idx
 * is read at any rate, since its length comes from nnz and not from ptr. */
#include "../cuda/common.cuh"

static __global__ void __launch_bounds__(BLOCK)
    csr_check(const csr_view a, unsigned long long *report)
{
    const int64_t first = this_thread(), step = all_threads();
    uint64_t worst = UINT64_MAX;
    if (first == 0) {
        if (__ldg(a.ptr) != 0) worst = FMM_CSR_FAULT(FMM_CSR_PTR_FIRST, 0);
        if (__ldg(a.ptr + a.rows) != a.nnz)
            worst = min(worst, FMM_CSR_FAULT(FMM_CSR_PTR_LAST, a.rows));
    }
    for (int64_t i = first + 1; i <= a.rows; i += step)
        if (__ldg(a.ptr + i) < __ldg(a.ptr + i - 1))
            worst = min(worst, FMM_CSR_FAULT(FMM_CSR_PTR_FALLS, i));
    /* idx is read past the caches, since nothing reads it again. */
    for (int64_t p = first; p < a.nnz; p += step)
        if ((uint32_t)__ldcs(a.idx + p) >= (uint32_t)a.cols)
            worst = min(worst, FMM_CSR_FAULT(FMM_CSR_IDX, p));
    if (worst != UINT64_MAX) atomicMin(report, (unsigned long long)worst);
}

extern "C" fmm_status fmm_cuda_csr_check(const fmm_exec *exec, const fmm_csr *a, uint64_t *report)
{
    const int64_t most = a->rows > a->nnz ? a->rows : a->nnz;
    return on_device("csr_check", exec, [&] {
        cudaMemsetAsync(report, 0xff, sizeof *report, stream_of(exec));
        /* Enough blocks to fill any card; each thread takes several entries. */
        csr_check<<<(unsigned)smaller(blocks_for(most + 1), 4096), BLOCK, 0, stream_of(exec)>>>(
            view_csr(a), reinterpret_cast<unsigned long long *>(report));
    });
}
