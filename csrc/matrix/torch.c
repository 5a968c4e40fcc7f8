/* fusedmm::_check, _plan, _compress, _check_wait, _transpose, _normalize and _mean_back: what
 * making a CSR asks of the library. Most stand for many calls of torch each. */
#include "../torch/frame.h"
#include "compress.h"

#include <inttypes.h>

/* (ptr, idx, int cols) -> the report word of fmm_csr_check, int64 [1] */
static void check(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    fmm_csr a;
    tensor out = {0};
    const int64_t cols = (int64_t)stack[2], one = 1;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 2) || !frame_structure(&f, cols, &a) ||
        !frame_allocate(&f, 1, &one, fmm_torch.aoti_torch_dtype_int64(), &out))
        goto done;
    f.status = fmm_csr_check(&f.exec, &a, out.data);
done:
    frame_finish(&f, "check", stack, &out, 1);
}

/* A plan, uint8 [bytes], empty where kernels need none. */
static bool allocate_plan(frame *f, int64_t rows, int64_t nnz, tensor *out)
{
    const fmm_csr made = {.rows = rows, .nnz = nnz};
    const int64_t size = (int64_t)fmm_plan_bytes(&f->exec, &made);
    return frame_allocate(f, 1, &size, fmm_torch.aoti_torch_dtype_uint8(), out);
}

/* (ptr, idx) -> plan */
static void plan(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    fmm_csr a;
    tensor out = {0};
    size_t bytes;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 2) || !frame_structure(&f, INT32_MAX, &a)) goto done;
    f.status = fmm_plan_workspace(&f.exec, &a, &bytes);
    if (f.status != FMM_OK || !frame_workspace(&f, bytes) ||
        !allocate_plan(&f, a.rows, a.nnz, &out))
        goto done;
    f.status = out.numel ? fmm_plan(&f.exec, &a, out.data) : FMM_OK;
done:
    frame_finish(&f, "plan", stack, &out, 1);
}

/* Coordinate k as torch has it: a vector of int64, any stride. */
static bool take_coordinates(frame *f, int k, const char *name, tensor *t)
{
    if (!frame_take(f, k, name, t)) return false;
    if (t->dim != 1 || t->dtype != fmm_torch.aoti_torch_dtype_int64())
        return frame_fail(f, "%s must be a vector of int64", name);
    return true;
}

/* (row, col, int rows, int cols, bool loops, int check) -> ptr, idx, eid, plan, others; eid has no
 * elements where it is the identity. Without a check, or with one that is DEFERRED, CUDA waits for
 * nothing. others has no elements where no entry is left out. Else it begins with the numbers of
 * the entries that stay, and ends with zeros. Of a DEFERRED check, which leaves loops, it is what
 * _check_wait reads. */
static void compress(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { PTR, IDX, EID, PLAN, OTHERS, RESULTS };
    enum { NO_CHECK, CHECK, DEFERRED };
    frame f;
    tensor row, col, out[RESULTS] = {{0}};
    fmm_coo_facts facts = {0};
    const bool loops = stack[4] != 0;
    const int check = frame_int(stack[5]);
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 2) || !take_coordinates(&f, 0, "row", &row) ||
        !take_coordinates(&f, 1, "col", &col))
        goto done;
    if (check < NO_CHECK || check > DEFERRED) {
        frame_fail(&f, "check must be 0, 1 or 2");
        goto done;
    }
    if (row.numel != col.numel) {
        frame_fail(&f, "row has %" PRId64 " elements and col %" PRId64, row.numel, col.numel);
        goto done;
    }
    fmm_coo a = {.rows = (int64_t)stack[2],
                 .cols = (int64_t)stack[3],
                 .nnz = row.numel,
                 .row = row.data,
                 .col = col.data,
                 .row_stride = row.stride[0],
                 .col_stride = col.stride[0]};
    f.status = fmm_check_sizes("compress", a.rows, a.cols, a.nnz);
    if (f.status != FMM_OK) goto done;
    const bool deferred = check == DEFERRED && !loops && f.exec.device == FMM_CUDA;
    if (f.exec.device == FMM_CPU || (check != NO_CHECK && !deferred)) {
        const size_t places = (size_t)a.nnz * sizeof *a.places;
        if (!frame_workspace(&f, f.exec.device == FMM_CPU ? places : FMM_COO_CHECK_BYTES))
            goto done;
        if (f.exec.device == FMM_CPU) a.places = f.exec.workspace;
        f.status = fmm_coo_check(&f.exec, &a, &facts);
        if (f.status != FMM_OK) goto done;
    }
    const int64_t nodes = a.rows < a.cols ? a.rows : a.cols, stay = a.nnz - facts.loops;
    const int64_t bounds = a.rows + 1, entries = loops ? stay + nodes : a.nnz;
    const bool identity = !loops && facts.sorted;
    const int64_t numbered = identity ? 0 : entries;
    const int64_t others = loops && facts.loops ? a.nnz
                           : deferred           ? fmm_cuda_coo_lines(a.nnz) * FMM_COO_LINE
                                                : 0;
    const int32_t int32 = fmm_torch.aoti_torch_dtype_int32();
    const int32_t int64 = fmm_torch.aoti_torch_dtype_int64();
    if (!frame_allocate(&f, 1, &bounds, int64, &out[PTR]) ||
        !frame_allocate(&f, 1, &entries, int32, &out[IDX]) ||
        !frame_allocate(&f, 1, &numbered, int32, &out[EID]) ||
        !allocate_plan(&f, a.rows, entries, &out[PLAN]) ||
        !frame_allocate(&f, 1, &others, int64, &out[OTHERS]) ||
        !frame_workspace(&f, fmm_compress_workspace(&f.exec, &a, &facts, loops, identity)))
        goto done;
    if (deferred) f.status = fmm_cuda_coo_check_start(&f.exec, &a, out[OTHERS].data);
    if (f.status != FMM_OK) goto done;
    f.status = fmm_compress(&f.exec, &a, &facts, loops, out[PTR].data, out[IDX].data,
                            identity ? NULL : out[EID].data, out[PLAN].data,
                            others && !deferred ? out[OTHERS].data : NULL);
done:
    frame_finish(&f, "compress", stack, out, RESULTS);
}

/* (what a DEFERRED check left): waits for the device, and fails where a coordinate was outside. */
static void check_wait(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    tensor lines;
    fmm_coo_facts facts;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 1) || !frame_take(&f, 0, "lines", &lines)) goto done;
    if (f.exec.device != FMM_CUDA || lines.dim != 1 || lines.numel % FMM_COO_LINE ||
        (lines.numel && lines.stride[0] != 1) ||
        lines.dtype != fmm_torch.aoti_torch_dtype_int64()) {
        frame_fail(&f, "lines must be what a deferred check left on CUDA");
        goto done;
    }
    f.status = fmm_cuda_coo_check_wait(&f.exec, lines.data, lines.numel / FMM_COO_LINE, &facts);
done:
    frame_finish(&f, "check_wait", stack, NULL, 0);
}

/* (ptr, idx, eid, plan, int cols) -> ptr, idx, eid and plan of the transpose */
static void transpose(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { PTR, IDX, EID, PLAN, RESULTS };
    frame f;
    fmm_csr a;
    tensor out[RESULTS] = {{0}};
    const int64_t cols = (int64_t)stack[4];
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 4) || !frame_matrix(&f, cols, &a)) goto done;
    f.status = fmm_check_sizes("transpose", a.rows, cols, a.nnz);
    if (f.status != FMM_OK) goto done;
    const int64_t bounds = cols + 1;
    const int32_t int32 = fmm_torch.aoti_torch_dtype_int32();
    if (!frame_allocate(&f, 1, &bounds, fmm_torch.aoti_torch_dtype_int64(), &out[PTR]) ||
        !frame_allocate(&f, 1, &a.nnz, int32, &out[IDX]) ||
        !frame_allocate(&f, 1, &a.nnz, int32, &out[EID]) ||
        !allocate_plan(&f, cols, a.nnz, &out[PLAN]) ||
        !frame_workspace(&f, fmm_transpose_workspace(&f.exec, &a)))
        goto done;
    f.status =
        fmm_transpose(&f.exec, &a, out[PTR].data, out[IDX].data, out[EID].data, out[PLAN].data);
done:
    frame_finish(&f, "transpose", stack, out, RESULTS);
}

/* (ptr, idx, eid, plan) -> the weights of a graph convolution, float32, in the caller's order and
 * in that of the rows */
static void normalize(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    enum { VAL, HERE, RESULTS };
    frame f;
    fmm_csr a;
    tensor out[RESULTS] = {{0}};
    const int32_t float32 = fmm_torch.aoti_torch_dtype_float32();
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 4) || !frame_matrix(&f, INT32_MAX - 1, &a)) goto done;
    a.cols = a.rows;
    if (!frame_allocate(&f, 1, &a.nnz, float32, &out[VAL]) ||
        !frame_allocate(&f, 1, &a.nnz, float32, &out[HERE]) ||
        !frame_workspace(&f, f.exec.device == FMM_CPU ? (size_t)a.rows * sizeof(float) : 0))
        goto done;
    f.status = fmm_normalize(&f.exec, &a, out[VAL].data, out[HERE].data);
done:
    frame_finish(&f, "normalize", stack, out, RESULTS);
}

/* (ptr, g) -> g / max(1, entries of its row), of g's shape */
static void mean_back(StableIValue *stack, uint64_t inputs, uint64_t results)
{
    frame f;
    tensor ptr, given, out = {0};
    fmm_dense g;
    (void)inputs, (void)results;
    if (!frame_begin(&f, stack, 2) || !frame_take(&f, 0, "ptr", &ptr) ||
        !frame_dense(&f, 1, "g", &g, &given))
        goto done;
    if (ptr.dim != 1 || ptr.numel < 1 || (ptr.numel > 1 && ptr.stride[0] != 1) ||
        ptr.dtype != fmm_torch.aoti_torch_dtype_int64()) {
        frame_fail(&f, "ptr must be a contiguous vector of int64, rows + 1 elements");
        goto done;
    }
    if (!frame_allocate(&f, given.dim, given.size, given.dtype, &out)) goto done;
    f.status = fmm_mean_back(&f.exec, ptr.numel - 1, ptr.data, &g, out.data);
done:
    frame_finish(&f, "mean_back", stack, &out, 1);
}

const fmm_torch_operator fmm_torch_csr[] = {
    {"_check", "_check(Tensor ptr, Tensor idx, int cols) -> Tensor", .kernel = check},
    {"_plan", "_plan(Tensor ptr, Tensor idx) -> Tensor", .kernel = plan},
    {"_compress",
     "_compress(Tensor row, Tensor col, int rows, int cols, bool loops, int check) -> "
     "(Tensor, Tensor, Tensor, Tensor, Tensor)",
     .kernel = compress},
    {"_check_wait", "_check_wait(Tensor lines) -> ()", .kernel = check_wait},
    {"_transpose", "_transpose(" FMM_HALF "int cols) -> (Tensor, Tensor, Tensor, Tensor)",
     .kernel = transpose},
    {"_normalize",
     "_normalize(Tensor ptr, Tensor idx, Tensor eid, Tensor plan) -> (Tensor, Tensor)",
     .kernel = normalize},
    {"_mean_back", "_mean_back(Tensor ptr, Tensor g) -> Tensor", .kernel = mean_back},
    /* clang-format off */
    FMM_NUMBER(FMM_CPU), FMM_NUMBER(FMM_CUDA), FMM_NUMBER(FMM_ABI), FMM_NUMBER(FMM_ROWS_UNKNOWN),
    FMM_NUMBER(FMM_ROWS_EVEN),
    FMM_NUMBER(FMM_ROWS_UNEVEN), FMM_NUMBER(FMM_ROWS_NEITHER), FMM_NUMBER(FMM_PLAN_USED),
    FMM_NUMBER(FMM_TILED_SHARE), FMM_NUMBER(FMM_TILED_ROWS), FMM_NUMBER(FMM_TILED_COLS),
    FMM_NUMBER(FMM_CSR_PTR_FIRST), FMM_NUMBER(FMM_CSR_PTR_FALLS), FMM_NUMBER(FMM_CSR_PTR_LAST),
    FMM_NUMBER(FMM_CSR_IDX),
    /* clang-format on */
    {0},
};
