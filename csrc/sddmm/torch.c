/* fusedmm::_sddmm and fusedmm::sddmm. */
#include "../torch/frame.h"

/* (ptr, idx, eid, plan, [the same of the transpose,] val, a, b, int algorithm, int rows_are[, that
 * of the transpose]) -> e */
static void sddmm(StableIValue *stack, int inputs)
{
    frame f;
    fmm_csr s;
    fmm_dense val, a, b, e;
    tensor given, out = {0};
    const int algorithm = frame_int(stack[inputs]);
    if (!frame_begin(&f, stack, inputs) || !frame_dense(&f, inputs - 1, "b", &b, &given) ||
        !frame_dense(&f, inputs - 2, "a", &a, &given) || !frame_values(&f, inputs - 3, &val) ||
        !frame_matrix(&f, b.rows, &s))
        goto done;
    s.rows_are = (fmm_rows)frame_int(stack[inputs + 1]);
    const int64_t size[2] = {s.nnz, a.heads};
    if (!frame_allocate(&f, given.dim - 1, size, given.dtype, &out)) goto done;
    e = (fmm_dense){.data = out.data,
                    .dtype = a.dtype,
                    .rows = s.nnz,
                    .heads = a.heads,
                    .feat = 1,
                    .row_stride = a.heads,
                    .head_stride = 1};
    f.status = fmm_sddmm(&f.exec, &s, &val, &a, &b, &e, algorithm);
done:
    frame_finish(&f, "sddmm", stack, &out, 1);
}

/* The private operator carries one half of a CSR; the public one also its transpose, which its
 * gradient needs and its kernel skips. */
static void sddmm_half(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    sddmm(stack, 7);
}

static void sddmm_whole(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    (void)inputs, (void)results;
    sddmm(stack, 11);
}

#define REST "Tensor val, Tensor a, Tensor b, int algorithm"
const fmm_torch_operator fmm_torch_sddmm[] = {
    {"_sddmm", "_sddmm(" FMM_HALF REST FMM_HALF_ROWS ") -> Tensor", .kernel = sddmm_half},
    {"sddmm", "sddmm(" FMM_WHOLE REST FMM_WHOLE_ROWS ") -> Tensor", .kernel = sddmm_whole},
    {0},
};
