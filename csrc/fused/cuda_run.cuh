/* How fused `segments` is launched: which form of the kernel (cuda.cuh) serves a call, and how many
 * lanes a row takes.
 *
 *     score     message   edge function    form
 *     dot       y         direct           DOT_SAME
 *     dot       y         interpreted      DOT_RUN
 *     dot       z         direct           DOT_OTHER
 *     sqdist    x - y     direct           SQDIST_SUB
 *     all others, an activation, max or min: ANY_FORM
 */
#pragma once

#include "cuda.cuh"

/* Whether two operands are the same rows. */
template <class T> static bool alike(const dense_view<T> &l, const dense_view<T> &r)
{
    return l.data == r.data && l.row == r.row && l.head == r.head;
}

/* Chooses the form. Where the message is y itself, z is left out, which saves gathering it. */
template <class T, int VEC, int LANES, int PER, int BATCH, int BLOCKS>
static void launch_fused(const fmm_exec *exec, fused_args<T> s)
{
    typedef group_shape<T, VEC, LANES, PER, BATCH, BLOCKS> S;
    const unsigned grid = deal_blocks(exec, &s, LANES, 1);
    /* What the direct forms have in common. */
    const bool plain = s.activation == FMM_ACT_NONE && s.reduce <= FMM_MEAN;
    const bool run = s.edge.kind == EDGE_PROGRAM;
    const bool dot = plain && s.score == FMM_SCORE_DOT && s.message == FMM_MESSAGE_SCALE;
    const bool sqdist = plain && s.score == FMM_SCORE_SQDIST && s.message == FMM_MESSAGE_SUB;
    const bool same = alike(s.z, s.y) && s.feat == s.feat_out;
    if (same) s.z.data = NULL;
    auto kernel = fused_segments<S, ANY_FORM>;
    if (dot && same)
        kernel = run ? fused_segments<S, DOT_RUN> : fused_segments<S, DOT_SAME>;
    else if (dot && !run)
        kernel = fused_segments<S, DOT_OTHER>;
    else if (sqdist && !run)
        kernel = fused_segments<S, SQDIST_SUB>;
    launch_meeting(exec, kernel, grid, s, s.tickets, s.heads);
}

/* Chooses lanes and loads. The fewest lanes span a row with up to 2 loads each, at last 4. As many
 * rows are in flight as the registers of 3 blocks hold: a pack of 2-byte elements takes twice as
 * many once it is unpacked. */
template <class T> static void choose_group(const fmm_exec *exec, const fused_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T), WIDE = V < 8 ? 8 : 4, FEW = V < 8 ? 3 : 2 };
    const int64_t n = ceil_div(s.feat > s.feat_out ? s.feat : s.feat_out, vec);
    if (vec == V && n <= 4) return launch_fused<T, V, 4, 1, 4, 3>(exec, s);
    if (vec == V && n <= 8) return launch_fused<T, V, 8, 1, WIDE, 3>(exec, s);
    if (vec == V && n <= 16) return launch_fused<T, V, 16, 1, WIDE, 3>(exec, s);
    if (vec == V && n <= 32) return launch_fused<T, V, 16, 2, 4, FEW>(exec, s);
    if (vec == V && n <= 64) return launch_fused<T, V, 32, 2, 4, FEW>(exec, s);
    if (vec == V) return launch_fused<T, V, 32, 4, 2, 2>(exec, s);
    if (n <= 8) return launch_fused<T, 1, 8, 1, 8, 4>(exec, s);
    if (n <= 32) return launch_fused<T, 1, 32, 1, 8, 4>(exec, s);
    return launch_fused<T, 1, 32, 8, 2, 2>(exec, s);
}

/* How many elements move at once: 16 bytes where all operands lie so, else one. */
static inline int fused_vec(const fmm_fusion *f)
{
    const int full = 16 / (int)fmm_dtype_bytes(f->x->dtype);
    const size_t bytes = fmm_dtype_bytes(f->x->dtype);
    const fmm_dense *const all[] = {f->x, f->y,   f->z,
                                    f->g, f->out, f->pass == FMM_ROWS ? NULL : f->out2};
    for (const fmm_dense *d : all)
        if (d && !lies_in_packs(d, bytes, full)) return 1;
    return full;
}

/* The forward pass.
 *
 *     workspace     | plan, if the matrix brought none | slots of pieces | tickets |
 */
template <class T> static fmm_status forward_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const fmm_fusion *f = fmm_fusion_of(call);
    int before;
    TRY(cuda_enter("fused", exec, &before));

    fused_args<T> s;
    static_cast<dealt &>(s) = deal(exec, a, call->val, f->x->heads);
    s.x = view_dense<const T>(f->x);
    s.y = view_dense<const T>(f->y);
    s.z = view_dense<const T>(f->z);
    s.out = static_cast<T *>(f->out->data);
    s.partial = reinterpret_cast<typename sum_of<T>::type *>(static_cast<char *>(exec->workspace) +
                                                             plan_workspace(a));
    s.y_row = uint32_t(s.y.row * int64_t(sizeof(T)));
    s.z_row = uint32_t(s.z.row * int64_t(sizeof(T)));
    s.out_row = f->out->row_stride;
    s.out_head = f->out->head_stride;
    s.feat = (int32_t)f->x->feat;
    s.feat_out = f->out->feat;
    s.width = quads(s.feat_out);
    s.tickets = reinterpret_cast<uint32_t *>(s.partial + plan_slots(a) * s.heads * s.width);
    s.score = f->score;
    s.message = f->message;
    s.activation = f->activation;
    s.reduce = f->reduce;
    s.edge = edge_of_fusion<typename sum_of<T>::type>(f);
    choose_group(exec, s, fused_vec(f));
    return cuda_leave("fused", exec, before);
}
