/* dense_grid, SDDMM launched as if the matrix were dense.
 *
 * Teaches: what it costs to need no search and no map. A block is B positions within one row, and
 * the grid has as many of them as a dense row would need; thread k of row i takes the k-th entry of
 * the row, if there is one. No thread looks for its row, but at a density d all but that share of
 * the blocks start only to end. Expected: on a par with edge_search for dense small matrices, and
 * slower by about 1 / d where blocks are many times more than entries.
 *
 *     grid           y 0       y 1       y 2       ...      as long as a dense row
 *     row i, x = i   [B]       [B]       [B]                thread k: one entry, all its columns
 *     its entries    eeeeeeee  eee                          the third block ends at once
 *
 * Source: the direct translation of a dense kernel, with which SDDMM papers begin.
 * Guard: rows run along x, positions along y, which loops where a row is longer than the grid. */
#include "lesson.cuh"

enum { B = 128 };

template <class T> static __global__ void __launch_bounds__(B) dense_grid(const sddmm_args<T> s)
{
    const int64_t i = blockIdx.x, step = int64_t(gridDim.y) * B;
    int64_t begin;
    const int64_t entries = row_range(s.s, i, &begin);
    for (int64_t k = int64_t(blockIdx.y) * B + threadIdx.x; k < entries; k += step)
        one_entry(s, begin + k, i, blockIdx.z);
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_sddmm(exec, call, [&](auto s) {
        const dim3 grid = grid_of(s.s.rows, ceil_div(s.s.cols, B), call->x->heads);
        dense_grid<<<grid, B, 0, stream_of(exec)>>>(s);
    });
}

fmm_algorithm sddmm_dense_grid[] = {
    lesson("dense_grid", "a thread per position of a dense row, most of which have no entry",
           "translation of a dense kernel", run),
    {},
};
