/* SpMM by the vendors: every algorithm that cuSPARSE has for CSR and COO, and cuBLAS, for which A
 * is scattered into zeros [rows, cols] (duplicates add, in any order) before y = A x.
 *
 *     cublas    A  -- densify -->  [rows, cols] in the workspace  -- one head's product -->  y */
#include "cuda_vendor.h"

/* Addresses of slots, since the functions are found when the first call binds the library. */
static const fmm_cusparse_calls calls = {
    .op = "spmm",
    .edges = false,
    .bytes = &fmm_cusparse.cusparseSpMM_bufferSize,
    .preprocess = &fmm_cusparse.cusparseSpMM_preprocess,
    .multiply = &fmm_cusparse.cusparseSpMM,
};

bool fmm_spmm_cusparse_supports(const fmm_call *call)
{
    return fmm_cusparse_supports(&calls, call);
}
FMM_CUSPARSE_SPMM_LIST(FMM_CUSPARSE_DEFINE)

static fmm_status one_head(const fmm_exec *exec, const fmm_call *call, void *handle, int64_t head,
                           void *dense)
{
    const fmm_csr *a = call->a;
    const fmm_cublas_matrix whole = {dense, (int)a->cols};
    /* Heads with the same values share the dense matrix. cuBLAS counts columns first: our rows are
     * its columns, so x comes before A. */
    if (head == 0 || (call->val->data && call->val->heads > 1))
        fmm_vendor_densify(exec, call, head, dense);
    return fmm_cublas_multiply("spmm", handle, call->x->dtype, VENDOR_PLAIN, call->x->feat, a->rows,
                               a->cols, fmm_cublas_view(call->x, head), whole,
                               fmm_cublas_view(call->y, head));
}

fmm_status fmm_spmm_cublas(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_cublas_run("spmm", exec, call, one_head);
}
