/* SpMM `tiles`: y[i,:] = sum_p val[p] * x[idx[p],:] for rows that share many columns, as those of
 * pruned networks do.
 *
 * A block owns WARPS * ROWS rows of y and a strip of columns of x, and walks over x in windows of
 * W rows, each copied once into shared memory, where every row of the block finds what it needs:
 * gathering from L2, which bounds `segments`, becomes gathering from shared memory. A ring of
 * STAGES windows is guarded by two barriers each (full, empty), not by the block's: a warp whose
 * rows hold more of a window lags behind by a window, and no one waits at every window's end.
 *
 * A warp owns ROWS rows. Each lane holds some of their next entries, read a pass ahead; those in
 * the window (a prefix of them, if columns rise) go to the warp's list as (value, address), and
 * groups of LANES lanes take one each: PER loads of 16 bytes per lane span the strip. Shared memory
 * hands a warp 128 bytes a cycle whatever it reads, so a list's element, read by all lanes of a
 * group, costs less the more groups there are: two for a strip of 512 bytes, four for 128 bytes
 * were fastest.
 *
 * What no window took, because columns do not rise or lie outside the matrix, is added at the end
 * from global memory: right for any content, fast for sorted rows. A row has one owner and an order
 * that depends on the matrix alone. After FLUSH passes, before an accumulator has more than CHAIN
 * terms, the groups' sums meet in a fixed tree and are added to y. */
#ifndef FMM_CUDA_SPMM_TILES_CUH
#define FMM_CUDA_SPMM_TILES_CUH

#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline_primitives.h>

#include "segments.cuh"

template <class T> struct tiles_args {
    csr_view a;
    edge_view val;
    const T *x;
    T *y;
    int64_t x_row, y_row, feat;
    bool packs, mean; /* packs: rows of x and y can be accessed 16 bytes at a time */
};

template <class T> struct tiles_entry {
    T by;
    uint32_t at; /* where the row of x lies in its window, in bytes */
};

template <class T, int LANES_, int PER_, int W_, int ROWS_, int DEEP_> struct tiles_shape {
    enum {
        LANES = LANES_,
        PER = PER_,
        W = W_,
        ROWS = ROWS_,
        DEEP = DEEP_, /* entries of a row that a lane holds */
        WARPS = 16,
        STAGES = 3,
        VEC = 16 / sizeof(T),
        STRIP = LANES * PER * VEC,
        GROUPS = WARP / LANES,
        PASS = DEEP * WARP,
        FLUSH = CHAIN * GROUPS / PASS,
        WINDOW = (W + 1) * STRIP, /* the last row is 0, for groups without an entry */
        LIST = PASS + GROUPS,
        LISTS_AT = STAGES * WINDOW * sizeof(T),
        BARRIERS_AT = LISTS_AT + WARPS * ROWS * LIST * sizeof(tiles_entry<T>),
        BYTES = BARRIERS_AT + 2 * STAGES * sizeof(uint64_t),
    };
    static_assert(W * LANES * PER % (WARPS * WARP) == 0, "each thread copies as much");
    static_assert(BYTES <= 227 * 1024, "what a block of 9.0 and 10.0 can have");
};

/* Cards with this much shared memory a block: code for others would only lengthen the build. */
#define TILES_POSSIBLE(arch) ((arch) >= 900 && (arch) < 1200)

static __device__ __forceinline__ void wait_for(__mbarrier_t *barrier, int round)
{
    while (!__mbarrier_test_wait_parity(barrier, round & 1))
        ;
}

template <class T, class S, bool PLAIN>
static __global__ void __launch_bounds__(S::WARPS *WARP, 1)
    spmm_tiles(const __grid_constant__ tiles_args<T> s)
{
#if TILES_POSSIBLE(__CUDA_ARCH__)
    enum { THREADS = S::WARPS * WARP, VEC = S::VEC, PER = S::PER, ROWS = S::ROWS, DEEP = S::DEEP };
    extern __shared__ __align__(16) char memory[];
    T *const ring = reinterpret_cast<T *>(memory);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / S::LANES;
    tiles_entry<T> *const lists =
        reinterpret_cast<tiles_entry<T> *>(memory + S::LISTS_AT) + warp * ROWS * S::LIST;
    __mbarrier_t *const full = reinterpret_cast<__mbarrier_t *>(memory + S::BARRIERS_AT);
    __mbarrier_t *const empty = full + S::STAGES;
    const int64_t first_row = (int64_t(blockIdx.x) * S::WARPS + warp) * ROWS;
    const int64_t strip = int64_t(blockIdx.y) * S::STRIP;
    const int64_t column = strip + lane % S::LANES * VEC; /* and every LANES * VEC from there */
    const int windows = (int)ceil_div(s.a.cols, S::W);

    if (threadIdx.x < S::STAGES) {
        __mbarrier_init(full + threadIdx.x, THREADS);
        __mbarrier_init(empty + threadIdx.x, S::WARPS);
    }
    for (int k = threadIdx.x; k < S::STAGES * S::STRIP; k += THREADS)
        ring[k / S::STRIP * S::WINDOW + S::W * S::STRIP + k % S::STRIP] = T(0);
    __syncthreads();

    auto copy_window = [&](int w) {
        if (w >= windows) return;
        const int stage = w % S::STAGES;
        if (w >= S::STAGES) wait_for(empty + stage, w / S::STAGES - 1);
#pragma unroll
        for (int i = 0; i < S::W * S::LANES * PER / THREADS; i++) {
            const int k = i * THREADS + threadIdx.x;
            const int row = k / (S::LANES * PER), c = k % (S::LANES * PER) * VEC;
            const int64_t j = int64_t(w) * S::W + row;
            if (j >= s.a.cols || strip + c >= s.feat) continue;
            T *const to = ring + stage * S::WINDOW + row * S::STRIP + c;
            const T *const from = s.x + j * s.x_row + strip + c;
            if (s.packs)
                __pipeline_memcpy_async(to, from, 16);
            else
                for (int v = 0; v < VEC && strip + c + v < s.feat; v++)
                    __pipeline_memcpy_async(to + v, from + v, sizeof(T));
        }
        __pipeline_arrive_on(full + stage);
        (void)__mbarrier_arrive(full + stage);
    };

    /* Lane r knows how far row r is. */
    int at = 0, end = 0;
    if (lane < ROWS && first_row + lane < s.a.rows) {
        int64_t begin;
        const int64_t length = row_range(s.a, first_row + lane, &begin);
        at = (int)begin, end = (int)(begin + length);
    }
    const int length = end - at;
    auto value = [&](int64_t p) {
        if (PLAIN) return __ldg(static_cast<const T *>(s.val.data) + p);
        return edge_value<T>(s.val, edge_of(s.val, p), 0);
    };
    auto fetch = [&](int32_t(&near)[ROWS][DEEP], T(&by)[ROWS][DEEP]) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int from = __shfl_sync(ALL, at, r) + lane, until = __shfl_sync(ALL, end, r);
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                const int p = from + d * WARP;
                near[r][d] = -1;
                by[r][d] = 0;
                if (p < until) {
                    near[r][d] = __ldg(s.a.idx + p);
                    by[r][d] = value(p);
                }
            }
        }
    };

    T sum[ROWS][PER][VEC] = {};
    bool added = false;
    auto flush = [&](bool last) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int terms = __shfl_sync(ALL, length, r);
#pragma unroll
            for (int i = 0; i < PER; i++) {
                T *const to = s.y + (first_row + r) * s.y_row + column + i * S::LANES * VEC;
#pragma unroll
                for (int v = 0; v < VEC; v++) {
#pragma unroll
                    for (int d = S::LANES; d < WARP; d *= 2)
                        sum[r][i][v] += __shfl_xor_sync(ALL, sum[r][i][v], d);
                    if (group == 0 && first_row + r < s.a.rows &&
                        column + i * S::LANES * VEC + v < s.feat) {
                        const T all = added ? to[v] + sum[r][i][v] : sum[r][i][v];
                        to[v] = last && s.mean && terms ? all / T(terms) : all;
                    }
                    sum[r][i][v] = 0;
                }
            }
        }
        added = true;
    };

    int32_t near[ROWS][DEEP], near_next[ROWS][DEEP];
    T by[ROWS][DEEP], by_next[ROWS][DEEP];
    fetch(near, by);
    copy_window(0);
    int passes = 0;
    for (int w = 0; w < windows; w++) {
        const int stage = w % S::STAGES;
        const uint32_t base = uint32_t(w) * S::W, here = min(uint32_t(s.a.cols) - base, S::W);
        const char *const window =
            reinterpret_cast<const char *>(ring + stage * S::WINDOW) + lane % S::LANES * 16;
        copy_window(w + 1);
        wait_for(full + stage, w / S::STAGES);
        for (bool more = true; more;) {
            int count[ROWS];
            more = false;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                count[r] = 0;
#pragma unroll
                for (int d = 0; d < DEEP; d++) {
                    const unsigned out = ~__ballot_sync(ALL, uint32_t(near[r][d]) - base < here);
                    if (count[r] == d * WARP) count[r] += out ? __ffs(out) - 1 : WARP;
                }
                if (lane == r) at += count[r];
                more |= count[r] == S::PASS;
            }
            fetch(near_next, by_next);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                tiles_entry<T> *const list = lists + r * S::LIST;
#pragma unroll
                for (int d = 0; d < DEEP; d++)
                    if (d * WARP + lane < count[r])
                        list[d * WARP + lane] = {by[r][d], (uint32_t(near[r][d]) - base) *
                                                               uint32_t(S::STRIP * sizeof(T))};
                if (lane < S::GROUPS)
                    list[count[r] + lane] = {T(0), uint32_t(S::W * S::STRIP * sizeof(T))};
                __syncwarp();
#pragma unroll 4
                for (int k = 0; k < count[r]; k += S::GROUPS) {
                    const tiles_entry<T> entry = list[k + group];
                    uint4 row[PER];
#pragma unroll
                    for (int i = 0; i < PER; i++)
                        row[i] =
                            *reinterpret_cast<const uint4 *>(window + entry.at + i * S::LANES * 16);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        T term[VEC];
                        unpack<T, VEC>(row[i], term);
#pragma unroll
                        for (int v = 0; v < VEC; v++)
                            sum[r][i][v] = fma(entry.by, term[v], sum[r][i][v]);
                    }
                }
            }
            __syncwarp();
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int d = 0; d < DEEP; d++)
                    near[r][d] = near_next[r][d], by[r][d] = by_next[r][d];
            if (++passes % S::FLUSH == 0) flush(false);
        }
        if (lane == 0) (void)__mbarrier_arrive(empty + stage);
    }

    /* The rest: entries of row r from `at` on, a warp's worth at a time. */
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int until = __shfl_sync(ALL, end, r);
        for (int p = __shfl_sync(ALL, at, r); p < until; p += WARP) {
            const bool mine = p + lane < until;
            const int32_t j = mine ? __ldg(s.a.idx + p + lane) : -1;
            const T weight = mine ? value(p + lane) : T(0);
#pragma unroll 4
            for (int k = 0; k < WARP; k += S::GROUPS) {
                const int32_t from = __shfl_sync(ALL, j, k + group);
                const T with = __shfl_sync(ALL, weight, k + group);
                if (uint32_t(from) >= uint32_t(s.a.cols)) continue;
                const T *const row = s.x + from * s.x_row + column;
#pragma unroll
                for (int i = 0; i < PER; i++)
#pragma unroll
                    for (int v = 0; v < VEC; v++)
                        if (column + i * S::LANES * VEC + v < s.feat)
                            sum[r][i][v] =
                                fma(with, __ldg(row + i * S::LANES * VEC + v), sum[r][i][v]);
            }
            if (++passes % S::FLUSH == 0) flush(false);
        }
    }
    flush(true);
#endif
}

/* Fails with FMM_UNSUPPORTED where the card, or the code this build has for it, lacks the shared
 * memory. */
template <class T, class S> static fmm_status launch_tiles(const fmm_exec *exec, tiles_args<T> s)
{
    const bool plain =
        s.val.data && !s.val.eid && s.val.dtype == dtype_of<T>() && s.val.row_stride == 1;
    const auto kernel = plain ? spmm_tiles<T, S, true> : spmm_tiles<T, S, false>;
    cudaFuncAttributes has;
    if (cudaFuncGetAttributes(&has, kernel) != cudaSuccess ||
        !TILES_POSSIBLE(has.ptxVersion * 10) ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES) !=
            cudaSuccess) {
        (void)cudaGetLastError();
        return FMM_UNSUPPORTED;
    }
    const dim3 grid((unsigned)ceil_div(s.a.rows, S::WARPS * S::ROWS),
                    (unsigned)ceil_div(s.feat, S::STRIP));
    kernel<<<grid, S::WARPS * WARP, S::BYTES, stream_of(exec)>>>(s);
    return FMM_OK;
}

/* Strips of 512 bytes, or of 128 where x has no more than two of them. With fewer rows a warp there
 * are blocks enough for a card from half as many rows on. */
template <class T> static fmm_status choose_tiles(const fmm_exec *exec, const tiles_args<T> &s)
{
    enum { NARROW = sizeof(T) == 4 ? 512 : 384, WIDE = sizeof(T) == 4 ? 128 : 112 };
    const bool narrow = s.feat * (int64_t)sizeof(T) <= 256, few = s.a.rows <= 6144;
    if (narrow && few) return launch_tiles<T, tiles_shape<T, 8, 1, NARROW, 2, 2>>(exec, s);
    if (narrow) return launch_tiles<T, tiles_shape<T, 8, 1, NARROW, 4, 2>>(exec, s);
    if (few) return launch_tiles<T, tiles_shape<T, 16, 2, WIDE, 2, 1>>(exec, s);
    return launch_tiles<T, tiles_shape<T, 16, 2, WIDE, 4, 1>>(exec, s);
}

/* Runs `otherwise` where the card cannot. */
template <class T>
static fmm_status tiles_run(const fmm_exec *exec, const fmm_call *call,
                            fmm_status (*otherwise)(const fmm_exec *, const fmm_call *))
{
    const fmm_dense x = flat_heads(call->x), y = flat_heads(call->y);
    int before;
    TRY(cuda_enter("spmm", exec, &before));
    tiles_args<T> s;
    s.a = view_csr(call->a);
    s.val = view_edges(call->a, call->val);
    s.x = static_cast<const T *>(x.data);
    s.y = static_cast<T *>(y.data);
    s.x_row = x.row_stride;
    s.y_row = y.row_stride;
    s.feat = x.feat;
    s.packs = lies_in_packs(&x, sizeof(T), 16 / sizeof(T));
    s.mean = call->reduce == FMM_MEAN;
    const fmm_status status = choose_tiles(exec, s);
    TRY(cuda_leave("spmm", exec, before));
    return status == FMM_UNSUPPORTED ? otherwise(exec, call) : status;
}

#endif
