/* gather_wall:PERxFLY, SpMM of ones that does nothing but gather: how fast any SpMM can be here.
 *
 * Teaches: where the end is. The same rows of x are read as by every SpMM, in loads of 16 bytes,
 * PER a row and lane and FLY rows in flight, and added; no values are read, columns outside the
 * matrix are moved inside rather than skipped, and nothing is kept for a fixed order of addition.
 * Pieces of long rows are added to their rows of y by atomics, which a kernel before has cleared
 * while this one was starting. Work is dealt by the plan: rows by falling length, long ones in
 * pieces, so that nothing waits for a hub. The least time of the four is what a kernel that reads
 * values too, and adds in a fixed order, can be held against.
 *
 *     the plan      long rows in pieces | bundles of 2^shift rows, the longest first | empty rows
 *     a group       LANES lanes take one piece, or one bundle, row after row
 *     a row of x    |lane 0|lane 1|lane 2| ... |lane 0|lane 1| ...    16 bytes each, PER times
 *     in flight     entry e, e + 1, ... e + FLY - 1: all their loads are issued before one is used
 *
 * Expected: nobody is faster, save by reading fewer rows: several rows of the matrix at a time that
 * share columns, as pruned networks' layers allow. Sums of long rows differ from run to run.
 *
 * Source: this project. Guard: no values, one head, a plan, rows of x and y in groups of 16 bytes.
 */
#include "../cuda/segments.cuh"
#include "lesson.cuh"

/* The plan as it is dealt out, x, and y; their values are not used. */
template <class T> struct wall_args : dealt {
    dense_view<const T> x;
    dense_view<T> y;
    int64_t feat;
};

/* Adds 16 bytes of sums to y. A card of 9.0 has one atomic for all four floats; each number is
 * added whole in either way, but in an order that no run repeats. */
static __device__ __forceinline__ void add_pack(float *to, const float *v)
{
#if __CUDA_ARCH__ >= 900
    atomicAdd(reinterpret_cast<float4 *>(to), make_float4(v[0], v[1], v[2], v[3]));
#else
    for (int k = 0; k < 4; k++) atomicAdd(to + k, v[k]);
#endif
}
static __device__ __forceinline__ void add_pack(double *to, const double *v)
{
    for (int k = 0; k < 2; k++) atomicAdd(to + k, v[k]);
}

/* The long rows of y, which their pieces are added to. */
template <class T> static __global__ void clear_long(const __grid_constant__ wall_args<T> s)
{
    enum { VEC = 16 / sizeof(T) };
    let_next_start();
    const int64_t each = s.feat / VEC, packs = read_counts(s.a, s.plan).long_rows * each;
    for (int64_t t = this_thread(); t < packs; t += all_threads()) {
        const int64_t k = t / each, row = clamp(__ldg(s.plan.order + k), 0, s.a.rows - 1);
        *reinterpret_cast<uint4 *>(s.y.at(row, 0) + (t - k * each) * VEC) = uint4{0, 0, 0, 0};
    }
}

/* Group k of the grid has item k of the plan. Tiles of columns that one group does not span lie
 * along y of the grid, and read the entries again. */
template <class T, int LANES, int PER, int FLY>
static __global__ void __launch_bounds__(BLOCK, FLY *PER == 8 ? 3 : 4)
    gather_wall(const __grid_constant__ wall_args<T> s)
{
    enum { VEC = 16 / sizeof(T), EACH = LANES < 8 ? 8 / LANES : 1 };
    enum { CHUNK = LANES * EACH, STEP = LANES * VEC };
    const task<LANES> t = find_task<LANES, false>(s);
    const int lane = t.lane;
    const int64_t column = (int64_t(blockIdx.y) * LANES * PER + lane) * VEC;
    bool in[PER];
    UNROLLED(i, PER) in[i] = column + i * STEP < s.feat;

    for_empty_rows(s, t, [&](int32_t row) {
        const T zeros[VEC] = {};
        UNROLLED(i, PER)
            if (in[i]) store<T, VEC>(s.y.at(row, 0) + column + i * STEP, zeros);
    });

    /* Each lane reads the columns of EACH entries of a chunk, which shuffles hand round. -1 stands
     * for no entry, and what lies outside of the matrix for its last column. */
    const T *const x = s.x.data + column;
    int32_t near[EACH], near_next[EACH];
    auto fetch_columns = [&](const span &from, int at, int32_t *to) {
        UNROLLED(e, EACH) {
            const int p = at + e * LANES + lane;
            to[e] = -1;
            if (p < from.length)
                to[e] =
                    (int32_t)min((uint32_t)__ldg(s.a.idx + from.begin + p), (uint32_t)s.a.cols - 1);
        }
    };
    /* The columns of the next chunk, or of the next row's first, are on their way while this chunk
     * is gathered, so that no row starts with a wait. */
    span now = span_of_lane<LANES>(t.mine, 0);
    fetch_columns(now, 0, near);
    for (int r = 0; r < t.rows; r++) {
        span next = span_of_lane<LANES>(t.mine, (r + 1) % LANES);
        if (r + 1 == LANES) next.length = 0;
        /* One sum per number: order and length of the additions are no matter here. */
        T sum[PER][VEC] = {};
        const int longest = max(most_in_warp<LANES>(now.length), 1);
        for (int done = 0; done < longest; done += CHUNK) {
            if (done + CHUNK < longest)
                fetch_columns(now, done + CHUNK, near_next);
            else
                fetch_columns(next, 0, near_next);
#pragma unroll
            for (int c = 0; c < CHUNK; c += FLY) {
                if (c && done + c >= longest) break;
                /* All loads first: their number in flight is what this lesson varies. */
                PACK(T, VEC) row[FLY][PER];
                UNROLLED(f, FLY) {
                    const int32_t j =
                        __shfl_sync(ALL, near[(c + f) / LANES], (c + f) % LANES, LANES);
                    const T *const from = x + uint64_t(uint32_t(j)) * (uint32_t)s.x.row;
                    const T *const none = reinterpret_cast<const T *>(&no_row);
                    UNROLLED(i, PER)
                        row[f][i] = load<T, VEC>(j >= 0 && in[i] ? from + i * STEP : none);
                }
                UNROLLED(f, FLY)
                    UNROLLED(i, PER) {
                        T term[VEC];
                        unpack<T, VEC>(row[f][i], term);
                        UNROLLED(v, VEC) sum[i][v] += term[v];
                    }
            }
            UNROLLED(e, EACH) near[e] = near_next[e];
        }
        /* Only now are the cleared rows needed: the kernel that clears them has run meanwhile. */
        if (r == 0) wait_for_previous();
        UNROLLED(i, PER) {
            T *const to = s.y.at(now.row, 0) + column + i * STEP;
            if (in[i] && t.item.count == 0 && r == 0) add_pack(to, sum[i]);
            if (in[i] && r < t.item.count) store<T, VEC>(to, sum[i]);
        }
        now = next;
    }
}

/* The kernel that clears lets this one start early, where the device can do so. */
template <int LANES, int PER, int FLY, class T>
static void launch(const fmm_exec *exec, wall_args<T> s)
{
    const cudaStream_t stream = stream_of(exec);
    const int64_t tiles = ceil_div(s.feat * (int64_t)sizeof(T), 16 * LANES * PER);
    const dim3 grid(deal_blocks(exec, &s, LANES, tiles), (unsigned)tiles);
    if (s.plan.long_rows_max) {
        const int64_t packs = s.plan.long_rows_max * s.feat * (int64_t)sizeof(T) / 16;
        clear_long<<<(unsigned)smaller(ceil_div(packs, BLOCK), 264), BLOCK, 0, stream>>>(s);
        launch_early(exec->index, stream, gather_wall<T, LANES, PER, FLY>, grid, s);
    } else {
        gather_wall<T, LANES, PER, FLY><<<grid, BLOCK, 0, stream>>>(s);
    }
}

/* The fewest lanes that span a row in PER loads each. */
template <int PER, int FLY> static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        const fmm_csr *a = call->a;
        const plan_view plan = view_plan(a->plan, size_of_plan(a), plan_slots(a));
        const wall_args<std::remove_reference_t<decltype(*s.y.data)>> w = {
            dealt{s.a, s.val, plan, 0, 1, 0}, s.x, s.y, s.feat};
        const int64_t loads = ceil_div(s.feat * (int64_t)sizeof(*s.x.data), 16 * PER);
        for_least<2, 4, 8, 16, 32>(loads, [&](auto lanes) { launch<lanes, PER, FLY>(exec, w); });
    });
}

/* Loads of 16 bytes, and 32-bit places of rows of x. */
static bool supports(const fmm_call *call)
{
    const int64_t bytes = call->x->dtype == FMM_F64 ? 8 : 4, vec = 16 / bytes;
    return lesson_supports(call) && !call->val->data && call->x->heads == 1 &&
           plan_given(call->a) && call->a->cols && call->x->row_stride <= UINT32_MAX &&
           segments_reach(call->a, 1, call->x->feat) && lies_in_packs(call->x, bytes, vec) &&
           lies_in_packs(call->y, bytes, vec);
}

static const char about[] = "gathers and adds rows of x, nothing else";

/* Which of them is least depends on the width of the rows: all are tried. */
#define ENTRY(per, fly)                                                                            \
    lesson("gather_wall:" #per "x" #fly, about, "this project", run<per, fly>, supports, NULL,     \
           false)
fmm_algorithm spmm_gather_wall[] = {ENTRY(1, 4), ENTRY(1, 8), ENTRY(2, 2), ENTRY(4, 2), {}};
