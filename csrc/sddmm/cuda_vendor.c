/* SDDMM by the vendors: cuSPARSE's one algorithm, and cuBLAS, which computes a b^T whole before its
 * entries are taken. They are here to be compared with.
 *
 *     cublas    x, b  -- one head's product -->  [rows, cols] in the workspace  -- sample -->  y */
#include "cuda_vendor.h"

/* Addresses of slots, since the functions are found when the first call binds the library. */
static const fmm_cusparse_calls calls = {
    .op = "sddmm",
    .edges = true,
    .bytes = &fmm_cusparse.cusparseSDDMM_bufferSize,
    .preprocess = &fmm_cusparse.cusparseSDDMM_preprocess,
    .multiply = &fmm_cusparse.cusparseSDDMM,
};

bool fmm_sddmm_cusparse_supports(const fmm_call *call)
{
    return fmm_cusparse_supports(&calls, call);
}
FMM_CUSPARSE_SDDMM_LIST(FMM_CUSPARSE_DEFINE)

static fmm_status one_head(const fmm_exec *exec, const fmm_call *call, void *handle, int64_t head,
                           void *dense)
{
    const fmm_csr *a = call->a;
    /* cuBLAS counts columns first: our rows are its columns, so it computes b x^T, whose memory is
     * that of x b^T by rows. */
    const fmm_cublas_matrix whole = {dense, (int)a->cols};
    TRY(fmm_cublas_multiply("sddmm", handle, call->x->dtype, VENDOR_TRANSPOSED, a->cols, a->rows,
                            call->x->feat, fmm_cublas_view(call->b, head),
                            fmm_cublas_view(call->x, head), whole));
    fmm_vendor_sample(exec, call, head, dense);
    return FMM_OK;
}

fmm_status fmm_sddmm_cublas(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_cublas_run("sddmm", exec, call, one_head);
}
