/* fusedmm::_messages: lhs op rhs of each entry, reduced over rows or kept. */
#include "../torch/frame.h"

enum { LHS = 4, RHS, MASK_LHS, MASK_RHS, MASK_Y, TENSORS };
enum { OP, AT, HAS, AXIS, REDUCE = AXIS + FMM_AXES, MASK_OP, ALGORITHM };

/* An operand that may be absent: without elements. */
static bool take(frame *f, int k, const char *name, fmm_dense *d, fmm_term *term)
{
    tensor t;
    if (!frame_take(f, k, name, &t)) return false;
    term->data = t.numel ? d : NULL;
    return !t.numel || frame_dense(f, k, name, d, NULL);
}

/* (ptr, idx, eid, plan, lhs, rhs, mask_lhs, mask_rhs, mask_y, int op, int at, int has, four axes,
 * int reduce, int mask_op, int algorithm) -> out [rows or nnz, features]; at has two bits for each
 * of the five operands and out, has four. The last axis comes first, so that what most calls have
 * need not be given, since torch takes as long to read a number as a tensor. */
FMM_KERNEL(messages, TENSORS, 1)
{
    static const char *const names[] = {"lhs", "rhs", "mask_lhs", "mask_rhs", "mask_y"};
    fmm_csr a;
    fmm_dense view[5], result;
    fmm_edge_message m = {.op = (fmm_combine)frame_int(number[OP]),
                          .mask_op = (fmm_combine)frame_int(number[MASK_OP]),
                          .reduce = (fmm_reduce)frame_int(number[REDUCE])};
    fmm_term *const terms[] = {&m.lhs, &m.rhs, &m.mask_lhs, &m.mask_rhs, &m.mask_y, &m.out};
    const unsigned at = (unsigned)frame_int(number[AT]), has = (unsigned)frame_int(number[HAS]);
    int64_t cols = INT32_MAX, width = 1; /* columns count where an operand has a row for each */
    for (int k = 0; k < 6; k++) {
        terms[k]->at = (fmm_at)(at >> 2 * k & 3);
        terms[k]->has = has >> FMM_AXES * k & ((1u << FMM_AXES) - 1);
        if (k == 5) break;
        if (!take(f, LHS + k, names[k], &view[k], terms[k])) return false;
    }
    /* What the call does not read is absent, whatever was given. */
    const bool one = m.op == FMM_COMBINE_ONE, masked = m.mask_y.data != NULL;
    const bool read[] = {!one, !one && m.op != FMM_COMBINE_COPY, masked,
                         masked && m.mask_op != FMM_COMBINE_COPY, masked};
    for (int k = 0; k < 5; k++) {
        if (!read[k]) terms[k]->data = NULL;
        if (terms[k]->data && terms[k]->at == FMM_AT_COL) cols = view[k].rows;
    }
    for (int d = 0; d < FMM_AXES; d++) {
        m.axis[d] = (int64_t)number[AXIS + FMM_AXES - 1 - d];
        if (m.axis[d] <= 0) return frame_fail(f, "messages: axis %d must have elements", d);
        if ((m.out.has >> d & 1) && __builtin_mul_overflow(width, m.axis[d], &width))
            return frame_fail(f, "messages: the axes do not fit in 64 bits");
    }
    const fmm_dense *first = one ? m.mask_y.data : m.lhs.data;
    if (!first) return frame_fail(f, "messages: %s must be given", one ? "mask_y" : "lhs");
    const fmm_dtype dtype = first->dtype;
    if (!frame_matrix(f, cols, &a) ||
        !frame_result(f, 2, one ? frame_sums(dtype) : dtype,
                      m.out.at == FMM_AT_ROW ? a.rows : a.nnz, 1, width, out, &result))
        return false;
    m.out.data = &result;
    return frame_try(f, fmm_messages(&f->exec, &a, &m, frame_int(number[ALGORITHM])));
}

const fmm_torch_operator fmm_torch_messages[] = {
    FMM_OPERATOR(
        _messages, messages,
        "(" FMM_HALF "Tensor lhs, Tensor rhs, Tensor mask_lhs, Tensor mask_rhs, Tensor "
        "mask_y, int op, int at, int has, int axis_3, int axis_2=1, int axis_1=1, int axis_0=1, "
        "int reduce=0, int mask_op=0, int algorithm=0) -> Tensor"),
    /* clang-format off */
    FMM_NUMBER(FMM_COMBINE_COPY), FMM_NUMBER(FMM_COMBINE_ADD), FMM_NUMBER(FMM_COMBINE_SUB),
    FMM_NUMBER(FMM_COMBINE_MUL), FMM_NUMBER(FMM_COMBINE_DIV), FMM_NUMBER(FMM_COMBINE_ONE),
    FMM_NUMBER(FMM_AT_ROW), FMM_NUMBER(FMM_AT_COL), FMM_NUMBER(FMM_AT_EDGE), FMM_NUMBER(FMM_AXES),
    /* clang-format on */
    {0},
};
