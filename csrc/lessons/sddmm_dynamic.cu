/* dynamic, SDDMM whose threads launch a grid per row.
 *
 * Teaches: dynamic parallelism says what one means: a thread looks at its row and launches as many
 * threads as the row has entries. No map, no search, no padding. But a launch from the device costs
 * microseconds where a row's work costs less than one, and only so many may be pending, so the rows
 * are taken PENDING at a time, each batch a grid of its own that ends when its children have. Rows
 * of no more than SHORT entries are done by the thread itself, as is one whose launch fails, so no
 * error word has to be read back. Expected: slower than every other lesson wherever rows are many,
 * and near edge_search for few long rows.
 *
 *     batch          | PENDING rows | PENDING rows | ...     a grid each, one after the other
 *     a thread       looks at its row: up to SHORT entries it takes itself
 *                    else it launches |block|block|...|, whose threads take one entry each
 *
 * Source: dynamic parallelism in the CUDA C++ Programming Guide; the question whether it pays for
 * SDDMM is what the measurement answers.
 * Guard: built with relocatable device code. It cannot run while a CUDA graph is captured. */
#include "lesson.cuh"

enum { PENDING = 2048 /* the runtime's default limit */, SHORT = 32, B = 128 };

template <class T>
static __global__ void __launch_bounds__(B)
    row_entries(const sddmm_args<T> s, int64_t i, int64_t begin, int64_t entries, int64_t h)
{
    const int64_t at = int64_t(blockIdx.x) * B + threadIdx.x;
    if (at < entries) one_entry(s, begin + at, i, h);
}

template <class T>
static __global__ void __launch_bounds__(B)
    launch_rows(const sddmm_args<T> s, int64_t first, int64_t h)
{
    const int64_t i = first + int64_t(blockIdx.x) * B + threadIdx.x;
    if (i >= s.s.rows) return;
    int64_t begin;
    const int64_t entries = row_range(s.s, i, &begin);
    if (entries > SHORT) {
        const unsigned blocks = (unsigned)((entries + B - 1) / B); /* below 2^31: see the guard */
        row_entries<<<blocks, B, 0, cudaStreamFireAndForget>>>(s, i, begin, entries, h);
        if (cudaGetLastError() == cudaSuccess) return;
    }
    for (int64_t p = begin; p < begin + entries; p++) one_entry(s, p, i, h);
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_sddmm(exec, call, [&](auto s) {
        for (int64_t h = 0; h < call->x->heads; h++)
            for (int64_t first = 0; first < s.s.rows; first += PENDING)
                launch_rows<<<PENDING / B, B, 0, stream_of(exec)>>>(s, first, h);
    });
}

fmm_algorithm sddmm_dynamic[] = {
    lesson("dynamic", "a thread per row launches a grid for its entries",
           "CUDA's dynamic parallelism", run),
    {},
};
