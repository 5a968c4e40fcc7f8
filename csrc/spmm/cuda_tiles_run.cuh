/* How SpMM `tiles` is launched: the shape of its blocks, and what happens on cards that cannot hold
 * them.
 *
 *     columns of x    | strip | strip | strip |      a block takes one strip of them ...
 *     rows of y       16 warps, 1 to 4 rows each,    ... and so many rows
 *                     or 32 warps, 1 or 2 rows each
 *                     or 20 warps, 1 to 4 rows each
 */
#pragma once

#include "cuda_tiles.cuh"
#include "cuda.h"

/* The number of rows is a part of the shape, since a warp's sums are registers. kernel(shape) is
 * the one to launch. Where a row is one load, registers are left for twice as many warps, and it
 * is seldom that all of them wait. A block waits for its fullest warp. So it has 20 warps where the
 * fullest then has a row less: 4,267 rows are 32 or 33 for each of 132 blocks, which is two for
 * most of 16 warps and three for a few. */
template <class T, int LANES, int PER, int TIMES, class Kernel>
static fmm_status choose_rows(const fmm_exec *exec, const tiles_args<T> &s, Kernel kernel)
{
    const int64_t strips = ceil_div(s.feat * (int64_t)sizeof(T), LANES * PER * 16);
    /* In 16 bits, sums of four rows in 20 warps would spill. */
    const int64_t blocks = tiles_blocks(exec, s.a.rows, strips, sizeof(T) == 2 ? 64 : 20 * 4);
    auto choose = [&](auto of_block) {
        return for_least<1, 2, 3, 4>(ceil_div(s.a.rows, of_block * blocks), [&](auto warp_rows) {
            constexpr int warps = of_block, rows = warp_rows,
                          by = warps == 16 && PER == 1 && sizeof(T) == 4 && rows % 2 == 0 ? 2 : 1,
                          W = TIMES * ((sizeof(T) == 8 ? 112 : 128) / warps * warps);
            typedef tiles_shape<T, LANES, PER, W, rows / by, warps * by> S;
            return launch_tiles<S, tiles_args<T>>(exec, kernel(S()), s.a.rows, blocks, strips, s);
        });
    };
    return ceil_div(s.a.rows, 20 * blocks) < ceil_div(s.a.rows, 16 * blocks)
               ? choose(std::integral_constant<int, 20>())
               : choose(std::integral_constant<int, 16>());
}

/* Chooses the strip. Strips of 128, 256 or 512 bytes, in windows of 60 or 64 KB, or less where
 * the lists need more. */
template <class T, class Kernel>
static fmm_status choose_tiles(const fmm_exec *exec, const tiles_args<T> &s, Kernel kernel)
{
    const int64_t bytes = s.feat * (int64_t)sizeof(T);
    if (bytes <= 128) return choose_rows<T, 8, 1, 4>(exec, s, kernel);
    /* Narrow strips, too, where 16 rows a block would leave half of the card empty. */
    const int64_t blocks = ceil_div(s.a.rows, 16) * ceil_div(bytes, 512);
    if (bytes <= 256 || 2 * blocks <= fmm_cuda_processors(exec->index))
        return choose_rows<T, 8, 2, 2>(exec, s, kernel);
    return choose_rows<T, 16, 2, 1>(exec, s, kernel);
}

/* Runs `otherwise` where the card cannot, or the code that this build has for it. Plain values are
 * read without the caller's order of edges and without a branch on their type. */
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
    const bool plain =
        s.val.data && !s.val.eid && s.val.dtype == dtype_of<T>() && s.val.row_stride == 1;
    const fmm_status status = choose_tiles(exec, s, [&](auto shape) {
        typedef decltype(shape) S;
        return plain ? spmm_tiles<T, S, true> : spmm_tiles<T, S, false>;
    });
    TRY(cuda_leave("spmm", exec, before));
    return status == FMM_UNSUPPORTED ? otherwise(exec, call) : status;
}

/* For a type's file. Where the card cannot hold the windows, `segments` runs. */
#define FMM_TILES_OF(dtype, T)                                                                     \
    FMM_C fmm_status fmm_spmm_tiles_##dtype(const fmm_exec *exec, const fmm_call *call)            \
    {                                                                                              \
        return tiles_run<T>(exec, call, fmm_spmm_segments_##dtype);                                \
    }
