/* row_vector, SpMM with one group of lanes per row, 16-byte loads and entries fetched ahead.
 *
 * Teaches: three things at once that bring a plain row kernel near the gather's limit. A lane loads
 * 16 bytes of x, so that a row takes a quarter of the load instructions and the fewest lanes that
 * span it; the whole output row stays in registers, so every entry is read once; and the next
 * entries are on their way while the last are used, so a row waits for memory once and not per
 * chunk. What is left is balance: a row of a million entries is one group's work, and the kernel
 * ends when it does.
 *
 *     a group of 8 lanes      lane    |0   |1   |2   |3   |4   |5   |6   |7   |
 *     entries, read by turns          |e0  |e1  |e2  |e3  |e4  |e5  |e6  |e7  |   then handed round
 *     channels of f32                 |0-3 |4-7 |8-11| ...                    |   of x, and of y
 *
 * Expected: the best of these on matrices with even rows; far behind on power-law graphs with hubs.
 *
 * Source: the vectorised row kernels of Gale, Zaharia, Young and Elsen, "Sparse GPU Kernels for
 * Deep Learning", SC 2020. Guard: rows of x and y in whole groups of 16 bytes, at most 4 loads of
 * 32 lanes wide. */
#include "../cuda/segments.cuh"
#include "lesson.cuh"

template <int LANES, int PER, class T>
static __global__ void __launch_bounds__(BLOCK) row_vector(const spmm_args<T> s)
{
    enum { VEC = 16 / sizeof(T) };
    const int lane = threadIdx.x % LANES;
    const int64_t i = this_thread() / LANES, h = blockIdx.z;
    if (i >= s.a.rows) return; /* whole groups, which is why the mask below is the group's */
    const unsigned group =
        LANES == WARP ? ALL : ((1u << (LANES % WARP)) - 1) << (threadIdx.x % WARP / LANES * LANES);
    int64_t begin;
    const int64_t terms = row_range(s.a, i, &begin);
    auto entry_at = [&](int64_t at) {
        return at < terms ? fetch(s, begin + at, h) : entry<T>{-1, T(0)};
    };
    sums<T, (PER * VEC)> sum = {};
    entry<T> now = entry_at(lane);
    for (int64_t done = 0; done < terms; done += LANES) {
        const entry<T> next = entry_at(done + LANES + lane);
#pragma unroll 4
        for (int k = 0; k < LANES; k++) {
            const int32_t j = __shfl_sync(group, now.j, k, LANES);
            const T w = __shfl_sync(group, now.w, k, LANES);
            if (j < 0) continue;
            UNROLLED(t, PER) {
                const int64_t c = int64_t(t * LANES + lane) * VEC;
                if (c >= s.feat) continue;
                T x[VEC];
                unpack<T, VEC>(load<T, VEC>(s.x.at(j, h) + c), x);
                UNROLLED(v, VEC) sum.part[t * VEC + v] += w * x[v];
            }
        }
        sum.fold(LANES);
        now = next;
    }
    UNROLLED(t, PER) {
        const int64_t c = int64_t(t * LANES + lane) * VEC;
        if (c >= s.feat) continue;
        T y[VEC];
        UNROLLED(v, VEC) y[v] = sum.total(t * VEC + v);
        store<T, VEC>(s.y.at(i, h) + c, y);
    }
}

/* As many lanes as span a row of x in loads of 16 bytes; wider rows take several loads a lane. */
static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        const int64_t loads = ceil_div(s.feat * (int64_t)sizeof(*s.x.data), 16);
        for_least<4, 8, 16, 32, 64, 128>(loads, [&](auto most) {
            constexpr int LANES = most < WARP ? most : WARP, PER = most / LANES;
            const dim3 grid = grid_of(ceil_div(s.a.rows, BLOCK / LANES), 1, call->x->heads);
            row_vector<LANES, PER><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
        });
    });
}

/* Rows of whole loads, which start at 16 bytes. */
static bool supports(const fmm_call *call)
{
    const int64_t bytes = call->x->dtype == FMM_F64 ? 8 : 4, vec = 16 / bytes;
    return lesson_supports(call) && call->x->feat <= 4 * WARP * vec &&
           lies_in_packs(call->x, bytes, vec) && lies_in_packs(call->y, bytes, vec);
}

fmm_algorithm spmm_row_vector[] = {
    lesson("row_vector", "a group of lanes per row, 16-byte loads, entries fetched ahead",
           "Sputnik, Gale et al., SC 2020", run, supports),
    {},
};
