/* The CUDA side of a library that was built without nvcc: no algorithms, and errors that say how to
 * get them. Compiled instead of every file that knows CUDA. */
#include "../matrix/compress.h"

static fmm_status absent(const char *op)
{
    return fmm_fail(FMM_UNSUPPORTED,
                    "%s: fusedmm was built without CUDA; install a CUDA toolkit (nvcc) and "
                    "reinstall fusedmm with FUSEDMM_CUDA=1",
                    op);
}

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Number 0 of an operator fails with the error that helps; the tables list nothing. */
#define OPERATOR(op, number)                                                                       \
    static const fmm_algorithm *choose_##op(const fmm_call *call)                                  \
    {                                                                                              \
        absent(#op);                                                                               \
        return NULL;                                                                               \
    }                                                                                              \
    const fmm_registry fmm_##op##_cuda = {.choose = choose_##op};
#define SINGLE(op, cuda, operands)                                                                 \
    struct operands;                                                                               \
    fmm_status cuda(const fmm_exec *exec, const struct operands *call);                            \
    fmm_status cuda(const fmm_exec *exec, const struct operands *call) { return absent(#op); }
#include "../core/operators.def"

/* What making a matrix calls, which has no table of algorithms. */
const char *fmm_cuda_info(void) { return "null"; }

#define ABSENT(op, function, ...)                                                                  \
    fmm_status function(__VA_ARGS__) { return absent(#op); }
#define NO_ROOM(function, type, ...)                                                               \
    type function(__VA_ARGS__) { return 0; }

ABSENT(csr_check, fmm_cuda_csr_check, const fmm_exec *exec, const fmm_csr *a, uint64_t *report)
NO_ROOM(fmm_cuda_plan_bytes, size_t, const fmm_csr *a)
ABSENT(plan, fmm_cuda_plan_workspace, const fmm_csr *a, size_t *bytes)
ABSENT(plan, fmm_cuda_plan, const fmm_exec *exec, const fmm_csr *a, void *plan)
fmm_answer fmm_cuda_coo_answer(const fmm_exec *exec, const fmm_coo *a, int64_t ticket)
{
    return (fmm_answer){NULL, 0};
}
ABSENT(compress, fmm_cuda_coo_wait, const fmm_exec *exec, int64_t ticket)
ABSENT(compress, fmm_cuda_coo_check, const fmm_exec *exec, const fmm_coo *a, fmm_coo_facts *facts)
NO_ROOM(fmm_cuda_compress_workspace, size_t, const fmm_exec *exec, const fmm_coo *a,
        const fmm_coo_facts *facts, bool loops, bool identity)
ABSENT(compress, fmm_cuda_compress, const fmm_exec *exec, const fmm_coo *a,
       const fmm_coo_facts *facts, bool loops, int64_t *ptr, int32_t *idx, int32_t *eid, void *plan,
       int64_t *others)
NO_ROOM(fmm_cuda_transpose_workspace, size_t, const fmm_exec *exec, const fmm_csr *a)
ABSENT(transpose, fmm_cuda_transpose, const fmm_exec *exec, const fmm_csr *a, int64_t *ptr,
       int32_t *idx, int32_t *eid, void *plan)
ABSENT(normalize, fmm_cuda_normalize, const fmm_exec *exec, const fmm_csr *a, float *val,
       float *here)
ABSENT(mean_back, fmm_cuda_mean_back, const fmm_exec *exec, const int64_t *ptr, const fmm_dense *g,
       float *out)
