/* How the gradients of fused `segments` are launched: which side a row gathers, which form of the
 * kernel (cuda_back.cuh) serves a call, and how many lanes a row takes. */
#pragma once

#include "cuda_back.cuh"
#include "cuda_run.cuh"
#include "cuda.h"

/* Chooses the form. The batch of the shape is that of SAME. The other forms gather two rows for an
 * entry in ROWS, too, so their batch is shorter. ANY's is halved once more where a pack unpacks
 * into twice the registers. */
template <class S, bool COLS>
static void launch_back(const fmm_exec *exec, back_args<typename S::T> s)
{
    /* BATCH is for SAME, BOTH for OTHER, and FEW for ANY. */
    constexpr int BATCH = S::FLY, BOTH = COLS || BATCH < 8 ? BATCH : BATCH / 2;
    constexpr int FEW = BOTH > 4 || (S::VEC > 4 && BOTH > 2) ? BOTH / 2 : BOTH;
    const unsigned grid = deal_blocks(exec, &s, S::LANES, 1);
    const bool same =
        s.feat_s == s.feat_m && (COLS ? alike(s.own_s, s.own_m) : alike(s.far_s, s.far_m));
    /* The kinds that only ANY serves. */
    const bool any = s.edge.kind == EDGE_PROGRAM || s.score != FMM_SCORE_DOT ||
                     s.message != FMM_MESSAGE_SCALE || s.activation != FMM_ACT_NONE;
    auto kernel = fused_back<S, COLS, BACK_SAME>;
    if (any)
        kernel = fused_back<typename S::template flying<FEW>, COLS, BACK_ANY>;
    else if (!same)
        kernel = fused_back<typename S::template flying<BOTH>, COLS, BACK_OTHER>;
    launch_meeting(exec, kernel, grid, s, s.pieces_s.tickets,
                   s.heads * (!!s.feat_s + (COLS && s.feat_m)));
}

/* Chooses lanes and loads: the fewest lanes that span the wider of both operands with one pack
 * each, at last two. vec is how many elements move at once. */
template <class T, bool COLS>
static void choose_back(const fmm_exec *exec, const back_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T) };
    const int64_t n = ceil_div(s.feat_s > s.feat_m ? s.feat_s : s.feat_m, vec);
    if (vec == V && n <= 4) return launch_back<group_shape<T, V, 4, 1, 2, 3>, COLS>(exec, s);
    if (vec == V && n <= 8) return launch_back<group_shape<T, V, 8, 1, 4, 3>, COLS>(exec, s);
    if (vec == V && n <= 16) return launch_back<group_shape<T, V, 16, 1, 4, 3>, COLS>(exec, s);
    if (vec == V && n <= 32) return launch_back<group_shape<T, V, 32, 1, 4, 3>, COLS>(exec, s);
    if (vec == V) return launch_back<group_shape<T, V, 32, 2, 2, 2>, COLS>(exec, s);
    if (n <= 32) return launch_back<group_shape<T, 1, 32, 1, 8, 3>, COLS>(exec, s);
    return launch_back<group_shape<T, 1, 32, 4, 4, 2>, COLS>(exec, s);
}

/* One pass, ROWS or COLS. The call names its operands for rows; COLS swaps the sides of both.
 *
 *     workspace    | plan, if the matrix brought none | slots of out_s | of out_m | tickets |
 */
template <class T> static fmm_status back_run(const fmm_exec *exec, const fmm_call *call)
{
    typedef typename sum_of<T>::type A;
    const fmm_csr *a = call->a;
    const fmm_fusion *f = fmm_fusion_of(call);
    const bool cols = f->pass == FMM_COLS;
    int before;
    TRY(cuda_enter("fused", exec, &before));
    back_args<T> s;
    static_cast<dealt &>(s) = deal(exec, a, call->val, f->x->heads);
    /* ROWS owns x and gathers y; COLS runs on the transpose and does it the other way round. */
    s.own_s = view_dense<const T>(cols ? f->y : f->x);
    s.own_m = view_dense<const T>(cols ? f->z : f->g);
    s.far_s = view_dense<const T>(cols ? f->x : f->y);
    s.far_m = view_dense<const T>(cols ? f->g : f->z);
    s.far_s_row = uint32_t(s.far_s.row * int64_t(sizeof(T)));
    s.far_m_row = uint32_t(s.far_m.row * int64_t(sizeof(T)));
    /* ROWS has the gradients of x and val, COLS those of y and z. */
    s.out_s = view_dense<T>(f->out);
    s.out_m = view_dense<T>(cols ? f->out2 : NULL);
    s.gval = view_dense<T>(cols ? NULL : f->out2);
    s.feat_s = f->x->feat, s.feat_m = f->g->feat;
    /* A piece has a slot and a ticket in each output's part. */
    const int64_t slots = plan_slots(a) * s.heads;
    A *const partial_s =
        reinterpret_cast<A *>(static_cast<char *>(exec->workspace) + plan_workspace(a));
    A *const partial_m = partial_s + slots * quads(s.feat_s);
    uint32_t *const tickets = reinterpret_cast<uint32_t *>(partial_m + slots * quads(s.feat_m));
    s.pieces_s = {partial_s, tickets, quads(s.feat_s), s.out_s.data ? s.feat_s : 0};
    s.pieces_m = {partial_m, tickets + (s.feat_s ? slots : 0), quads(s.feat_m),
                  s.out_m.data ? s.feat_m : 0};
    s.score = f->score;
    s.message = f->message;
    s.activation = f->activation;
    s.edge = edge_of_fusion<A>(f);
    /* The pass is a part of the kernel, since ROWS has one sum for each column and COLS two. */
    if (cols)
        choose_back<T, true>(exec, s, fused_vec(f));
    else
        choose_back<T, false>(exec, s, fused_vec(f));
    return cuda_leave("fused", exec, before);
}

/* A pass of either direction: only gradients have g. */
template <class T> static fmm_status fused_run(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_fusion_of(call)->g ? back_run<T>(exec, call) : forward_run<T>(exec, call);
}
