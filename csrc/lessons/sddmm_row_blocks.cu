/* row_blocks and padded_rows, SDDMM with whole blocks per row.
 *
 * Teaches: if no block holds entries of two rows, all its threads share a row of a, which L1 then
 * serves, and one search per block replaces one per thread. Each row is padded to whole blocks of B
 * entries, so a row of one entry leaves B - 1 threads idle: the map pays for rows of about B and
 * more.
 *
 *     rows        0: 5 entries    1: none    2: 70 entries              B = 64
 *     blocks      |0: 5, 59 idle|            |1: 64      |2: 6, 58 idle|
 *     first       0               1          1                          3 in all
 *
 * Each block bisects `first` for its row. What differs is who makes it. padded_rows makes it on the
 * host: ptr is copied there, which waits for all earlier work, and the map is copied back; so it is
 * made anew in every call, and no CUDA graph can hold it. row_blocks counts blocks per row on the
 * GPU and scans the counts; the number of blocks launched is bounded by rows + nnz / B, which needs
 * no answer from the device. Expected: row_blocks far ahead of padded_rows as called, since a
 * synchronisation costs more than the product on most graphs.
 *
 * Source: the blocking that SDDMM on GPUs is usually given, as in Nisa et al., HiPC 2018.
 * Guard: padded_rows cannot run while a CUDA graph is captured. */
#include "lesson.cuh"

#include <stdlib.h>

enum { B = 64, SCAN = 1024 };

/* Blocks of row i, for any content of ptr. */
static __host__ __device__ __forceinline__ int64_t blocks_of(int64_t begin, int64_t end,
                                                             int64_t nnz)
{
    begin = begin < 0 ? 0 : begin > nnz ? nnz : begin;
    end = end < 0 ? 0 : end > nnz ? nnz : end;
    return end > begin ? (end - begin + B - 1) / B : 0;
}

static int64_t blocks_most(const fmm_csr *a) { return a->rows + a->nnz / B; }

/* first[i]: the first block of row i; one block of threads, each with a stretch of rows. */
static __global__ void __launch_bounds__(SCAN) scan_blocks(const csr_view a, int64_t *first)
{
    __shared__ int64_t sum[SCAN];
    const int64_t each = (a.rows + SCAN - 1) / SCAN;
    const int64_t from = min(threadIdx.x * each, a.rows), to = min(from + each, a.rows);
    int64_t mine = 0;
    for (int64_t i = from; i < to; i++) mine += blocks_of(a.ptr[i], a.ptr[i + 1], a.nnz);
    sum[threadIdx.x] = mine;
    for (int d = 1; d < SCAN; d *= 2) {
        __syncthreads();
        const int64_t left = threadIdx.x >= d ? sum[threadIdx.x - d] : 0;
        __syncthreads();
        sum[threadIdx.x] += left;
    }
    int64_t next = sum[threadIdx.x] - mine;
    for (int64_t i = from; i < to; i++) {
        first[i] = next;
        next += blocks_of(a.ptr[i], a.ptr[i + 1], a.nnz);
    }
    if (to == a.rows && (from < to || threadIdx.x == 0)) first[a.rows] = next;
}

/* A block's row is the one whose last block is the first that is not before this one. */
template <class T>
static __global__ void __launch_bounds__(B) row_blocks(const sddmm_args<T> s, const int64_t *first)
{
    const int64_t block = blockIdx.x;
    if (block >= first[s.s.rows]) return;
    const int64_t row = first_at_least(first + 1, 1, s.s.rows - 1, block + 1);
    const int64_t at = (block - __ldg(first + row)) * B + threadIdx.x;
    int64_t begin;
    if (at < row_range(s.s, row, &begin)) one_entry(s, begin + at, row, blockIdx.z);
}

static size_t map_bytes(const fmm_call *call)
{
    return (size_t)(call->a->rows + 1) * sizeof(int64_t);
}

/* `blocks` blocks, whose rows stand in the workspace. */
template <class T>
static void launch(const fmm_exec *exec, const fmm_call *call, const sddmm_args<T> &s,
                   int64_t blocks)
{
    row_blocks<<<grid_of(blocks, 1, call->x->heads), B, 0, stream_of(exec)>>>(
        s, static_cast<const int64_t *>(exec->workspace));
}

static fmm_status run_blocks(const fmm_exec *exec, const fmm_call *call)
{
    return run_sddmm(exec, call, [&](auto s) {
        int64_t *const first = static_cast<int64_t *>(exec->workspace);
        scan_blocks<<<1, SCAN, 0, stream_of(exec)>>>(s.s, first);
        launch(exec, call, s, blocks_most(call->a));
    });
}

/* The map is made in place of ptr: first[i] replaces where row i begins. */
static fmm_status run_padded(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    int64_t *const first = static_cast<int64_t *>(malloc(map_bytes(call)));
    REQUIRE(first, FMM_OUT_OF_MEMORY, "sddmm: padded_rows: %zu bytes on the host", map_bytes(call));
    const fmm_status status = run_sddmm(exec, call, [&](auto s) {
        const cudaStream_t stream = stream_of(exec);
        if (cudaMemcpyAsync(first, a->ptr, map_bytes(call), cudaMemcpyDeviceToHost, stream) ||
            cudaStreamSynchronize(stream))
            return; /* cuda_leave says why */
        int64_t count = 0;
        for (int64_t i = 0; i < a->rows; i++) {
            const int64_t blocks = blocks_of(first[i], first[i + 1], a->nnz);
            first[i] = count;
            count += blocks;
        }
        first[a->rows] = count;
        cudaMemcpyAsync(exec->workspace, first, map_bytes(call), cudaMemcpyHostToDevice, stream);
        cudaStreamSynchronize(stream); /* the map is freed below */
        if (count) launch(exec, call, s, smaller(count, blocks_most(a)));
    });
    free(first);
    return status;
}

static const char source[] = "blocking as in Nisa et al., HiPC 2018";

fmm_algorithm sddmm_row_blocks[] = {
    lesson("row_blocks", "whole blocks per row, counted, scanned and searched on the GPU", source,
           run_blocks, lesson_supports, map_bytes),
    lesson("padded_rows", "whole blocks per row, mapped on the host in every call", source,
           run_padded, lesson_supports, map_bytes),
    {},
};
