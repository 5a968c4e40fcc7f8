/* fused `tiles` over f32: what it can take, and the shape of its blocks; the kernel is in
 * cuda_tiles.cuh. */
#include "cuda_tiles.cuh"

#include "cuda.h"

/* The score is a dot product, and the message is y itself. Functions without direct code are
 * declined: the interpreter is a call, which needs the registers that the rows of y are in. A
 * matrix without entries is declined too, because it has nothing to load where an entry is missing.
 */
bool fmm_fused_tiles_supports(const fmm_call *call)
{
    const fmm_fusion *const f = fmm_fusion_of(call);
    const fmm_dense *const x = f->x, *const y = f->y, *const z = f->z;
    return f->pass == FMM_FORWARD && f->score == FMM_SCORE_DOT && f->message == FMM_MESSAGE_SCALE &&
           f->activation == FMM_ACT_NONE && (f->reduce == FMM_SUM || f->reduce == FMM_MEAN) &&
           x->dtype == FMM_F32 && x->heads == 1 && x->feat <= 128 && z->data == y->data &&
           z->feat == y->feat && z->row_stride == y->row_stride && call->a->nnz > 0 &&
           call->a->nnz < INT32_MAX - BLOCK && call->a->rows < INT32_MAX && call->a->rows > 0 &&
           fmm_fused_segments_supports(call) && edge_of_fusion<float>(f).kind != EDGE_PROGRAM;
}

/* As many groups share a row, by a power of 2, as a block has for each of its rows. Plain values
 * are read without the caller's order of edges and without a branch on their type. */
template <class S> static fmm_status launch_fused_tiles(const fmm_exec *exec, fused_tiles_args s)
{
    const int64_t blocks = tiles_blocks(exec, s.a.rows, 1), rows = ceil_div(s.a.rows, blocks);
    s.shift = rows <= S::WARPS ? 2 : rows <= 2 * S::WARPS ? 1 : 0;
    const bool plain = s.edge.valued && s.val.data && !s.val.eid && s.val.dtype == FMM_F32 &&
                       s.val.row_stride == 1;
    return launch_tiles<S, fused_tiles_args>(
        exec, plain ? fused_tiles<S, true> : fused_tiles<S, false>, s.a.rows, blocks, 1, s);
}

/* Rows of up to 128, 256 or 512 bytes, in windows of 32 KB. Runs `segments` where the card cannot.
 */
extern "C" fmm_status fmm_fused_tiles_f32(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_fusion *const f = fmm_fusion_of(call);
    int before;
    TRY(cuda_enter("fused", exec, &before));
    fused_tiles_args s;
    s.a = view_csr(call->a);
    s.val = view_edges(call->a, call->val);
    s.x = view_dense<const float>(f->x), s.y = view_dense<const float>(f->y);
    s.out = view_dense<float>(f->out);
    s.feat = (int32_t)f->x->feat;
    s.packs = lies_in_packs(f->y, sizeof(float), 4);
    s.mean = f->reduce == FMM_MEAN;
    s.edge = edge_of_fusion<float>(f);
    /* What most calls ask for: the score itself, scaled and shifted. */
    s.linear = s.edge.kind == EDGE_U;
    const fmm_status status = s.feat <= 32 ? launch_fused_tiles<fused_shape<8, 1, 8, 256>>(exec, s)
                              : s.feat <= 64
                                  ? launch_fused_tiles<fused_shape<8, 2, 8, 128>>(exec, s)
                                  : launch_fused_tiles<fused_shape<8, 4, 4, 64>>(exec, s);
    TRY(cuda_leave("fused", exec, before));
    return status == FMM_UNSUPPORTED ? fmm_fused_segments_f32(exec, call) : status;
}
