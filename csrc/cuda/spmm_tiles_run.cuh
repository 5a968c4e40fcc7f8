/* How SpMM `tiles` is launched: the shape of its blocks, and what happens on cards that cannot hold
 * them. */
#ifndef FMM_CUDA_SPMM_TILES_RUN_CUH
#define FMM_CUDA_SPMM_TILES_RUN_CUH

#include "spmm_tiles.cuh"

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

/* Rows a warp: fewer make more blocks. A block takes about the time of its rows and one row more,
 * for the copying, and one runs on each multiprocessor at a time. */
template <class T, int LANES, int PER, int W>
static fmm_status choose_rows(const fmm_exec *exec, const tiles_args<T> &s)
{
    int at_once = 1;
    (void)cudaDeviceGetAttribute(&at_once, cudaDevAttrMultiProcessorCount, exec->index);
    const int64_t strips = ceil_div(s.feat, LANES * PER * (16 / sizeof(T)));
    int best = 0;
    int64_t least = 0;
    for (int rows = 4; rows > 0; rows--) {
        const int64_t blocks = ceil_div(s.a.rows, 16 * rows) * strips;
        const int64_t time = ceil_div(blocks, at_once) * (rows + 1);
        if (!best || time < least) best = rows, least = time;
    }
    if (best == 1) return launch_tiles<T, tiles_shape<T, LANES, PER, W, 1>>(exec, s);
    if (best == 2) return launch_tiles<T, tiles_shape<T, LANES, PER, W, 2>>(exec, s);
    if (best == 3) return launch_tiles<T, tiles_shape<T, LANES, PER, W, 3>>(exec, s);
    return launch_tiles<T, tiles_shape<T, LANES, PER, W, 4>>(exec, s);
}

/* Strips of 128, 256 or 512 bytes, in windows of 64 KB, or 56 where the lists need more. */
template <class T> static fmm_status choose_tiles(const fmm_exec *exec, const tiles_args<T> &s)
{
    enum { W = sizeof(T) == 4 ? 128 : 112 };
    const int64_t bytes = s.feat * (int64_t)sizeof(T);
    if (bytes <= 128) return choose_rows<T, 8, 1, 4 * W>(exec, s);
    if (bytes <= 256) return choose_rows<T, 8, 2, 2 * W>(exec, s);
    return choose_rows<T, 16, 2, W>(exec, s);
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
