/* Our operands as a vendor's library takes them, and its results as our callers take them.
 *
 *     ours                             the vendor's
 *     ptr [rows + 1], int64     -->    ptr, int32                   narrow_ptr
 *     ptr                       -->    row [nnz] of every entry     rows_of
 *     val [edge, head]          -->    val [nnz] of one head,       gather_values
 *                                      in the order of storage
 *     matrix                    -->    dense [rows, cols]           densify
 *     e [edge, head]            <--    dot [nnz]                    scatter_edges
 *     e [edge, head]            <--    dense [rows, cols]           sample
 *
 * A thread owns a row or an entry and writes its output once. Only `densify` adds, since entries of
 * one row and column meet in one element there. */
#include "../reference.cuh"
#include "vendor.h"

/* ---- operands ---- */

static __global__ void __launch_bounds__(BLOCK) narrow_ptr(const csr_view a, int32_t *to)
{
    for (int64_t i = this_thread(); i <= a.rows; i += all_threads())
        to[i] = (int32_t)clamp(__ldg(a.ptr + i), 0, a.nnz);
}

/* Each thread searches for the row of its entry. */
static __global__ void __launch_bounds__(BLOCK) rows_of(const csr_view a, int32_t *to)
{
    for (int64_t p = this_thread(); p < a.nnz; p += all_threads()) to[p] = (int32_t)row_of(a, p);
}

/* Rounds values to T, if they are of a wider type. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    gather_values(const edge_view val, int64_t nnz, int64_t head, T *to)
{
    typedef typename sum_of<T>::type A;
    for (int64_t p = this_thread(); p < nnz; p += all_threads())
        to[p] = narrow<T>(edge_value<A>(val, edge_of(val, p), head));
}

/* ---- results ---- */

/* What SDDMM does with the dot product of entry p. */
template <class T>
static __device__ __forceinline__ void finish(const edge_view &val, const fmm_dense &e, int64_t p,
                                              int64_t head, typename sum_of<T>::type dot)
{
    typedef typename sum_of<T>::type A;
    const int64_t edge = edge_at(val, p);
    if (is_edge(val, edge))
        *element<T>(e, edge, head, 0) = narrow<T>(dot * edge_value<A>(val, edge, head));
}

/* From dot products in the order of storage. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    scatter_edges(const edge_view val, const fmm_dense e, int64_t nnz, int64_t head, const T *dot)
{
    for (int64_t p = this_thread(); p < nnz; p += all_threads())
        finish<T>(val, e, p, head, widen(dot[p]));
}

/* From the product of the dense operands, of which the entries are a few elements. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    sample(const csr_view s, const edge_view val, const fmm_dense e, int64_t head, const T *dense)
{
    for (int64_t p = this_thread(); p < s.nnz; p += all_threads()) {
        const int32_t j = __ldg(s.idx + p);
        const bool inside = (uint32_t)j < (uint32_t)s.cols;
        finish<T>(val, e, p, head, inside ? widen(dense[row_of(s, p) * s.cols + j]) : 0);
    }
}

/* An entry whose column lies outside has no element. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    densify(const csr_view a, const edge_view val, int64_t head, T *dense)
{
    for (int64_t p = this_thread(); p < a.nnz; p += all_threads()) {
        const int32_t j = __ldg(a.idx + p);
        if ((uint32_t)j < (uint32_t)a.cols)
            atomicAdd(dense + row_of(a, p) * a.cols + j, edge_value<T>(val, edge_of(val, p), head));
    }
}

/* ---- what cusparse.c and cublas.c call; vendor.h says what each does ---- */

/* Enough blocks to fill any card; threads walk on from there. */
static unsigned grid_for(int64_t count) { return (unsigned)smaller(blocks_for(count), 1 << 14); }

extern "C" fmm_status fmm_vendor_enter(const char *op, const fmm_exec *exec, int *before)
{
    return cuda_enter(op, exec, before);
}

/* The device follows from where the data lies, since a handle is asked for without an fmm_exec. */
extern "C" fmm_status fmm_vendor_enter_at(const char *op, const void *data, int *device,
                                          int *before)
{
    /* An address belongs to one device, whichever is current. */
    cudaPointerAttributes at = {};
    cudaError_t error = cudaPointerGetAttributes(&at, data);
    *device = at.device;
    if (error == cudaSuccess) error = cudaGetDevice(before);
    if (error == cudaSuccess) error = cudaSetDevice(at.device);
    REQUIRE(error == cudaSuccess, FMM_DEVICE_ERROR, "%s: %s", op, cudaGetErrorString(error));
    return FMM_OK;
}

extern "C" fmm_status fmm_vendor_leave(const char *op, const fmm_exec *exec, int before,
                                       fmm_status status)
{
    const fmm_status left = cuda_leave(op, exec, before);
    return status != FMM_OK ? status : left;
}

extern "C" void fmm_vendor_return(int before) { cudaSetDevice(before); }

/* The parts of a matrix. */
extern "C" void fmm_vendor_ptr(const fmm_exec *exec, const fmm_csr *a, int32_t *ptr)
{
    narrow_ptr<<<grid_for(a->rows + 1), BLOCK, 0, stream_of(exec)>>>(view_csr(a), ptr);
}

extern "C" void fmm_vendor_rows(const fmm_exec *exec, const fmm_csr *a, int32_t *row)
{
    rows_of<<<grid_for(a->nnz), BLOCK, 0, stream_of(exec)>>>(view_csr(a), row);
}

/* The values of one head as a vector. */
extern "C" void fmm_vendor_values(const fmm_exec *exec, const fmm_csr *a, const fmm_dense *val,
                                  int64_t head, fmm_dtype dtype, void *to)
{
    for_dtype(dtype, [&](auto element) {
        gather_values<<<grid_for(a->nnz), BLOCK, 0, stream_of(exec)>>>(
            view_edges(a, val), a->nnz, head, static_cast<decltype(element) *>(to));
    });
}

/* The results of SDDMM: one dot product for each entry, or the whole product of the operands. */
extern "C" void fmm_vendor_edges(const fmm_exec *exec, const fmm_call *call, int64_t head,
                                 const void *dot)
{
    for_dtype(call->y->dtype, [&](auto element) {
        scatter_edges<<<grid_for(call->a->nnz), BLOCK, 0, stream_of(exec)>>>(
            view_edges(call->a, call->val), *call->y, call->a->nnz, head,
            static_cast<const decltype(element) *>(dot));
    });
}

extern "C" void fmm_vendor_sample(const fmm_exec *exec, const fmm_call *call, int64_t head,
                                  const void *dense)
{
    for_dtype(call->y->dtype, [&](auto element) {
        sample<<<grid_for(call->a->nnz), BLOCK, 0, stream_of(exec)>>>(
            view_csr(call->a), view_edges(call->a, call->val), *call->y, head,
            static_cast<const decltype(element) *>(dense));
    });
}

/* cuBLAS multiplies dense matrices of f32 or f64 only (cublas.c). What no entry names is 0. */
extern "C" void fmm_vendor_densify(const fmm_exec *exec, const fmm_call *call, int64_t head,
                                   void *dense)
{
    const fmm_csr *a = call->a;
    const size_t each = fmm_dtype_bytes(call->x->dtype);
    cudaMemsetAsync(dense, 0, (size_t)(a->rows * a->cols) * each, stream_of(exec));
    if (!a->nnz) return; /* a grid has at least one block */
    for_wide_dtype(call->x->dtype, [&](auto element) {
        densify<<<grid_for(a->nnz), BLOCK, 0, stream_of(exec)>>>(
            view_csr(a), view_edges(a, call->val), head, static_cast<decltype(element) *>(dense));
    });
}

/* Rows may lie apart, so each head is a rectangle of memory. */
extern "C" void fmm_vendor_zero(const fmm_exec *exec, const fmm_dense *y)
{
    const size_t each = fmm_dtype_bytes(y->dtype);
    for (int64_t h = 0; h < y->heads; h++)
        cudaMemset2DAsync(static_cast<char *>(y->data) + (size_t)(h * y->head_stride) * each,
                          (size_t)y->row_stride * each, 0, (size_t)y->feat * each, (size_t)y->rows,
                          stream_of(exec));
}

extern "C" void fmm_vendor_copy(const fmm_exec *exec, const fmm_dense *x, const fmm_dense *y)
{
    cudaMemcpyAsync(y->data, x->data, (size_t)y->rows * fmm_dtype_bytes(y->dtype),
                    cudaMemcpyDeviceToDevice, stream_of(exec));
}
