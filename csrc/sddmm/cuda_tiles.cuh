/* SDDMM `tiles`: e[p] = <a[i,:], b[idx[p],:]> for rows that share many columns, as those of pruned
 * networks do.
 *
 * Windows of b go through shared memory (cuda/tiles.cuh), where the rows of a block find what
 * `segments` gathers from L2. A warp owns ROWS rows of a, which stay in its registers.
 *
 *     warp's row r    p p p p p p p p | p p p ...    entries, in rising order of columns
 *     window w        <------------->                a prefix of those that the lanes hold
 *     list            0 2 4 6 ..  1 3 5 7 ..         their addresses in the window, dealt to GROUPS
 *     groups          group 0     group 1            groups of LANES lanes in turn
 *     a batch         8 entries of a group           each lane multiplies its columns
 *     butterfly       8 dot products, one to a lane, written side by side
 *
 * The steps of a pass over a window:
 *   fetch     Each lane asks for the columns of the next entries of the warp's rows, a pass ahead.
 *   list      Those in the window go to the warp's list, four addresses to an element.
 *   multiply  A group takes BATCH entries at a time and multiplies their rows with its own.
 *   join      The butterfly of cuda.cuh adds up what the lanes have, and they write it.
 *
 * What no window took, because columns do not rise or lie outside the matrix, is computed at the
 * end from global memory: right for any content, fast for sorted rows. Every entry has one owner
 * and one order of addition, and no accumulator adds more than 8 terms before the butterfly. */
#pragma once

#include "cuda.cuh"
#include "../cuda/tiles.cuh"

struct sddmm_tiles_args {
    csr_view s;                   /* the names are those of the equation: e = s * (a b^T) */
    dense_view<const float> a, b; /* of one head */
    dense_view<float> e;
    int64_t feat, step; /* columns of a and b; rows of a warp, see share_of */
    bool packs;         /* rows of a and b can be read 16 bytes at a time */
};

/* Behind the windows lie the warps' lists, an address for each lane. */
template <int LANES_, int PER_, int W_, int ROWS_>
struct sddmm_shape : tiles_base<float, LANES_, PER_, W_, ROWS_> {
    typedef tiles_base<float, LANES_, PER_, W_, ROWS_> B;
    enum {
        BARRIERS_AT = B::LISTS_AT + B::WARPS * WARP * sizeof(uint32_t),
        BYTES = BARRIERS_AT + 2 * B::STAGES * sizeof(uint64_t),
    };
    static_assert(B::LISTS_AT % 16 == 0, "lists are read 16 bytes at a time");
};

/* A lane's part of a row of which `left` columns are there. */
template <class S>
static __device__ __forceinline__ void read_part(const float *row, int64_t left, bool packs,
                                                 float (&part)[S::PER][S::VEC])
{
    UNROLLED(i, S::PER) {
        const int at = i * S::LANES * S::VEC;
        if (packs)
            unpack<float, S::VEC>(load_if<float, S::VEC>(at < left, row + at), part[i]);
        else
            UNROLLED(v, S::VEC) part[i][v] = at + v < left ? __ldg(row + at + v) : 0;
    }
}

/* A block's shared memory: the ring of windows, the warps' lists, the barriers. */
template <class S>
static __global__ void __launch_bounds__(S::WARPS *WARP, 1)
    sddmm_tiles(const __grid_constant__ sddmm_tiles_args s)
{
#if TILES_POSSIBLE(__CUDA_ARCH__)
    enum { LANES = S::LANES, PER = S::PER, VEC = S::VEC, ROWS = S::ROWS, GROUPS = S::GROUPS };
    enum { BATCH = 8, SHARE = LANES / BATCH, STRIDE = WARP / GROUPS };
    char *const memory = block_memory();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / LANES;
    const int place = lane % LANES; /* in the group */
    uint32_t *const list = reinterpret_cast<uint32_t *>(memory + S::LISTS_AT) + warp * WARP;
    const row_share own = share_of(s.step, int64_t(blockIdx.x) * S::WARPS + warp);
    const int64_t column = place * VEC, left_of_row = s.feat - column;

    const tiles_ring<float, S> windows =
        make_ring<float, S>(memory, s.b.data, s.b.row, s.s.cols, 0, s.feat, s.packs, true);

    const int2 progress = progress_of(s.s, own);
    int at = progress.x;
    const int end = progress.y;
    /* The columns of the next WARP entries of each row, one to a lane. */
    auto fetch = [&](int32_t(&near)[ROWS]) {
        UNROLLED(r, ROWS) {
            const int p = __shfl_sync(ALL, at, r) + lane;
            near[r] = p < __shfl_sync(ALL, end, r) ? __ldg(s.s.idx + p) : -1;
        }
    };

    int32_t near[ROWS], near_next[ROWS];
    fetch(near);
    windows.copy_window(0);
    float mine[ROWS][PER][VEC]; /* the warp's rows of a */
    UNROLLED(r, ROWS) {
        const int64_t row = min(int64_t(own.begin) + r, s.s.rows - 1);
        read_part<S>(s.a.at(row, 0, column), left_of_row, s.packs, mine[r]);
    }
    for (int w = 0; w < windows.windows; w++) {
        const int stage = w % S::STAGES;
        const uint32_t base = uint32_t(w) * S::W, here = min(uint32_t(s.s.cols) - base, S::W);
        const char *const window =
            memory + stage * S::WINDOW * int(sizeof(float)) + place * VEC * int(sizeof(float));
        windows.copy_window(w + 1);
        wait_for(windows.full + stage, w / S::STAGES);
        /* Another pass as long as a row may have more entries in the window than the lanes held. */
        for (int most = WARP; most == WARP;) {
            int count[ROWS], start[ROWS];
            most = 0;
            UNROLLED(r, ROWS) {
                count[r] = count_in_window(near[r], base, here);
                start[r] = __shfl_sync(ALL, at, r);
                most = max(most, count[r]);
            }
            UNROLLED(r, ROWS)
                if (lane == r) at += count[r];
            fetch(near_next);
            UNROLLED(r, ROWS) {
                /* Places behind the last entry name the window's row of zeros. */
                const uint32_t row = lane < count[r] ? uint32_t(near[r]) - base : uint32_t(S::W);
                list[lane % GROUPS * STRIDE + lane / GROUPS] =
                    row * uint32_t(S::STRIP * sizeof(float));
                __syncwarp();
#pragma unroll 1
                for (int k = 0; k < count[r]; k += BATCH * GROUPS) {
                    float dot[BATCH];
                    /* Four entries at a time: their addresses are one load, and four rows are in
                     * flight. */
#pragma unroll
                    for (int f = 0; f < BATCH; f += 4) {
                        UNROLLED(i, 4) dot[f + i] = 0;
                        if (f && k + f * GROUPS >= count[r]) break;
                        const uint4 from = *reinterpret_cast<const uint4 *>(list + group * STRIDE +
                                                                            k / GROUPS + f);
                        const uint32_t each[4] = {from.x, from.y, from.z, from.w};
                        uint4 packed[4][PER];
                        UNROLLED(i, 4 * PER)
                            packed[i / PER][i % PER] = *reinterpret_cast<const uint4 *>(
                                window + each[i / PER] + i % PER * LANES * 16);
                        UNROLLED(i, 4 * PER) {
                            float other[VEC];
                            unpack<float, VEC>(packed[i / PER][i % PER], other);
                            UNROLLED(v, VEC)
                                dot[f + i / PER] =
                                    fma(mine[r][i % PER][v], other[v], dot[f + i / PER]);
                        }
                    }
                    transpose_sum<float, LANES, BATCH>(dot, place);
                    const int q = k + place / SHARE * GROUPS + group;
                    if (place % SHARE == 0 && q < count[r])
                        store<float, 1>(s.e.at(start[r] + q, 0), dot);
                }
                __syncwarp();
            }
            UNROLLED(r, ROWS) near[r] = near_next[r];
        }
        (void)__mbarrier_arrive(windows.empty + stage);
    }

    /* The rest: entries of row r from `at` on, one to a group. */
    UNROLLED(r, ROWS) {
        const int until = __shfl_sync(ALL, end, r);
        for (int p = __shfl_sync(ALL, at, r) + group; p - group < until; p += GROUPS) {
            const int32_t j = p < until ? __ldg(s.s.idx + p) : -1;
            const bool inside = uint32_t(j) < uint32_t(s.s.cols);
            float other[PER][VEC], dot = 0;
            read_part<S>(s.b.at(inside ? j : 0, 0, column), inside ? left_of_row : 0, s.packs,
                         other);
            UNROLLED(i, PER * VEC)
                dot = fma(mine[r][i / VEC][i % VEC], other[i / VEC][i % VEC], dot);
            dot = lane_sum<LANES>(dot);
            if (place == 0 && p < until) store<float, 1>(s.e.at(p, 0), &dot);
        }
    }
#endif
}
