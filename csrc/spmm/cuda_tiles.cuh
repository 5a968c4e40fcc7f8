/* SpMM `tiles`: y[i,:] = sum_p val[p] * x[idx[p],:] for rows that share many columns, as those of
 * pruned networks do.
 *
 * A block owns up to WARPS * ROWS rows of y and a strip of columns of x. It walks over x in windows
 * of W rows, each copied once into shared memory (cuda/tiles.cuh), where every row of the block
 * finds what it needs. So gathering from L2, which bounds `segments`, becomes gathering from shared
 * memory.
 *
 *     warp's row r    p p p p | p p p p p | p p p ...    entries, in rising order of columns
 *     window w        <-----> |                          a prefix of those that the lanes hold
 *     list of r       (value, address) (value, address) ...          in shared memory
 *     group 0           takes one        |                           LANES lanes span the strip,
 *     group 1                              takes one                 PER loads of 16 bytes each
 *     sums            of ROWS rows, in registers of each group
 *
 * The steps of a pass over a window:
 *   fetch       Each lane asks for the next entries of the warp's rows, a pass ahead.
 *   list        Those in the window go to the row's list.
 *   accumulate  The groups of the warp take the entries of the list in turn.
 *   put aside   Before an accumulator has more than CHAIN terms, it begins anew.
 * At the end the groups' sums meet in a fixed tree and go to y.
 * Shared memory hands a multiprocessor 128 bytes of registers a cycle, also where lanes read the
 * same: four cycles for the 512 bytes of a row, two for an element of the list that all lanes read,
 * one where two groups read two.
 *
 * What no window took, because columns do not rise or lie outside the matrix, is added at the end
 * from global memory: right for any content, fast for sorted rows. A row has one owner and an order
 * that depends on the matrix alone; when its accumulators begin anew depends on the rows beside it,
 * too, and so on the number of multiprocessors. */
#pragma once

#include "../cuda/tiles.cuh"

template <class T> struct tiles_args {
    csr_view a;
    edge_view val;
    const T *x;
    T *y;
    int64_t x_row, y_row, feat, step; /* step: rows of a warp, see share_of */
    bool packs, mean; /* packs: rows of x and y can be accessed 16 bytes at a time */
};

/* An element of a list. */
template <class A> struct tiles_entry {
    A by;
    uint32_t at; /* where the row of x lies in its window, in bytes */
};

/* Behind the windows lie the lists, one for each row. */
template <class T, int LANES_, int PER_, int W_, int ROWS_, int WARPS_>
struct tiles_shape : tiles_base<T, LANES_, PER_, W_, ROWS_> {
    typedef tiles_base<T, LANES_, PER_, W_, ROWS_> B;
    enum {
        WARPS = WARPS_,
        BARRIERS_AT =
            B::LISTS_AT + WARPS * ROWS_ * WARP * sizeof(tiles_entry<typename sum_of<T>::type>),
        BYTES = BARRIERS_AT + 2 * B::STAGES * sizeof(uint64_t),
    };
};

/* PLAIN: values are of type T, in the matrix's own order. */
template <class T, class S, bool PLAIN>
static __global__ void __launch_bounds__(S::WARPS *WARP, 1)
    spmm_tiles(const __grid_constant__ tiles_args<T> s)
{
#if TILES_POSSIBLE(__CUDA_ARCH__)
    typedef typename sum_of<T>::type A;
    enum { VEC = S::VEC, PER = S::PER, ROWS = S::ROWS, UNROLL = PER == 1 ? 4 : 2 };
    char *const memory = block_memory();
    /* From a shuffle, so that it stays in a register as the memory's address does. */
    const int warp = __shfl_sync(ALL, threadIdx.x / WARP, 0);
    const int lane = threadIdx.x % WARP, group = lane / S::LANES;
    tiles_entry<A> *const lists =
        reinterpret_cast<tiles_entry<A> *>(memory + S::LISTS_AT) + warp * ROWS * WARP;
    const row_share own = share_of(s.step, int64_t(blockIdx.x) * S::WARPS + warp);
    const int64_t strip = int64_t(blockIdx.y) * S::STRIP;
    const int64_t column = strip + lane % S::LANES * VEC; /* and every LANES * VEC from there */
    const tiles_ring<T, S> windows =
        make_ring<T, S>(memory, s.x, s.x_row, s.a.cols, strip, s.feat, s.packs, false);

    const int2 progress = progress_of(s.a, own);
    int at = progress.x;
    const int end = progress.y, length = end - at;
    auto value = [&](int64_t p) {
        if (PLAIN) return widen(__ldg(static_cast<const T *>(s.val.data) + p));
        return edge_value<A>(s.val, edge_of(s.val, p), 0);
    };
    /* The next WARP entries of each row, one to a lane. */
    auto fetch = [&](int32_t(&near)[ROWS], A(&by)[ROWS]) {
        UNROLLED(r, ROWS) {
            const int p = __shfl_sync(ALL, at, r) + lane;
            const bool some = p < __shfl_sync(ALL, end, r);
            near[r] = some ? __ldg(s.a.idx + p) : -1;
            by[r] = some ? value(p) : A(0);
        }
    };

    A sum[ROWS][PER][VEC] = {};
    sums_aside<A, ROWS * PER * VEC> aside;
    int terms = 0; /* at most, in each accumulator since it was empty */
    bool some_aside = false;
    auto make_room = [&](int more) {
        if (terms + more > CHAIN) {
            aside.put(sum[0][0], !some_aside);
            some_aside = true, terms = 0;
        }
        terms += more;
    };

    int32_t near[ROWS], near_next[ROWS];
    A by[ROWS], by_next[ROWS];
    fetch(near, by);
    windows.copy_window(0);
    for (int w = 0; w < windows.windows; w++) {
        const int stage = w % S::STAGES;
        const uint32_t base = uint32_t(w) * S::W, here = min(uint32_t(s.a.cols) - base, S::W);
        const char *const window = memory + stage * S::WINDOW * sizeof(T) + lane % S::LANES * 16;
        windows.copy_window(w + 1);
        wait_for(windows.full + stage, w / S::STAGES);
        /* Another pass as long as a row may have more entries in the window than the lanes held. */
        for (int most = WARP; most == WARP;) {
            int count[ROWS];
            most = 0;
            UNROLLED(r, ROWS) {
                count[r] = count_in_window(near[r], base, here);
                if (lane == r) at += count[r];
                most = max(most, count[r]);
            }
            fetch(near_next, by_next);
            /* Groups that find no entry at the list's end take the window's row of zeros. */
            UNROLLED(r, ROWS) {
                const bool in = lane < count[r];
                const uint32_t row = in ? uint32_t(near[r]) - base : S::W;
                lists[r * WARP + lane] = {in ? by[r] : A(0), row * uint32_t(S::STRIP * sizeof(T))};
            }
            make_room(most / S::GROUPS + 1);
            __syncwarp(); /* once for the lists of all rows */
            UNROLLED(r, ROWS) {
#pragma unroll UNROLL
                for (int k = 0; k < count[r]; k += S::GROUPS) {
                    const tiles_entry<A> entry = lists[r * WARP + k + group];
                    uint4 row[PER];
                    UNROLLED(i, PER)
                        row[i] =
                            *reinterpret_cast<const uint4 *>(window + entry.at + i * S::LANES * 16);
                    UNROLLED(i, PER) {
                        A term[VEC];
                        unpack<T, VEC>(row[i], term);
                        UNROLLED(v, VEC) sum[r][i][v] = fma(entry.by, term[v], sum[r][i][v]);
                    }
                }
            }
            __syncwarp();
            UNROLLED(r, ROWS) near[r] = near_next[r], by[r] = by_next[r];
        }
        (void)__mbarrier_arrive(windows.empty + stage);
    }

    /* The rest: entries of row r from `at` on, a warp's worth at a time. */
    UNROLLED(r, ROWS) {
        const int until = __shfl_sync(ALL, end, r);
        for (int p = __shfl_sync(ALL, at, r); p < until; p += WARP) {
            const bool mine = p + lane < until;
            const int32_t j = mine ? __ldg(s.a.idx + p + lane) : -1;
            const A weight = mine ? value(p + lane) : A(0);
            make_room(WARP / S::GROUPS);
#pragma unroll 4
            for (int k = 0; k < WARP; k += S::GROUPS) {
                const int32_t from = __shfl_sync(ALL, j, k + group);
                const A with = __shfl_sync(ALL, weight, k + group);
                const bool inside = uint32_t(from) < uint32_t(s.a.cols);
                const T *const row = s.x + (inside ? from : 0) * s.x_row + column;
                UNROLLED(i, PER) {
                    const int64_t left = inside ? s.feat - column - i * S::LANES * VEC : 0;
                    A term[VEC] = {};
                    if (s.packs && left > 0)
                        unpack<T, VEC>(load<T, VEC>(row + i * S::LANES * VEC), term);
                    UNROLLED(v, VEC) {
                        if (!s.packs && v < left)
                            term[v] = widen(__ldg(row + i * S::LANES * VEC + v));
                        if (v < left) sum[r][i][v] = fma(with, term[v], sum[r][i][v]);
                    }
                }
            }
        }
    }
    if (some_aside) aside.take(sum[0][0]);
    UNROLLED(r, ROWS) {
        const int all = __shfl_sync(ALL, length, r);
        const A share = s.mean && all ? A(all) : A(1);
        const bool here = group == 0 && own.begin + r < own.end;
        T *const to = s.y + (own.begin + r) * s.y_row + column;
        UNROLLED(c, PER * VEC) {
            const int at = c / VEC * S::LANES * VEC + c % VEC;
            A *const mine = &sum[r][c / VEC][c % VEC];
#pragma unroll
            for (int d = S::LANES; d < WARP; d *= 2) *mine += __shfl_xor_sync(ALL, *mine, d);
            if (here && column + at < s.feat) to[at] = narrow<T>(*mine / share);
        }
    }
#endif
}
