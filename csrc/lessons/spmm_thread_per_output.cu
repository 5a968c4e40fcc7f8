/* thread_per_output:B, SpMM with one thread per output element.
 *
 * Teaches: the baseline. A block is B neighbouring columns of one row, so the loads of a row of x
 * coalesce and all threads of a block walk the same entries in step; but every thread loads every
 * index and value itself, and a long row is as slow as one thread is. B only decides how much of a
 * block idles when the columns do not fill it.
 *
 * Expected: decent where rows are short and even, since many blocks hide each other's latency; a
 * fraction of the others elsewhere, and for B = 256 at 32 columns an eighth of the threads at work.
 *
 *     y[i]       | B columns | B columns | ...     a block each; thread k owns one number
 *     thread k   walks all entries of row i, in their order, and keeps one sum
 *
 * Source: the row-per-block baseline of Yang, Buluc and Owens, "Design Principles for Sparse Matrix
 * Multiplication on the GPU", Euro-Par 2018.
 * Guard: rows run along grid y, which holds 65,535 blocks; a block takes every 65,535th row. */
#include "lesson.cuh"

template <int B, class T>
static __global__ void __launch_bounds__(B) thread_per_output(const spmm_args<T> s)
{
    const int64_t c = int64_t(blockIdx.x) * B + threadIdx.x, h = blockIdx.z;
    if (c >= s.feat) return;
    for (int64_t i = blockIdx.y; i < s.a.rows; i += gridDim.y) {
        int64_t begin;
        const int64_t terms = row_range(s.a, i, &begin);
        sums<T> sum = {};
        for (int64_t p = begin; p < begin + terms; p++) {
            const entry<T> e = fetch(s, p, h);
            if (e.j < 0) continue;
            sum.part[0] += e.w * __ldg(s.x.at(e.j, h) + c);
            sum.fold(1);
        }
        s.y.at(i, h)[c] = sum.total();
    }
}

template <int B> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        const dim3 grid = grid_of(ceil_div(s.feat, B), s.a.rows, call->x->heads);
        thread_per_output<B><<<grid, B, 0, stream_of(exec)>>>(s);
    });
}

static const char about[] = "one thread per output element, blocks of B columns of one row";
static const char source[] = "baseline of Yang et al., Euro-Par 2018";

#define ENTRY(b) lesson("thread_per_output:" #b, about, source, run<b>)
fmm_algorithm spmm_thread_per_output[] = {ENTRY(32), ENTRY(64), ENTRY(128), ENTRY(256), {}};
