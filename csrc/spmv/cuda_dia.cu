/* SpMV `dia`: diagonals of a matrix, each as long as the matrix has rows.
 *
 *     offsets   -2      0      1                     staged in shared memory, once for each block
 *     row 0     .       a0     b0      thread 0      owns PER neighbouring rows: one load of up to
 *     row 1     .       a1     b1      thread 0      16 bytes for each diagonal
 *     row 2     c2      a2     b2      thread 1
 *     row 3     c3      a3     .       thread 1
 *               |       |      |
 *               x[i-2]  x[i]   x[i+1]                neighbouring lanes load neighbouring elements,
 *                                                    which the next diagonal finds in L1
 *
 * There are no column numbers, so a matrix of few diagonals costs little more than its values. The
 * loads of four diagonals are under way at once. A stored 0 is no entry: what x holds there, and
 * whether it is there at all, does not matter. Sums go diagonal by diagonal, CHAIN of them into one
 * accumulator, so the bits are the same for every PER.
 *
 * Bell and Garland, "Efficient Sparse Matrix-Vector Multiplication on CUDA", NVIDIA NVR-2008-004.
 */
#include "cuda.cuh"

/* Of large matrices, blocks walk, so that each stages the offsets for several times its threads. */
enum { BLOCKS_MOST = 1 << 13 };

template <class T> struct dia_args {
    spmv_args<T> s;
    edge_view val;
    int64_t width;
    const int64_t *offsets;
};

/* What N diagonals, the first of which has the thread's first row at value p, add to its rows. */
template <class V, int N, int PER, class T, class A>
static __device__ __forceinline__ void add_batch(const dia_args<T> &d, const int64_t *offsets,
                                                 int64_t i, int64_t p, A *part)
{
    A w[N * PER], x[N * PER];
    uint64_t j[N * PER];
#pragma unroll
    for (int k = 0; k < N; k++, p += d.s.a.rows) {
        if constexpr (std::is_same<V, any_type>::value) {
            int64_t at[PER];
            for (int r = 0; r < PER; r++) at[r] = p + r;
            any_values<PER>(d.val, at, w + k * PER);
        } else {
            V raw[PER];
            load_together<V, PER>(static_cast<const V *>(d.val.data) + p, raw);
#pragma unroll
            for (int r = 0; r < PER; r++) w[k * PER + r] = A(widen(raw[r]));
        }
    }
#pragma unroll
    for (int k = 0; k < N * PER; k++) {
        j[k] = uint64_t(i + k % PER) + uint64_t(offsets[k / PER]);
        const char *const from =
            row_at(reinterpret_cast<const char *>(d.s.x), uint32_t(j[k]), d.s.x_bytes);
        const bool there = j[k] < uint64_t(d.s.a.cols);
        unpack<T, 1>(load_if<T, 1>(there, reinterpret_cast<const T *>(from)), x + k);
    }
#pragma unroll
    for (int k = 0; k < N * PER; k++)
        if (j[k] < uint64_t(d.s.a.cols) && w[k] != A(0)) part[k % PER] += w[k] * x[k];
}

/* The same for `count` diagonals. Stencils have few, so that what is left of fours matters. */
template <class V, int PER, class T, class A>
static __device__ __forceinline__ void add_diagonals(const dia_args<T> &d, const int64_t *offsets,
                                                     int count, int64_t i, int64_t p, A *part)
{
    int k = 0;
    for (; k + 4 <= count; k += 4, p += 4 * d.s.a.rows)
        add_batch<V, 4, PER>(d, offsets + k, i, p, part);
    switch (count - k) {
    case 3:
        return add_batch<V, 3, PER>(d, offsets + k, i, p, part);
    case 2:
        return add_batch<V, 2, PER>(d, offsets + k, i, p, part);
    case 1:
        return add_batch<V, 1, PER>(d, offsets + k, i, p, part);
    }
}

template <class T, class V, int PER>
static __global__ void __launch_bounds__(BLOCK, 4) spmv_dia(const __grid_constant__ dia_args<T> d)
{
    typedef typename sum_of<T>::type A;
    __shared__ int64_t offsets[CHAIN];
    const int64_t rows = d.s.a.rows;
    for (int64_t from = int64_t(blockIdx.x) * BLOCK * PER; from < rows;
         from += all_threads() * PER) {
        const int64_t i = from + threadIdx.x * PER;
        folded<A> total[PER];
#pragma unroll
        for (int r = 0; r < PER; r++) total[r].start();
        for (int64_t first = 0; first < d.width; first += CHAIN) {
            const int count = (int)min(d.width - first, int64_t(CHAIN));
            if (d.width > CHAIN || from == int64_t(blockIdx.x) * BLOCK * PER) {
                __syncthreads();
#pragma unroll 1
                for (int k = threadIdx.x; k < count; k += BLOCK) offsets[k] = d.offsets[first + k];
                __syncthreads();
            }
            if (i >= rows) continue;
            A part[PER] = {};
            add_diagonals<V, PER>(d, offsets, count, i, first * rows + i, part);
#pragma unroll
            for (int r = 0; r < PER; r++) total[r].fold(part[r]);
        }
        if (i >= rows) continue;
#pragma unroll
        for (int r = 0; r < PER; r++) finish(d.s, i + r, total[r].total());
    }
}

/* Rows of a thread: what 16-bit values fill 8 bytes with, and f64 ones 16. Wider loads would make
 * the lanes' loads of x lie further apart. */
extern "C" fmm_status fmm_spmv_dia(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_spmv_matrix *m = fmm_spmv_of(call)->matrix;
    const edge_view val = view_padded(m);
    int before;
    TRY(cuda_enter("spmv", exec, &before));
    for_types(call->x->dtype, val, [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef decltype(v) V;
        constexpr int PER = std::is_same<V, any_type>::value ? 1 : sizeof(V) == 2 ? 4 : 2;
        const dia_args<T> d = {spmv_view<T>(call), val, m->width, m->offsets};
        const bool wide = call->a->rows % PER == 0 && lies_at(val.data, 16);
        const int64_t threads = wide ? call->a->rows / PER : call->a->rows;
        const unsigned grid = (unsigned)smaller(blocks_for(threads), BLOCKS_MOST);
        const auto kernel = wide ? spmv_dia<T, V, PER> : spmv_dia<T, V, 1>;
        kernel<<<grid, BLOCK, 0, stream_of(exec)>>>(d);
    });
    return cuda_leave("spmv", exec, before);
}
