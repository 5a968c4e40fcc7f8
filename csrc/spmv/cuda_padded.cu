/* SpMV `dia`, `ell`, `sell` and `hyb`: rows padded to one width, or to that of their slice, stored
 * column by column.
 *
 *     place k       0      1      2
 *     row 0         e      e      -1      thread 0      owns PER neighbouring rows: one load for
 *     row 1         e      e      e       thread 0      the columns of a place, one for its values
 *     row 2         e      -1     -1      thread 1
 *     row 3         e      e      e       thread 1      neighbouring threads read side by side
 *
 * Eight places are under way at once, that is 8 PER gathers of x. Padding, column -1, adds nothing.
 * Every thread works as long as the widest row, which is what padding costs.
 *
 * DIA's places are diagonals. There are no column numbers, so a matrix of few diagonals costs
 * little more than its values:
 *
 *     offsets   -2      0      1                     read where they are used, alike by all lanes
 *     row 0     .       a0     b0      thread 0      one load of up to 16 bytes for each diagonal
 *     row 1     .       a1     b1      thread 0
 *     row 2     c2      a2     b2      thread 1
 *     row 3     c3      a3     .       thread 1
 *               |       |      |
 *               x[i-2]  x[i]   x[i+1]                neighbouring lanes load neighbouring elements,
 *                                                    which the next diagonal finds in L1
 *
 * The loads of up to eight diagonals are under way at once, and nothing holds a thread up between
 * them: where blocks first brought the offsets to shared memory, their barriers cost some percent
 * (H200). A stored 0 is no entry: what x holds there, and whether it is there at all, does not
 * matter. Sums go diagonal by diagonal, CHAIN of them into one accumulator, so the bits are the
 * same for every PER. With the loop of ELL, which loads a last place again where fewer are left, 7
 * diagonals took 1.06 to 1.2 times as long (H200).
 *
 * HYB moves what rows have beyond a width to COO, which does not mind long rows:
 *
 *     first launches   COO (cuda_segmented.cu) -> sums [rows], neither scaled nor rounded
 *     last launch      ELL, then waits for the sums, adds them, applies alpha and beta, rounds once
 *
 * The last one may start while the others run, and adds up its own part meanwhile.
 *
 * SELL has slices of rows of similar length, each padded to its own longest row:
 *
 *     slice 0    order[0]   e e e e       lane 0      the lanes of a slice read side by side;
 *                order[1]   e e e -1      lane 1      a slice of 32 rows has a warp, and ends
 *     slice 1    order[2]   e e           lane 0      where its longest row ends
 *                order[3]   e -1          lane 1
 *
 * Thread k owns place k of the order, so slices of any width work; those that do not fill warps
 * only read less evenly. Its entries are as many places apart as the slice has rows.
 *
 * Bell and Garland, NVR-2008-004 (DIA, ELL) and SC 2009 (HYB); Kreutzer, Hager, Wellein, Fehske and
 * Bishop, "A unified sparse matrix data format for efficient general sparse matrix-vector
 * multiplication on modern processors with wide SIMD units", SIAM J. Sci. Comput. 36, 2014 (SELL).
 */
#include "cuda.cuh"

/* What N diagonals, the first of which has the thread's first row at value p, add to its rows. */
template <class V, int N, int PER, class T, class A>
static __device__ __forceinline__ void add_batch(const padded_args<T> &d, const int64_t *offsets,
                                                 int64_t i, int64_t p, A *part)
{
    int64_t at[N];
    int32_t j[N * PER];
    A w[N * PER], term[N * PER];
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = p + k * d.s.a.rows;
    load_values<V, N, PER>(d.s.val, 0, at, w);
#pragma unroll
    for (int k = 0; k < N * PER; k++) {
        const uint64_t column = uint64_t(i + k % PER) + uint64_t(__ldg(offsets + k / PER));
        j[k] = column < uint64_t(d.s.a.cols) ? int32_t(column) : -1;
    }
    times_x<N * PER>(d.s, j, w, term);
#pragma unroll
    for (int k = 0; k < N * PER; k++) part[k % PER] += w[k] != A(0) ? term[k] : A(0);
}

/* The same for `count` diagonals, fewer than N + 1. Stencils have few, so that what is left of
 * whole batches matters: it has a loop-free form for every number. */
template <class V, int N, int PER, class T, class A>
static __device__ __forceinline__ void add_rest(const padded_args<T> &d, const int64_t *offsets,
                                                int count, int64_t i, int64_t p, A *part)
{
    if constexpr (N > 0) {
        if (count == N)
            add_batch<V, N, PER>(d, offsets, i, p, part);
        else
            add_rest<V, N - 1, PER>(d, offsets, count, i, p, part);
    }
}

template <class T, class V, int PER>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_dia(const __grid_constant__ padded_args<T> d)
{
    typedef typename sum_of<T>::type A;
    enum { AT_ONCE = PER == 4 ? 5 : 8 }; /* diagonals whose loads are under way together, at most */
    const int64_t rows = d.s.a.rows;
    for (int64_t i = this_thread() * PER; i < rows; i += all_threads() * PER) {
        folded<A> total[PER];
#pragma unroll
        for (int r = 0; r < PER; r++) total[r].start();
        for (int64_t first = 0; first < d.m.width; first += CHAIN) {
            const int count = (int)min(d.m.width - first, int64_t(CHAIN));
            A part[PER] = {};
            const int64_t *const offsets = d.m.offsets + first;
            int64_t p = first * rows + i;
            int k = 0;
            for (; k + AT_ONCE <= count; k += AT_ONCE, p += AT_ONCE * rows)
                add_batch<V, AT_ONCE, PER>(d, offsets + k, i, p, part);
            add_rest<V, AT_ONCE - 1, PER>(d, offsets + k, count - k, i, p, part);
#pragma unroll
            for (int r = 0; r < PER; r++) total[r].fold(part[r]);
        }
        A sum[PER];
#pragma unroll
        for (int r = 0; r < PER; r++) sum[r] = scaled(d.s, i + r, total[r].total());
        store<T, PER>(d.s.y + i * d.s.out_stride, sum);
    }
}

template <class T, class V, int PER, bool SLICES>
static __global__ void __launch_bounds__(BLOCK, 4)
    spmv_ell(const __grid_constant__ padded_args<T> e)
{
    typedef typename sum_of<T>::type A;
    const int64_t rows = e.s.a.rows;
    for (int64_t i = this_thread() * PER; i < rows; i += all_threads() * PER) {
        int64_t row = i, first = i, step = rows, count = e.m.width;
        /* An order or offsets that are no such thing cost their rows, and reach nothing else. */
        if constexpr (SLICES) {
            const int32_t width = (int32_t)e.m.width;
            const int64_t slice = width == WARP ? i / WARP : i / width;
            const int64_t end = clamp(__ldg(e.m.offsets + slice + 1), 0, e.m.stored);
            first = clamp(__ldg(e.m.offsets + slice), 0, e.m.stored) + (i - slice * width);
            row = __ldg(e.m.order + i), step = width;
            count = first < end ? (end - first + width - 1) / width : 0;
        }
        A sum[PER];
        sum_steps<V, PER, 8>(e.s, e.m.padded_idx, first, step, count, sum);
        if constexpr (!SLICES) wait_for_previous();
#pragma unroll
        for (int r = 0; r < PER; r++) {
            if (!SLICES && e.s.sums) sum[r] += e.s.sums[i + r];
            if (!SLICES || (uint64_t)row < (uint64_t)rows) finish(e.s, row + r, sum[r]);
        }
    }
}

/* A thread of DIA has as many rows as fill 8 bytes with values of f32 or of 16 bits, or 16 bytes in
 * f64. With more, the lanes' loads of x would lie further apart, and batches would not fit the
 * registers of four blocks: four rows of f32 took 1.15 times as long on 4000^2 (H200). y is written
 * as wide. sums: NULL, or those of HYB that the launch before this one leaves. */
template <fmm_format FORMAT>
static void launch(const fmm_exec *exec, const fmm_call *call, void *sums)
{
    constexpr bool DIA = FORMAT == FMM_FORMAT_DIA, SLICES = FORMAT == FMM_FORMAT_SELL;
    const fmm_spmv_matrix *m = fmm_spmv_of(call)->matrix;
    const fmm_dense *y = call->y;
    for_types(call->x->dtype, view_padded(m), [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef decltype(v) V;
        constexpr bool any = std::is_same<V, any_type>::value;
        constexpr int PER = SLICES || any ? 1 : DIA && sizeof(T) == 2 ? 4 : 2;
        padded_args<T> e = padded_view<T>(call);
        e.s.sums = static_cast<decltype(e.s.sums)>(sums);
        const bool wide = y->rows % PER == 0 && lies_at(e.m.padded_idx, 16) &&
                          lies_at(e.s.val.data, 16) &&
                          (!DIA || (y->row_stride == 1 && lies_at(y->data, PER * sizeof(T))));
        const dim3 grid(blocks_for(wide ? y->rows / PER : y->rows));
        auto kernel = spmv_ell<T, V, 1, SLICES>;
        if constexpr (DIA)
            kernel = wide ? spmv_dia<T, V, PER> : spmv_dia<T, V, 1>;
        else if (wide)
            kernel = spmv_ell<T, V, PER, SLICES>;
        if (sums)
            launch_early(exec->index, stream_of(exec), kernel, grid, e);
        else
            kernel<<<grid, BLOCK, 0, stream_of(exec)>>>(e);
    });
}

extern "C" fmm_status fmm_spmv_dia(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec, [&] { launch<FMM_FORMAT_DIA>(exec, call, NULL); });
}

extern "C" fmm_status fmm_spmv_ell(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec, [&] { launch<FMM_FORMAT_ELL>(exec, call, NULL); });
}

/* The sums, then the records of COO's blocks. */
static size_t sums_bytes(const fmm_call *call)
{
    return (size_t)ceil_div(call->a->rows * (call->x->dtype == FMM_F64 ? 8 : 4), 16) * 16;
}
extern "C" size_t fmm_spmv_hyb_workspace(const fmm_call *call)
{
    return call->a->nnz ? sums_bytes(call) + fmm_spmv_segmented_workspace(call) : 0;
}

extern "C" fmm_status fmm_spmv_hyb(const fmm_exec *exec, const fmm_call *call)
{
    void *const sums = call->a->nnz ? exec->workspace : NULL;
    return on_device("spmv", exec, [&] {
        if (sums)
            fmm_spmv_segmented_sums(exec, call, static_cast<char *>(sums) + sums_bytes(call), sums);
        launch<FMM_FORMAT_ELL>(exec, call, sums);
    });
}

extern "C" fmm_status fmm_spmv_sell(const fmm_exec *exec, const fmm_call *call)
{
    return on_device("spmv", exec, [&] { launch<FMM_FORMAT_SELL>(exec, call, NULL); });
}

/* Brings home what somebody else summed: sums[k], of the type that x is summed in, is row
 * order[k]'s. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    spmv_place(const __grid_constant__ padded_args<T> e, const typename sum_of<T>::type *sums)
{
    for (int64_t k = this_thread(); k < e.s.a.rows; k += all_threads()) {
        const int32_t row = __ldg(e.m.order + k);
        if (row >= 0 && row < e.s.a.rows) finish(e.s, row, __ldcs(sums + k));
    }
}

extern "C" void fmm_spmv_sell_place(const fmm_exec *exec, const fmm_call *call, const void *sums)
{
    for_dtype(call->x->dtype, [&](auto element) {
        typedef decltype(element) T;
        spmv_place<T><<<blocks_for(call->a->rows), BLOCK, 0, stream_of(exec)>>>(
            padded_view<T>(call), static_cast<const typename sum_of<T>::type *>(sums));
    });
}
