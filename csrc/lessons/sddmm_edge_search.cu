/* edge_search:B and edge_shared, SDDMM with one thread per entry.
 *
 * Teaches: a thread per entry is perfectly balanced, and needs only to know its row, which a
 * bisection of ptr finds in log2(rows) reads. But each thread then walks two rows of its own:
 * neighbouring threads read addresses a row of b apart, so nothing coalesces, and every sector of
 * 32 bytes is fetched for one number and hoped to be still in L1 for the next seven. Expected: the
 * slower the wider the rows are.
 *
 * edge_shared adds one idea: when all entries of a block lie in one row, that row of a is staged in
 * shared memory once. It is expected to help matrices of long rows, by at most half of the loads,
 * and to change nothing elsewhere.
 *
 *     entries    e e e e e e e e e e e e e e ...     in order of storage, across rows
 *     threads    0 1 2 3 ...                         each: its row, found by bisection, then a sum
 *     blocks     [      B      ][      B      ]      over all columns; one number is written
 *
 * Source: the thread-per-nonzero SDDMM of Nisa et al., "Sampled Dense Matrix Multiplication for
 * High-Performance Machine Learning", HiPC 2018, which starts from it. */
#include "lesson.cuh"

template <int B, class T>
static __global__ void __launch_bounds__(B) edge_search(const sddmm_args<T> s)
{
    const int64_t p = int64_t(blockIdx.x) * B + threadIdx.x;
    if (p < s.s.nnz) one_entry(s, p, row_of(s.s, p), blockIdx.z);
}

enum { STAGED = 1024 /* elements of a row that fit the block's share of shared memory */ };

template <class T>
static __global__ void __launch_bounds__(BLOCK) edge_shared(const sddmm_args<T> s)
{
    __shared__ T row[STAGED];
    const int64_t first = int64_t(blockIdx.x) * BLOCK, p = first + threadIdx.x, h = blockIdx.z;
    const int64_t last = min(first + BLOCK, s.s.nnz) - 1;
    const int64_t i = row_of(s.s, first);
    if (i != row_of(s.s, last) || s.feat > STAGED) { /* the same for the whole block */
        if (p <= last) one_entry(s, p, row_of(s.s, p), h);
        return;
    }
    const T *const a = s.a.at(i, h);
    for (int64_t c = threadIdx.x; c < s.feat; c += BLOCK) row[c] = __ldg(a + c);
    __syncthreads();
    if (p > last) return;
    const int32_t j = __ldg(s.s.idx + p);
    sums<T> dot = {};
    if ((uint32_t)j < (uint32_t)s.s.cols) {
        const T *const b = s.b.at(j, h);
        for (int64_t c = 0; c < s.feat; c++) {
            dot.part[0] += row[c] * __ldg(b + c);
            dot.fold(1);
        }
    }
    finish(s, p, h, dot.total());
}

template <int B> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_sddmm(exec, call, [&](auto s) {
        const dim3 grid = grid_of(ceil_div(s.s.nnz, B), 1, call->x->heads);
        edge_search<B><<<grid, B, 0, stream_of(exec)>>>(s);
    });
}

static fmm_status run_shared(const fmm_exec *exec, const fmm_call *call)
{
    return run_sddmm(exec, call, [&](auto s) {
        const dim3 grid = grid_of(ceil_div(s.s.nnz, BLOCK), 1, call->x->heads);
        edge_shared<<<grid, BLOCK, 0, stream_of(exec)>>>(s);
    });
}

static const char about[] = "a thread per entry, its row found by bisection";
static const char shared[] = "as edge_search, a row that fills a block staged in shared memory";
static const char source[] = "baseline of Nisa et al., HiPC 2018";

#define ENTRY(b) lesson("edge_search:" #b, about, source, run<b>)
fmm_algorithm sddmm_edge_search[] = {
    ENTRY(64), ENTRY(128), ENTRY(256), lesson("edge_shared", shared, source, run_shared), {},
};
