/* row_vector:NT, SDDMM with NT neighbouring threads per row.
 *
 * Teaches: the threads of a group share out the columns, not the entries. They read a row of b side
 * by side, so the loads coalesce, and log2(NT) shuffles add up what they have. The row of a is read
 * again for each entry, but from L1. NT wants to be about the columns: with fewer columns threads
 * idle, with more each takes several. A row is one group's work, so balance is that of the matrix.
 * row_vector:auto takes the least power of two that spans the columns, or that fills the card with
 * rows * NT threads where rows are few: as many as it holds at once, by the runtime's occupancy.
 *
 *     warp       | group 0: row i | group 1: row i + 1 | ...     NT lanes each
 *     a group    entry by entry: lane k takes columns k, k + NT, ...; lane 0 writes the sum
 *
 * Expected: several times ahead of the kernels with a thread per entry, from 32 columns on.
 *
 * Source: Bell and Garland's vector CSR, SC 2009, turned to SDDMM; threads per row from the
 * occupancy as auto-tuned CSR kernels choose them. */
#include "lesson.cuh"

template <int NT, class T>
static __global__ void __launch_bounds__(BLOCK) row_vector(const sddmm_args<T> s)
{
    const int lane = threadIdx.x % NT;
    const int64_t i = this_thread() / NT, h = blockIdx.z;
    int64_t begin = 0;
    const int64_t entries = i < s.s.rows ? row_range(s.s, i, &begin) : 0;
    const T *const a = s.a.at(i, h);
    /* All lanes of a warp stay for the shuffles, as long as its longest row lasts. */
    for (int64_t k = 0; __any_sync(ALL, k < entries); k++) {
        const int32_t j = k < entries ? __ldg(s.s.idx + begin + k) : -1;
        const bool inside = (uint32_t)j < (uint32_t)s.s.cols;
        const T mine = inside ? dot_of<T>(a, s.b.at(j, h), s.feat, lane, NT) : T(0);
        const T total = lane_sum<NT>(mine);
        if (lane == 0 && k < entries) finish(s, begin + k, h, total);
    }
}

template <int NT, class T>
static void launch(const fmm_exec *exec, const sddmm_args<T> &s, int64_t heads)
{
    const dim3 grid = grid_of(ceil_div(s.s.rows, BLOCK / NT), 1, heads);
    row_vector<NT><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
}

template <int NT> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_sddmm(exec, call, [&](auto s) { launch<NT>(exec, s, call->x->heads); });
}

/* Threads that the card holds at once, running this kernel. */
template <class T> static int64_t threads_at_once(const fmm_exec *exec, const sddmm_args<T> &)
{
    int blocks = 0, processors = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, row_vector<8, T>, BLOCK, 0);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, exec->index);
    return int64_t(blocks) * processors * BLOCK;
}

static fmm_status run_auto(const fmm_exec *exec, const fmm_call *call)
{
    return run_sddmm(exec, call, [&](auto s) {
        const int64_t heads = call->x->heads, room = threads_at_once(exec, s) / (s.s.rows * heads);
        const int64_t wanted = s.feat > room ? s.feat : room;
        for_least<2, 4, 8, 16, 32>(wanted, [&](auto nt) { launch<nt>(exec, s, heads); });
    });
}

static const char about[] = "NT threads per row share out the columns";
static const char chosen[] = "NT from the columns, and from the occupancy where rows are few";
static const char source[] = "after Bell and Garland, SC 2009";

#define ENTRY(nt) lesson("row_vector:" #nt, about, source, run<nt>)
fmm_algorithm sddmm_row_vector[] = {
    ENTRY(4), ENTRY(8), ENTRY(16), ENTRY(32), lesson("row_vector:auto", chosen, source, run_auto),
    {},
};
