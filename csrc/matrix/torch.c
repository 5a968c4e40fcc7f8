/* fusedmm::_check, _plan, _compress, _check_wait, _transpose, _normalize and _mean_back: what
 * making a CSR asks of the library. Most stand for many calls of torch each. */
#include "../torch/frame.h"
#include "compress.h"

#include <inttypes.h>

/* torch's numbers of the dtypes that structures are made of. */
static int32_t int32(void) { return fmm_torch.aoti_torch_dtype_int32(); }
static int32_t int64(void) { return fmm_torch.aoti_torch_dtype_int64(); }

/* (ptr, idx, int cols) -> the report word of fmm_csr_check, int64 [1] */
FMM_KERNEL(check, 2, 1)
{
    fmm_csr a;
    return frame_structure(f, (int64_t)number[0], &a) && frame_vector(f, 1, int64(), out) &&
           frame_try(f, fmm_csr_check(&f->exec, &a, out->data));
}

/* A plan, uint8 [bytes], empty where kernels need none. */
static bool allocate_plan(frame *f, const fmm_csr *made, tensor *out)
{
    const int64_t size = (int64_t)fmm_plan_bytes(&f->exec, made);
    return frame_vector(f, size, fmm_torch.aoti_torch_dtype_uint8(), out);
}

/* (ptr, idx, int whole_nnz) -> plan; the number is 0, or that of fmm_whole. */
FMM_KERNEL(plan, 2, 1)
{
    fmm_csr a;
    size_t bytes;
    if (!frame_structure(f, INT32_MAX, &a)) return false;
    a.whole.nnz = (int64_t)number[0];
    return frame_try(f, fmm_plan_workspace(&f->exec, &a, &bytes)) && frame_workspace(f, bytes) &&
           allocate_plan(f, &a, out) &&
           (!out->numel || frame_try(f, fmm_plan(&f->exec, &a, out->data)));
}

/* Takes input k, one coordinate of each entry: a vector of int64 of any stride. */
static bool take_coordinates(frame *f, int k, const char *name, tensor *t)
{
    if (!frame_take(f, k, name, t)) return false;
    if (t->dim != 1 || t->dtype != int64())
        return frame_fail(f, "%s must be a vector of int64", name);
    return true;
}

/* From DEFERRED on a check has the ticket check - DEFERRED. */
enum { FMM_CHECK_NONE, FMM_CHECK_NOW, FMM_CHECK_DEFERRED };

/* Finds the facts of coordinates: on the CPU always, since the loops need them, on CUDA if `check`
 * asks for it. */
static bool find_facts(frame *f, fmm_coo *a, int check, fmm_coo_facts *facts)
{
    const bool cpu = f->exec.device == FMM_CPU;
    if (!cpu && check != FMM_CHECK_NOW) return true;
    const size_t places = (size_t)a->nnz * sizeof *a->places;
    if (!frame_workspace(f, cpu ? places : FMM_COO_CHECK_BYTES)) return false;
    if (cpu) a->places = f->exec.workspace;
    return frame_try(f, fmm_coo_check(&f->exec, a, facts));
}

/* (row, col, int rows, int cols, bool loops, int check) -> ptr, idx, eid, plan, others; eid has no
 * elements where it is the identity. Without a check CUDA waits for nothing. others has no elements
 * where no entry is left out. Else it begins with the numbers of the entries that stay, and ends
 * with zeros. Where a DEFERRED check, which leaves loops, waits for nothing either, others has one
 * element, and _check_wait has the answer. */
FMM_KERNEL(compress, 2, 5)
{
    enum { PTR, IDX, EID, PLAN, OTHERS };
    tensor row, col;
    fmm_coo_facts facts = {0};
    const bool loops = number[2] != 0;
    int64_t check = (int64_t)number[3];
    if (!take_coordinates(f, 0, "row", &row) || !take_coordinates(f, 1, "col", &col)) return false;
    if (check < FMM_CHECK_NONE) return frame_fail(f, "check must be 0, 1, or 2 and more");
    if (row.numel != col.numel)
        return frame_fail(f, "row has %" PRId64 " elements and col %" PRId64, row.numel, col.numel);
    fmm_coo a = {.rows = (int64_t)number[0],
                 .cols = (int64_t)number[1],
                 .nnz = row.numel,
                 .row = row.data,
                 .col = col.data,
                 .row_stride = row.stride[0],
                 .col_stride = col.stride[0]};
    if (!frame_try(f, fmm_check_sizes("compress", a.rows, a.cols, a.nnz))) return false;
    /* Of loops, how many stay decides the sizes. */
    if (f->exec.device == FMM_CUDA && check >= FMM_CHECK_DEFERRED && !loops)
        a.answer = fmm_cuda_coo_answer(&f->exec, &a, check - FMM_CHECK_DEFERRED);
    if (!a.answer.word && !find_facts(f, &a, check ? FMM_CHECK_NOW : FMM_CHECK_NONE, &facts))
        return false;
    const int64_t nodes = a.rows < a.cols ? a.rows : a.cols, stay = a.nnz - facts.loops;
    const int64_t entries = loops ? stay + nodes : a.nnz;
    const bool identity = !loops && facts.sorted;
    const int64_t others = loops && facts.loops ? a.nnz : a.answer.word ? 1 : 0;
    return frame_vector(f, a.rows + 1, int64(), &out[PTR]) &&
           frame_vector(f, entries, int32(), &out[IDX]) &&
           frame_vector(f, identity ? 0 : entries, int32(), &out[EID]) &&
           allocate_plan(f, &(fmm_csr){.rows = a.rows, .nnz = entries}, &out[PLAN]) &&
           frame_vector(f, others, int64(), &out[OTHERS]) &&
           frame_workspace(f, fmm_compress_workspace(&f->exec, &a, &facts, loops, identity)) &&
           frame_try(f, fmm_compress(&f->exec, &a, &facts, loops, out[PTR].data, out[IDX].data,
                                     identity ? NULL : out[EID].data, out[PLAN].data,
                                     others && loops ? out[OTHERS].data : NULL));
}

/* (a tensor where the check was made, int ticket): waits for the answer of a DEFERRED check, and
 * fails where a coordinate was outside. */
FMM_KERNEL(check_wait, 1, 0)
{
    if (f->exec.device != FMM_CUDA) return frame_fail(f, "there must be on CUDA, which defers");
    return frame_try(f, fmm_cuda_coo_wait(&f->exec, (int64_t)number[0]));
}

/* (ptr, idx, eid, plan, int cols) -> ptr, idx, eid and plan of the transpose */
FMM_KERNEL(transpose, 4, 4)
{
    enum { PTR, IDX, EID, PLAN };
    fmm_csr a;
    const int64_t cols = (int64_t)number[0];
    return frame_matrix(f, cols, &a) &&
           frame_try(f, fmm_check_sizes("transpose", a.rows, cols, a.nnz)) &&
           frame_vector(f, cols + 1, int64(), &out[PTR]) &&
           frame_vector(f, a.nnz, int32(), &out[IDX]) &&
           frame_vector(f, a.nnz, int32(), &out[EID]) &&
           allocate_plan(f, &(fmm_csr){.rows = cols, .nnz = a.nnz}, &out[PLAN]) &&
           frame_workspace(f, fmm_transpose_workspace(&f->exec, &a)) &&
           frame_try(f, fmm_transpose(&f->exec, &a, out[PTR].data, out[IDX].data, out[EID].data,
                                      out[PLAN].data));
}

/* (ptr, idx, eid, plan) -> the weights of a graph convolution, float32, in the caller's order and
 * in that of the rows */
FMM_KERNEL(normalize, 4, 2)
{
    enum { VAL, HERE };
    fmm_csr a;
    const int32_t float32 = fmm_torch.aoti_torch_dtype_float32();
    if (!frame_matrix(f, INT32_MAX - 1, &a)) return false;
    a.cols = a.rows;
    return frame_vector(f, a.nnz, float32, &out[VAL]) &&
           frame_vector(f, a.nnz, float32, &out[HERE]) &&
           frame_workspace(f, f->exec.device == FMM_CPU ? (size_t)a.rows * sizeof(float) : 0) &&
           frame_try(f, fmm_normalize(&f->exec, &a, out[VAL].data, out[HERE].data));
}

/* (ptr, g) -> g / max(1, entries of its row), of g's shape */
FMM_KERNEL(mean_back, 2, 1)
{
    tensor ptr, given;
    fmm_dense g;
    if (!frame_take_list(f, 0, "ptr", 8, &ptr) || !frame_dense(f, 1, "g", &g, &given)) return false;
    if (ptr.numel < 1) return frame_fail(f, "ptr must have rows + 1 elements, not 0");
    return frame_allocate(f, given.dim, given.size, given.dtype, out) &&
           frame_try(f, fmm_mean_back(&f->exec, ptr.numel - 1, ptr.data, &g, out->data));
}

const fmm_torch_operator fmm_torch_csr[] = {
    FMM_OPERATOR(_check, check, "(Tensor ptr, Tensor idx, int cols) -> Tensor"),
    FMM_OPERATOR(_plan, plan, "(Tensor ptr, Tensor idx, int whole_nnz=0) -> Tensor"),
    FMM_OPERATOR(_compress, compress,
                 "(Tensor row, Tensor col, int rows, int cols, bool loops, int check) -> "
                 "(Tensor, Tensor, Tensor, Tensor, Tensor)"),
    FMM_OPERATOR(_check_wait, check_wait, "(Tensor there, int ticket) -> ()"),
    FMM_OPERATOR(_transpose, transpose,
                 "(" FMM_HALF "int cols) -> (Tensor, Tensor, Tensor, Tensor)"),
    FMM_OPERATOR(_normalize, normalize,
                 "(Tensor ptr, Tensor idx, Tensor eid, Tensor plan) -> (Tensor, Tensor)"),
    FMM_OPERATOR(_mean_back, mean_back, "(Tensor ptr, Tensor g) -> Tensor"),
    /* clang-format off */
    FMM_NUMBER(FMM_CPU), FMM_NUMBER(FMM_CUDA), FMM_NUMBER(FMM_ABI), FMM_NUMBER(FMM_ROWS_UNKNOWN),
    FMM_NUMBER(FMM_ROWS_EVEN), FMM_NUMBER(FMM_ROWS_UNEVEN), FMM_NUMBER(FMM_ROWS_NEITHER),
    FMM_NUMBER(FMM_PLAN_USED), FMM_NUMBER(FMM_TILED_SHARE), FMM_NUMBER(FMM_TILED_ROWS),
    FMM_NUMBER(FMM_TILED_COLS), FMM_NUMBER(FMM_CSR_PTR_FIRST), FMM_NUMBER(FMM_CSR_PTR_FALLS),
    FMM_NUMBER(FMM_CSR_PTR_LAST), FMM_NUMBER(FMM_CSR_IDX), FMM_NUMBER(FMM_CHECK_DEFERRED),
    /* clang-format on */
    {0},
};
