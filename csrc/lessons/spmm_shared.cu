/* shared:B and shared_swapped:B, SpMM whose blocks stage a row's entries in shared memory.
 *
 * Teaches: thread_per_output loads every index and value once per thread. Here the B threads of a
 * block load B entries together, coalesced, and then all read them from shared memory: B times
 * fewer load instructions for the matrix. What is paid is two barriers per tile, so rows of a few
 * entries gain nothing, and the loads of x, which are most of the traffic, stay what they were.
 *
 * shared_swapped exchanges the axes of the grid. Blocks start along x first: with rows on y, the
 * tiles of one row run together and a row of x is fetched whole; with rows on x, one tile of
 * columns is done for all rows before the next begins, so the part of x in use is smaller by the
 * number of tiles. That is expected to help once x is larger than the L2 cache, and to cost a
 * second pass over the matrix.
 *
 *     block      one row, B columns; thread k owns column k
 *     a tile     thread k stages entry k of B --> shared memory, barrier, all threads read all B
 *
 * Source: the row-per-block kernels of Yang, Buluc and Owens, Euro-Par 2018; the order of the grid
 * is the question that the measurement answers. */
#include "lesson.cuh"

template <int B, bool SWAPPED, class T>
static __global__ void __launch_bounds__(B) shared_rows(const spmm_args<T> s)
{
    __shared__ entry<T> tile[B];
    const int64_t c = int64_t(SWAPPED ? blockIdx.y : blockIdx.x) * B + threadIdx.x;
    const int64_t step = SWAPPED ? gridDim.x : gridDim.y, h = blockIdx.z;
    for (int64_t i = SWAPPED ? blockIdx.x : blockIdx.y; i < s.a.rows; i += step) {
        int64_t begin;
        const int64_t terms = row_range(s.a, i, &begin);
        sums<T> sum = {};
        for (int64_t done = 0; done < terms; done += B) {
            const int count = (int)min((int64_t)B, terms - done);
            __syncthreads(); /* the tile before was read by all */
            if (threadIdx.x < count) tile[threadIdx.x] = fetch(s, begin + done + threadIdx.x, h);
            __syncthreads();
            for (int k = 0; c < s.feat && k < count; k++)
                if (tile[k].j >= 0) sum.part[0] += tile[k].w * __ldg(s.x.at(tile[k].j, h) + c);
            sum.fold(count);
        }
        if (c < s.feat) s.y.at(i, h)[c] = sum.total();
    }
}

template <int B, bool SWAPPED> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        const int64_t tiles = ceil_div(s.feat, B), heads = call->x->heads;
        const dim3 grid =
            SWAPPED ? grid_of(s.a.rows, tiles, heads) : grid_of(tiles, s.a.rows, heads);
        shared_rows<B, SWAPPED><<<grid, B, 0, stream_of(exec)>>>(s);
    });
}

static const char about[] = "entries staged in shared memory, blocks of B columns of one row";
static const char swapped[] = "as shared:B, all rows of a column tile before the next tile";
static const char source[] = "after Yang et al., Euro-Par 2018";

#define ENTRY(b) lesson("shared:" #b, about, source, run<b, false>)
#define SWAPPED(b) lesson("shared_swapped:" #b, swapped, source, run<b, true>)
fmm_algorithm spmm_shared[] = {
    ENTRY(32), ENTRY(128), ENTRY(256), SWAPPED(32), SWAPPED(128), SWAPPED(256), {},
};
