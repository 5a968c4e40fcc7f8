/* The calls of compress.c on CUDA, for any content: what was not checked is put where it does no
 * harm.
 *
 *     coordinates --> keys: columns --> sort --> keys: rows --> sort --> ptr, idx, eid --> plan
 *     CSR         --> keys: columns --> sort                         --> ptr, idx, eid --> plan
 *
 * Two stable radix sorts (CUB) of 32-bit keys, by column and then by row, each over the bits that
 * the sizes need; what travels with a key is the entry's number. Four arrays of 4 bytes, two of
 * which become idx and eid, are all that a sort of 2^31 entries takes. Self loops follow the other
 * entries and have a column beyond all others, which makes them the last of their rows. Then a
 * search per row finds ptr, and a gather idx.
 *
 * Sorts are the only launches whose number depends on the sizes, and nothing waits for the device.
 * What is small enough is sorted in one launch instead, with the same result: cuda_sort.cu. */
#include "cuda_sort.cuh"
#include "cuda_plan.cuh"

/* CUB includes <iostream> for a file of its own that is not used here; with libstdc++ before 13
 * that alone would link the C++ runtime. */
#include <ostream>
#define _GLIBCXX_IOSTREAM 1

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

typedef cub::DoubleBuffer<uint32_t> pair; /* of arrays, between which a sort goes to and fro */

/* ---- sorts ---- */

/* What CUB needs beside the arrays. */
static size_t sort_bytes(int64_t n)
{
    size_t bytes = 0;
    pair keys, values;
    cub::DeviceRadixSort::SortPairs(NULL, bytes, keys, values, (int)n);
    return bytes;
}

/* What a sort works in. */
struct scratch {
    void *cub;
    size_t cub_bytes;
    pair keys, values;
    uint32_t *rows; /* of a transpose */
};

/* The first `arrays` of the workspace's arrays of [n] hold keys, values and rows; CUB has what
 * follows. idx and eid are the second array of each pair until the sort is over. */
static scratch share_out(const fmm_exec *exec, int64_t n, int arrays, int32_t *idx, int32_t *eid)
{
    char *const at = static_cast<char *>(exec->workspace);
    const size_t size = padded(n);
    const auto words = [](void *array) { return static_cast<uint32_t *>(array); };
    return scratch{at + arrays * size, exec->workspace_bytes - arrays * size,
                   pair(words(idx), words(at)), pair(words(eid), words(at + size)),
                   words(at + 2 * size)};
}

/* Sorts by keys of 0 .. most. The error of an earlier launch is asked for first, since CUB would
 * report it as one of its own. */
static cudaError_t sort(scratch *s, int64_t n, int64_t most, cudaStream_t stream)
{
    if (const cudaError_t said = cudaPeekAtLastError()) return said;
    return cub::DeviceRadixSort::SortPairs(s->cub, s->cub_bytes, s->keys, s->values, (int)n, 0,
                                           bits_for(most), stream);
}

/* Leaves the device; what CUB says of a call is no error of the runtime. */
static fmm_status leave(const char *op, const fmm_exec *exec, int before, cudaError_t said)
{
    const fmm_status status = cuda_leave(op, exec, before);
    REQUIRE(status != FMM_OK || said == cudaSuccess, FMM_DEVICE_ERROR,
            "%s: sort on CUDA device %d: %s", op, exec->index, cudaGetErrorString(said));
    return status;
}

/* ptr: a thread finds where its group begins among the sorted keys. */
template <class K>
static __global__ void __launch_bounds__(BLOCK)
    find_groups(const K *keys, int64_t stride, int64_t n, int64_t groups, int64_t *ptr)
{
    const int64_t g = this_thread();
    if (g <= groups) ptr[g] = first_at_least(keys, stride, n, g);
}

/* ---- coordinates to a CSR: a thread owns an entry in each of these kernels ---- */

/* Before the first sort. */
static __global__ void __launch_bounds__(BLOCK)
    fill_columns(const coordinates c, uint32_t *key, uint32_t *value)
{
    const int64_t k = this_thread();
    if (k >= c.total) return;
    key[k] = col_key(c, k);
    value[k] = (uint32_t)k;
}

/* Between the two: the entries are in order of column. */
static __global__ void __launch_bounds__(BLOCK)
    fill_rows(const coordinates c, uint32_t *key, const uint32_t *value)
{
    const int64_t q = this_thread();
    if (q < c.total) key[q] = row_key(c, value[q]);
}

/* After both. The numbers may already lie where eid is wanted. */
static __global__ void __launch_bounds__(BLOCK)
    finish_rows(const coordinates c, const uint32_t *value, int32_t *idx, int32_t *eid)
{
    const int64_t q = this_thread();
    if (q >= c.total) return;
    const int64_t k = value[q];
    idx[q] = (int32_t)(k < c.others ? col_of(c.a, source(c, k)) : k - c.others);
    if (reinterpret_cast<uint32_t *>(eid) != value) eid[q] = (int32_t)k;
}

/* For coordinates that are in order: nothing is sorted, and entry p is edge p. */
static __global__ void __launch_bounds__(BLOCK) take_columns(const fmm_coo a, int32_t *idx)
{
    const int64_t p = this_thread();
    if (p < a.nnz) idx[p] = (int32_t)col_of(a, p);
}

/* What CUB selects by. */
struct is_no_loop {
    fmm_coo a;
    __device__ bool operator()(int64_t p) const { return row_of(a, p) != col_of(a, p); }
};

/* The numbers 0, 1, 2, ... without an array of them. */
typedef thrust::counting_iterator<int64_t> numbers_from;

/* A selection's part of the workspace begins with the number of those that it found. */
enum { COUNT = 256 }; /* bytes before what a selection needs, for how many it found */

/* What CUB needs for a selection among the coordinates. */
static size_t select_bytes(const fmm_coo *a)
{
    size_t bytes = 0;
    cub::DeviceSelect::If(NULL, bytes, numbers_from(0), (int64_t *)NULL, (int64_t *)NULL,
                          (int)a->nnz, is_no_loop{*a});
    return bytes;
}

/* How many entries the CSR has: with `loops` each node has one loop, in place of those it had. */
static int64_t entries_of(const fmm_coo *a, const fmm_coo_facts *f, bool loops)
{
    return loops ? a->nnz - f->loops + smaller(a->rows, a->cols) : a->nnz;
}

/* Steps that follow each other in time share memory. */
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* What CUB needs depends on the card. Where the card cannot be asked, the sort itself will fail and
 * say why. */
extern "C" size_t fmm_cuda_compress_workspace(const fmm_exec *exec, const fmm_coo *a,
                                              const fmm_coo_facts *f, bool loops, bool identity)
{
    int before;
    const int64_t n = entries_of(a, f, loops);
    /* Coordinates in order only need a plan. */
    const size_t few = few_bytes(exec, n, a->rows, a->cols);
    if (identity) return plan_scratch(a->rows);
    if (few && !(loops && f->loops)) return few;
    if (cuda_enter("compress", exec, &before) != FMM_OK) return 0;
    const size_t sorts = few ? few : larger(2 * padded(n) + sort_bytes(n), plan_scratch(a->rows));
    const size_t selects = loops && f->loops ? COUNT + select_bytes(a) : 0;
    cuda_leave("compress", exec, before);
    return larger(sorts, selects);
}

/* Numbers of the coordinates that are no loops. Another stream may write the coordinates meanwhile,
 * and then there are more or fewer of them than the facts say. So `selected` has room for all, and
 * zeros where nothing was selected. */
static cudaError_t select_others(const fmm_exec *exec, const fmm_coo *a, int64_t *selected)
{
    char *const at = static_cast<char *>(exec->workspace);
    size_t bytes = exec->workspace_bytes - COUNT;
    cudaMemsetAsync(selected, 0, (size_t)a->nnz * sizeof *selected, stream_of(exec));
    return cub::DeviceSelect::If(at + COUNT, bytes, numbers_from(0), selected,
                                 reinterpret_cast<int64_t *>(at), (int)a->nnz, is_no_loop{*a},
                                 stream_of(exec));
}

/* Many coordinates into ptr, idx and eid. The sorts go to and fro between idx, eid and the
 * workspace; where they end depends on their number of passes. */
static cudaError_t sort_rows(const fmm_exec *exec, const coordinates &c, int64_t *ptr, int32_t *idx,
                             int32_t *eid)
{
    const cudaStream_t stream = stream_of(exec);
    const int64_t n = c.total;
    const unsigned blocks = blocks_for(n);
    scratch s = share_out(exec, n, 2, idx, eid);
    cudaError_t said = cudaSuccess;
    if (n) {
        fill_columns<<<blocks, BLOCK, 0, stream>>>(c, s.keys.Current(), s.values.Current());
        said = sort(&s, n, c.a.cols, stream);
        fill_rows<<<blocks, BLOCK, 0, stream>>>(c, s.keys.Current(), s.values.Current());
        if (said == cudaSuccess) said = sort(&s, n, c.a.rows, stream);
    }
    find_groups<<<blocks_for(c.a.rows + 1), BLOCK, 0, stream>>>(s.keys.Current(), 1, n, c.a.rows,
                                                                ptr);
    if (n) finish_rows<<<blocks, BLOCK, 0, stream>>>(c, s.values.Current(), idx, eid);
    return said;
}

/* Coordinates in order (no eid is wanted) are only searched; few are sorted in one launch, which
 * makes the plan too; many go through CUB's sorts. */
extern "C" fmm_status fmm_cuda_compress(const fmm_exec *exec, const fmm_coo *a,
                                        const fmm_coo_facts *f, bool loops, int64_t *ptr,
                                        int32_t *idx, int32_t *eid, void *plan, int64_t *others)
{
    int before;
    const cudaStream_t stream = stream_of(exec);
    const int64_t n = entries_of(a, f, loops);
    const coordinates c = {*a, others, loops ? a->nnz - f->loops : a->nnz, n};
    /* What the plan is made for. */
    const fmm_csr made = {a->rows, a->cols, n, ptr, idx};
    cudaError_t said = cudaSuccess;
    TRY(cuda_enter("compress", exec, &before));
    if (others) said = select_others(exec, a, others);
    if (!eid) {
        find_groups<<<blocks_for(a->rows + 1), BLOCK, 0, stream>>>(a->row, a->row_stride, n,
                                                                   a->rows, ptr);
        if (n) take_columns<<<blocks_for(n), BLOCK, 0, stream>>>(*a, idx);
    } else if (said == cudaSuccess && few_bytes(exec, n, a->rows, a->cols)) {
        arrange_rows(exec, c, ptr, idx, eid, plan);
        return leave("compress", exec, before, said);
    } else if (said == cudaSuccess) {
        said = sort_rows(exec, c, ptr, idx, eid);
    }
    if (said == cudaSuccess) plan_build(exec, &made, plan, exec->workspace);
    return leave("compress", exec, before, said);
}

/* ---- a CSR to its transpose ---- */

/* Before the sort by column. */
static __global__ void __launch_bounds__(BLOCK)
    fill_entries(const csr_view a, uint32_t *key, uint32_t *value, uint32_t *row)
{
    const int64_t p = this_thread();
    if (p >= a.nnz) return;
    key[p] = bounded(__ldg(a.idx + p), a.cols);
    value[p] = (uint32_t)p;
    row[p] = (uint32_t)row_of(a, p);
}

/* After it: the row of an entry is its column in the transpose, and its edge stays what it was. */
static __global__ void __launch_bounds__(BLOCK)
    finish_columns(int64_t nnz, const uint32_t *value, const uint32_t *row, const int32_t *given,
                   int32_t *idx, int32_t *eid)
{
    const int64_t q = this_thread();
    if (q >= nnz) return;
    const uint32_t p = value[q];
    idx[q] = (int32_t)row[p];
    eid[q] = given ? given[p] : (int32_t)p;
}

/* The sort's arrays and the plan's scratch follow each other in time, so they share memory. */
extern "C" size_t fmm_cuda_transpose_workspace(const fmm_exec *exec, const fmm_csr *a)
{
    int before;
    const size_t few = few_bytes(exec, a->nnz, a->rows, a->cols);
    if (few) return few;
    if (cuda_enter("transpose", exec, &before) != FMM_OK) return 0;
    const size_t bytes = sort_bytes(a->nnz);
    cuda_leave("transpose", exec, before);
    return larger(3 * padded(a->nnz) + bytes, plan_scratch(a->cols));
}

/* The sort is stable, so entries of one column stay in order of row. */
extern "C" fmm_status fmm_cuda_transpose(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr,
                                         int32_t *idx, int32_t *eid, void *plan)
{
    int before;
    const fmm_csr made = {a->cols, a->rows, a->nnz, ptr, idx};
    const cudaStream_t stream = stream_of(exec);
    TRY(cuda_enter("transpose", exec, &before));
    if (few_bytes(exec, a->nnz, a->rows, a->cols)) {
        arrange_columns(exec, a, ptr, idx, eid, plan);
        return cuda_leave("transpose", exec, before);
    }
    scratch s = share_out(exec, a->nnz, 3, idx, eid);
    cudaError_t said = cudaSuccess;
    const unsigned blocks = blocks_for(a->nnz);
    if (a->nnz && a->rows) {
        fill_entries<<<blocks, BLOCK, 0, stream>>>(view_csr(a), s.keys.Current(),
                                                   s.values.Current(), s.rows);
        said = sort(&s, a->nnz, a->cols, stream);
    }
    find_groups<<<blocks_for(a->cols + 1), BLOCK, 0, stream>>>(s.keys.Current(), 1, a->nnz, a->cols,
                                                               ptr);
    if (a->nnz && a->rows)
        finish_columns<<<blocks, BLOCK, 0, stream>>>(
            a->nnz, s.values.Current(), s.rows, static_cast<const int32_t *>(a->eid), idx, eid);
    plan_build(exec, &made, plan, exec->workspace);
    return leave("transpose", exec, before, said);
}
