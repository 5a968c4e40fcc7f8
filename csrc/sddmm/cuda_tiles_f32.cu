/* SDDMM `tiles` over f32: what it can take, and the shape of its blocks; the kernel is in
 * cuda_tiles.cuh. */
#include "cuda_tiles.cuh"

#include "cuda.h"

/* Values and another order of edges are declined: they would be read while all lanes wait. A row of
 * a is at most 1,024 bytes long, as much as the registers of a warp's lanes hold. */
bool fmm_sddmm_tiles_supports(const fmm_call *call)
{
    const fmm_dense *const a = call->x, *const b = call->b;
    const bool ones = !call->val || !call->val->data;
    return a->dtype == FMM_F32 && a->heads == 1 && a->feat <= 256 && ones && !call->a->eid &&
           call->a->nnz < INT32_MAX - BLOCK && call->a->rows < INT32_MAX && a->rows > 0 &&
           b->rows > 0 && fmm_sddmm_segments_supports(call);
}

/* The number of rows is a part of the shape, since a warp's rows of a are registers. */
template <int LANES, int PER, int W>
static fmm_status choose_rows(const fmm_exec *exec, const sddmm_tiles_args &s)
{
    const int64_t blocks = tiles_blocks(exec, s.s.rows, 1);
    return for_least<1, 2, 3, 4>(ceil_div(s.s.rows, 16 * blocks), [&](auto warp_rows) {
        typedef sddmm_shape<LANES, PER, W, warp_rows> S;
        return launch_tiles<S, sddmm_tiles_args>(exec, sddmm_tiles<S>, s.s.rows, blocks, 1, s);
    });
}

/* Chooses the shape by the width of a row. Rows of up to 128, 256, 512 or 1,024 bytes go through
 * windows of 64 KB, which hold fewer rows where rows are wider. Where the card cannot hold them,
 * `segments` runs. */
extern "C" fmm_status fmm_sddmm_tiles_f32(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_dense *const a = call->x, *const b = call->b;
    int before;
    TRY(cuda_enter("sddmm", exec, &before));
    sddmm_tiles_args s;
    s.s = view_csr(call->a);
    s.a = view_dense<const float>(a), s.b = view_dense<const float>(b);
    s.e = view_dense<float>(call->y);
    s.feat = a->feat;
    /* Both operands, since a's rows are read 16 bytes at a time, too. */
    s.packs = lies_in_packs(a, sizeof(float), 4) && lies_in_packs(b, sizeof(float), 4);
    /* LANES, PER and W: the more columns, the more lanes span a row, and the fewer rows fit. */
    const fmm_status status = s.feat <= 32    ? choose_rows<8, 1, 512>(exec, s)
                              : s.feat <= 64  ? choose_rows<8, 2, 256>(exec, s)
                              : s.feat <= 128 ? choose_rows<16, 2, 128>(exec, s)
                                              : choose_rows<32, 2, 64>(exec, s);
    TRY(cuda_leave("sddmm", exec, before));
    return status == FMM_UNSUPPORTED ? fmm_sddmm_segments_f32(exec, call) : status;
}
