/* multi_spmv_scalar and multi_spmv_vector, SpMM as one product with a vector per column.
 *
 * Teaches: what goes wrong when the columns of x are taken one by one. The scalar form gives a
 * thread a row and a column: neighbouring threads read entries of different rows and rows of x far
 * apart, so every load is a sector of its own, and the matrix is read again for each column. The
 * vector form gives a warp a row and a column: entries are read in order, but each lane still takes
 * 4 bytes out of a 32-byte sector of x. Both are expected to fall behind thread_per_output by about
 * the number of columns in a sector: 8 in f32, 4 in f64.
 *
 *     scalar    thread k: row k, all its entries, one column         grid y: the columns
 *     vector    warp k:   row k, lane l its entries l, l + 32, ...;  lane 0 writes the sum
 *
 * Source: the scalar and vector CSR kernels of Bell and Garland, "Implementing Sparse Matrix-Vector
 * Multiplication on Throughput-Oriented Processors", SC 2009, once per column.
 * Guard: columns run along grid y, which takes every 65,535th. */
#include "lesson.cuh"

template <int LANES, class T>
static __global__ void __launch_bounds__(BLOCK) spmv(const spmm_args<T> s)
{
    const int64_t i = this_thread() / LANES, h = blockIdx.z;
    const int lane = threadIdx.x % LANES;
    if (i >= s.a.rows) return; /* whole groups */
    int64_t begin;
    const int64_t terms = row_range(s.a, i, &begin);
    for (int64_t c = blockIdx.y; c < s.feat; c += gridDim.y) {
        sums<T> sum = {};
        for (int64_t p = begin + lane; p < begin + terms; p += LANES) {
            const entry<T> e = fetch(s, p, h);
            if (e.j >= 0) sum.part[0] += e.w * __ldg(s.x.at(e.j, h) + c);
            sum.fold(1);
        }
        const T total = lane_sum<LANES>(sum.total());
        if (lane == 0) s.y.at(i, h)[c] = total;
    }
}

template <int LANES> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        const dim3 grid = grid_of(ceil_div(s.a.rows, BLOCK / LANES), s.feat, call->x->heads);
        spmv<LANES><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
    });
}

static const char source[] = "Bell and Garland, SC 2009";

fmm_algorithm spmm_multi_spmv[] = {
    lesson("multi_spmv_scalar", "a thread per row and column", source, run<1>),
    lesson("multi_spmv_vector", "a warp per row and column", source, run<WARP>),
    {},
};
