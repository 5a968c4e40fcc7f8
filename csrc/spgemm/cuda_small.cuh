/* Small rows: several rows of C for each warp, as meshes and road networks have them.
 *
 *     lanes      0 .. 7          8 .. 15         16 .. 23        24 .. 31
 *     rows       i0              i1              i2              i3
 *     hold       16 entries of A, two a lane: where their rows of B lie
 *     step       8 or 16 columns of one row of B, of each of the four
 *
 * A warp's four rows go on together, as long as the longest of them, so that the lanes always meet
 * as one. Within a row one entry of A comes after the other, and no column stands twice in a row of
 * B, so sums have their terms in the order of A's entries, as everywhere. */
#ifndef FMM_SPGEMM_CUDA_SMALL_CUH
#define FMM_SPGEMM_CUDA_SMALL_CUH

#include "cuda_classes.cuh"

enum {
    LANES = 8,
    SMALL_A = 2 * LANES, /* entries of a row of A, at most */
    SMALL_C = 32,        /* of a row of C */
    SMALL_PRODUCTS = 96, /* of a row that is counted */
    SMALL_SLOTS = 128,   /* of the set of its columns */
    SMALL_FILLED = 64,   /* of a set of SMALL_C columns */
    SMALL_ROWS = BLOCK / LANES
};

static __device__ __forceinline__ int small_lane(void) { return threadIdx.x % LANES; }

/* Entries of A's row i, LANES apart, and their values if wanted. */
template <class A> struct small_row {
    int64_t begin[2];
    int length[2], held;
    A factor[2];

    __device__ __forceinline__ small_row(const csr_view &a, const csr_view &b, const edge_view *val,
                                         int64_t i)
        : held(0)
    {
        int64_t p = 0;
        if (i >= 0) held = (int)clamp(row_range(a, i, &p), 0, SMALL_A);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const int64_t own = p + u * LANES + small_lane();
            const row_of_b row(a, b, own, p + held);
            begin[u] = row.begin;
            length[u] = (int)clamp(row.length, 0, INT32_MAX / 2);
            if (val) factor[u] = own < p + held ? edge_value<A>(*val, edge_of(*val, own), 0) : A(0);
        }
    }
};

/* Calls visit(column, x, y) for the products of each of the warp's rows, x of A and y of B's values
 * if there are any. The warp meets after each entry of A. */
template <class A, class Visit>
static __device__ __forceinline__ void for_small(const small_row<A> &row, const csr_view &b,
                                                 const edge_view *val, Visit visit)
{
    enum { PAIR = 2 }; /* entries whose loads are under way together */
    const int lane = small_lane(), base = threadIdx.x % WARP - lane;
    const bool wide = __any_sync(ALL, row.length[0] > LANES || row.length[1] > LANES);
    for (int e = 0; __any_sync(ALL, e < row.held); e += PAIR) {
        int64_t q[PAIR];
        int length[PAIR];
        A x[PAIR], y[PAIR][2];
        int32_t j[PAIR][2];
#pragma unroll
        for (int u = 0; u < PAIR; u++) {
            const int from = base + (e + u) % LANES, of = e / LANES;
            q[u] = __shfl_sync(ALL, of ? row.begin[1] : row.begin[0], from) + lane;
            length[u] = __shfl_sync(ALL, of ? row.length[1] : row.length[0], from) - lane;
            x[u] = val ? __shfl_sync(ALL, of ? row.factor[1] : row.factor[0], from) : A(0);
#pragma unroll
            for (int v = 0; v < 2; v++) {
                const bool inside = (!v || wide) && v * LANES < length[u];
                j[u][v] = inside ? __ldg(b.idx + q[u] + v * LANES) : -1;
                y[u][v] =
                    val && inside ? edge_value<A>(*val, edge_of(*val, q[u] + v * LANES), 0) : A(0);
            }
        }
#pragma unroll
        for (int u = 0; u < PAIR; u++) {
#pragma unroll
            for (int v = 0; v < 2; v++)
                if (uint32_t(j[u][v]) < uint32_t(b.cols)) visit(j[u][v], x[u], y[u][v]);
            for (int at = 2 * LANES; wide && __any_sync(ALL, at < length[u]); at += LANES) {
                if (at >= length[u]) continue;
                const int32_t further = __ldg(b.idx + q[u] + at);
                if (uint32_t(further) < uint32_t(b.cols))
                    visit(further, x[u],
                          val ? edge_value<A>(*val, edge_of(*val, q[u] + at), 0) : A(0));
            }
            __syncwarp();
        }
    }
}

/* Calls work(row or -1) for the rows of class SMALL; all lanes of a warp come along. */
template <class Work>
static __device__ __forceinline__ void for_small_rows(const row_work &w, Work work)
{
    const int64_t rows = (int64_t)w.lists->counts[SMALL];
    for (int64_t first = int64_t(blockIdx.x) * SMALL_ROWS; first < rows;
         first += int64_t(gridDim.x) * SMALL_ROWS) {
        const int64_t at = first + threadIdx.x / LANES;
        work(at < rows ? int64_t(*w.place(SMALL, at)) : int64_t(-1));
        __syncwarp();
    }
}

/* Launches a kernel on them. */
template <class Kernel, class Args>
static void launch_small(const fmm_exec *exec, Kernel kernel, const row_work &w, const Args &args)
{
    enum { EACH = 32 }; /* blocks for each multiprocessor, at most: more than run at once */
    const int64_t most = int64_t(EACH) * fmm_cuda_processors(exec->index);
    const unsigned blocks = (unsigned)smaller(most, ceil_div(w.rows, SMALL_ROWS));
    kernel<<<blocks, BLOCK, 0, stream_of(exec)>>>(args, w);
}

#endif
