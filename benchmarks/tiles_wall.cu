/* gather_wall:tiles, what SpMM `tiles` moves through shared memory, and nothing else: how fast it
 * can be at most.
 *
 * Blocks, warps and their shares of rows are those of csrc/spmm/cuda_tiles.cuh, and so are the
 * windows of x and who copies them when. For each entry a group of lanes reads an element of a list
 * and a row of the window, in loads as wide as there, with more of them in flight. What is left
 * out:
 *
 *     the matrix      A row has as many entries as the matrix says, but they are spread evenly over
 *                     the windows, in whole steps of all groups. No column or value is read.
 *     the lists       Lanes write as many elements as there, which name rows of the window. Which
 *                     ones does not matter: 8 lanes read 128 bytes in a row, one of each bank.
 *     the product     What was read is combined bit by bit, in half as many instructions.
 *
 * So y gets no product, and 32 numbers of each strip alone. What `tiles` takes longer is what it
 * does beside moving, and no change to it can gain more, as long as it moves as much.
 *
 *     make build/benchmarks/tiles_wall.so
 *
 * A plug-in. Guard: f32, sums, no values, one head, rows of x in groups of 16 bytes. */
#include "../csrc/cuda/plugin.cuh"
#include "../csrc/spmm/cuda_tiles_run.cuh"

template <class S>
static __global__ void __launch_bounds__(S::WARPS *WARP, 1)
    tiles_wall(const __grid_constant__ tiles_args<float> s)
{
#if TILES_POSSIBLE(__CUDA_ARCH__)
    typedef tiles_entry<float> entry;
    enum { PER = S::PER, ROWS = S::ROWS };
    char *const memory = block_memory();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / S::LANES;
    entry *const lists = reinterpret_cast<entry *>(memory + S::LISTS_AT) + warp * ROWS * WARP;
    const row_share own = share_of(s.step, int64_t(blockIdx.x) * S::WARPS + warp);
    const int64_t strip = int64_t(blockIdx.y) * S::STRIP;
    const tiles_ring<float, S> windows =
        make_ring<float, S>(memory, s.x, s.x_row, s.a.cols, strip, s.feat, s.packs, false);

    /* Lane r knows how many steps row r still has. */
    const int2 progress = progress_of(s.a, own);
    int left = (int)ceil_div(progress.y - progress.x, S::GROUPS);
    const entry mine = {float(lane), uint32_t(lane * (S::W / WARP) * S::STRIP * sizeof(float))};
    uint32_t found[ROWS][PER] = {};
    windows.copy_window(0);
    for (int w = 0; w < windows.windows; w++) {
        const int stage = w % S::STAGES;
        const char *const window =
            memory + stage * S::WINDOW * sizeof(float) + lane % S::LANES * 16;
        windows.copy_window(w + 1);
        wait_for(windows.full + stage, w / S::STAGES);
        const int steps = left / (windows.windows - w);
        left -= steps;
        int here = steps * S::GROUPS;
        for (int most = WARP; most == WARP;) {
            int count[ROWS];
            most = 0;
            UNROLLED(r, ROWS) {
                count[r] = min(__shfl_sync(ALL, here, r), WARP);
                most = max(most, count[r]);
                if (lane < count[r]) lists[r * WARP + lane] = mine;
            }
            here -= min(here, WARP);
            __syncwarp();
            UNROLLED(r, ROWS) {
#pragma unroll 4
                for (int k = 0; k < count[r]; k += S::GROUPS) {
                    const entry next = lists[r * WARP + k + group];
                    found[r][0] ^= __float_as_uint(next.by);
                    UNROLLED(i, PER) {
                        const uint4 row =
                            *reinterpret_cast<const uint4 *>(window + next.at + i * S::LANES * 16);
                        found[r][i] ^= row.x ^ row.y ^ row.z ^ row.w;
                    }
                }
            }
            __syncwarp();
        }
        (void)__mbarrier_arrive(windows.empty + stage);
    }
    UNROLLED(r, ROWS) {
        UNROLLED(i, PER - 1) found[r][0] ^= found[r][i + 1];
        if (own.begin + r < own.end && strip + lane < s.feat)
            s.y[(own.begin + r) * s.y_row + strip + lane] = __uint_as_float(found[r][0]);
    }
#endif
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    int before;
    TRY(cuda_enter("spmm", exec, &before));
    tiles_args<float> s = {};
    s.a = view_csr(call->a);
    s.x = static_cast<const float *>(call->x->data);
    s.y = static_cast<float *>(call->y->data);
    s.x_row = call->x->row_stride;
    s.y_row = call->y->row_stride;
    s.feat = call->x->feat;
    s.packs = true;
    const fmm_status status =
        choose_tiles(exec, s, [](auto shape) { return tiles_wall<decltype(shape)>; });
    TRY(cuda_leave("spmm", exec, before));
    REQUIRE(status != FMM_UNSUPPORTED, status, "gather_wall:tiles: this card cannot run tiles");
    return status;
}

static bool supports(const fmm_call *call)
{
    return call->x->dtype == FMM_F32 && call->reduce == FMM_SUM && !call->val->data &&
           call->x->heads == 1 && lies_in_packs(call->x, 4, 4) && call->a->rows < INT32_MAX &&
           call->a->nnz < INT32_MAX - BLOCK && call->x->feat <= 65535 * INT64_C(16);
}

FMM_PLUGIN
{
    static fmm_algorithm wall = {0,
                                 "gather_wall:tiles",
                                 "what tiles moves in shared memory",
                                 "this project",
                                 true,
                                 supports,
                                 NULL,
                                 run};
    host_of_errors = host;
    return host->add(FMM_SPMM, FMM_CUDA, &wall);
}
