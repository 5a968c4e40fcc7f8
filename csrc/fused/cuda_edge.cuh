/* fused on CUDA, what its kernels share: the edge function and the messages.
 *
 * Most edge functions are a known function of an affine one, times val:
 *
 *     w = factor F(scale s + shift) [a]
 *
 * The host walks over the program once and finds that form, which has direct code. Since a program
 * that serves a gradient holds w's own derivatives, they follow from the form, too. Other programs
 * are interpreted, one entry per lane: a program travels as a kernel's argument, so it lives in
 * constant memory and every lane reads the same step at the same time; its registers are indexed by
 * the program and hence lie in local memory, which stays in L1.
 *
 *     host     steps ----- edge_of_fusion -----> edge_program: form and steps
 *     device   form known ----> edge_direct      in registers
 *              EDGE_PROGRAM --> edge_run         in local memory, a step after the other
 *
 * What an operation computes stands in formulas.def, for the CPU, too. */
#pragma once

#include <float.h>

#include "../cuda/common.cuh"
#include "formulas.def"

/* F of u = scale s + shift; EDGE_PROGRAM stands for all that has no such form. */
enum edge_kind {
    EDGE_ONE,
    EDGE_U,
    EDGE_SIGMOID_U,
    EDGE_EXP_U,
    EDGE_LEAKY_U,
    EDGE_INVERSE_U,
    EDGE_TANH_U,
    EDGE_PROGRAM,
};

/* What is known of a register while the host walks over the program. */
struct edge_form {
    int kind;
    bool valued; /* times a */
    double factor, scale, shift, slope;
};

/* The form and the steps as a kernel's argument, in the type of sums. */
template <class A> struct edge_program {
    int32_t kind, count;
    bool valued;
    A factor, scale, shift, slope;
    uchar4 result;               /* registers of w and of its derivatives by s and a */
    uchar4 step[FMM_EDGE_STEPS]; /* operation, out, left, right */
    A constant[FMM_EDGE_STEPS];
};

/* The form of one step's result. Sums are not multiplied out, which would cancel worse. */
static inline edge_form edge_form_of(const fmm_edge_step &s, edge_form l, edge_form r)
{
    const edge_form none = {EDGE_PROGRAM, false, 1, 1, 0, 0};
    /* A number is a constant; plain is scale s + shift and nothing else. */
    const auto is_number = [](const edge_form &f) { return f.kind == EDGE_ONE && !f.valued; };
    const auto is_plain = [](const edge_form &f) {
        return f.kind == EDGE_U && !f.valued && f.factor == 1;
    };
    /* Multiplies by k where that loses nothing: a bare scale takes it, else the factor does. */
    const auto times = [](edge_form f, double k) {
        if (f.kind == EDGE_U && f.shift == 0)
            f.scale *= k;
        else
            f.factor *= k;
        return f;
    };
    /* F of what is plain, in place of the identity. */
    const auto apply = [&](int kind, double slope) {
        l.kind = kind, l.slope = slope;
        return l;
    };
    switch (s.op) {
    case FMM_EDGE_CONST:
        return edge_form{EDGE_ONE, false, s.constant, 1, 0, 0};
    case FMM_EDGE_COPY:
        return l;
    case FMM_EDGE_NEG:
        return l.kind == EDGE_PROGRAM ? none : times(l, -1);
    /* Adding a number moves the shift of what is plain; number - plain turns the scale around. */
    case FMM_EDGE_ADD:
    case FMM_EDGE_SUB:
        if (s.op == FMM_EDGE_SUB && is_number(r)) r.factor = -r.factor;
        if (s.op == FMM_EDGE_ADD && is_number(l)) {
            const edge_form number = l;
            l = r, r = number;
        }
        if (s.op == FMM_EDGE_SUB && is_number(l) && is_plain(r)) {
            r.scale = -r.scale, r.shift = l.factor - r.shift;
            return r;
        }
        if (!is_plain(l) || !is_number(r)) return none;
        l.shift += r.factor;
        return l;
    /* A product has at most one factor that depends on s, and at most one that is a. */
    case FMM_EDGE_MUL:
        if (l.kind == EDGE_ONE) {
            const edge_form other = l;
            l = r, r = other;
        }
        if (l.kind == EDGE_PROGRAM || r.kind != EDGE_ONE || (l.valued && r.valued)) return none;
        l.valued |= r.valued;
        return times(l, r.factor);
    /* number / plain is an inverse; a division by a number is a product. */
    case FMM_EDGE_DIV:
        if (l.kind == EDGE_ONE && is_plain(r)) {
            r.kind = EDGE_INVERSE_U, r.factor = l.factor, r.valued = l.valued;
            return r;
        }
        /* A divisor whose inverse float32 has no room for is divided by: 0 / 1e-45 is 0, but 0
         * times infinity is NaN. */
        if (l.kind == EDGE_PROGRAM || !is_number(r) || !(fabs(1 / r.factor) <= FLT_MAX))
            return none;
        return times(l, 1 / r.factor);
    /* Functions apply to what is plain; of anything else the form is not known. */
    case FMM_EDGE_SIGMOID:
        return is_plain(l) ? apply(EDGE_SIGMOID_U, 0) : none;
    case FMM_EDGE_EXP:
        return is_plain(l) ? apply(EDGE_EXP_U, 0) : none;
    case FMM_EDGE_LEAKY:
        return is_plain(l) ? apply(EDGE_LEAKY_U, s.constant) : none;
    case FMM_EDGE_TANH:
        return is_plain(l) ? apply(EDGE_TANH_U, 0) : none;
    default:
        return none;
    }
}

/* The program of a call. Register 0 is s, register 1 is a at first. */
template <class A> static inline edge_program<A> edge_of_fusion(const fmm_fusion *f)
{
    edge_program<A> e;
    /* A register that nothing has written yet is of no known form. */
    edge_form at[FMM_EDGE_REGISTERS];
    for (edge_form &form : at) form = edge_form{EDGE_PROGRAM, false, 1, 1, 0, 0};
    at[0] = edge_form{EDGE_U, false, 1, 1, 0, 0};
    at[1] = edge_form{EDGE_ONE, true, 1, 1, 0, 0};
    for (int64_t k = 0; k < f->count; k++)
        at[f->steps[k].out] =
            edge_form_of(f->steps[k], at[f->steps[k].left], at[f->steps[k].right]);
    /* What register 0 holds in the end is w. */
    e.kind = at[0].kind;
    e.valued = at[0].valued;
    e.factor = (A)at[0].factor;
    e.scale = (A)at[0].scale;
    e.shift = (A)at[0].shift;
    e.slope = (A)at[0].slope;
    for (int64_t k = 0; k < f->count; k++) {
        const fmm_edge_step &s = f->steps[k];
        e.step[k] = make_uchar4((unsigned char)s.op, (unsigned char)s.out, (unsigned char)s.left,
                                (unsigned char)s.right);
        e.constant[k] = (A)s.constant;
    }
    /* Programs end in copies to registers 0, 1 and 2, which can as well be read where they are. */
    e.result = make_uchar4(0, 1, 2, 0);
    for (e.count = (int32_t)f->count; e.count; e.count--) {
        const uchar4 last = e.step[e.count - 1];
        if (last.x != FMM_EDGE_COPY) break;
        if (e.result.x == last.y) e.result.x = last.z;
        if (e.result.y == last.y) e.result.y = last.z;
        if (e.result.z == last.y) e.result.z = last.z;
    }
    return e;
}

/* What formulas.def asks for, in either type of sums. */
#define FUNCTION_OF(name)                                                                          \
    static __device__ __forceinline__ float name##_of(float v) { return name##f(v); }              \
    static __device__ __forceinline__ double name##_of(double v) { return name(v); }
FUNCTION_OF(exp)
FUNCTION_OF(tanh)
FUNCTION_OF(log)
FUNCTION_OF(sqrt)
FUNCTION_OF(log1p)
#undef FUNCTION_OF
static __device__ __forceinline__ float pow_of(float v, float k) { return powf(v, k); }
static __device__ __forceinline__ double pow_of(double v, double k) { return pow(v, k); }
/* Of floats it is one step off at most, and 0 from 2^126 on. A division branches for results so
 * small, so that the sigmoids of several channels would wait for each other. */
static __device__ __forceinline__ float inverse_of(float v)
{
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(v));
    return v;
}
static __device__ __forceinline__ double inverse_of(double v) { return 1 / v; }
template <class A> static __device__ __forceinline__ A absolute(A v) { return v < A(0) ? -v : v; }
template <class A> static __device__ __forceinline__ A soft_of(A v)
{
    return log1p_of(exp_of(-absolute(v)));
}

#define NUM(c) A(c)
#define FORMULA template <class A> static __device__ __forceinline__ A
#include "formulas.inc"

/* One step of a program. */
template <class A> static __device__ A edge_step(int kind, A l, A r, A k)
{
    CHOSEN(FUSED_EDGES, VALUE_CASE, l); /* else FMM_EDGE_COPY */
}

/* w, and its derivatives by s and a where the program computes them. edge_run is not inlined, for
 * its registers in local memory would cost every kernel that might call it. */
template <class A> struct edge_result {
    A w, by_s, by_a;
};
template <class A>
static __device__ __noinline__ edge_result<A> edge_run(const edge_program<A> &e, A s, A a)
{
    A at[FMM_EDGE_REGISTERS];
    /* What a program reads it has written before, but for s and a. */
    at[0] = s, at[1] = a, at[2] = A(0);
    for (int k = 0; k < e.count; k++) {
        const uchar4 step = e.step[k];
        at[step.y] = edge_step<A>(step.x, at[step.z], at[step.w], e.constant[k]);
    }
    return edge_result<A>{at[e.result.x], at[e.result.y], at[e.result.z]};
}

/* Functions with direct code; the interpreter is a call, which costs registers in every kernel that
 * might make it. */
template <class A>
static __device__ __forceinline__ edge_result<A> edge_direct(const edge_program<A> &e, A s, A a)
{
    /* The derivatives follow from F's: by s it is F'(u) scale, by a it is F itself. */
    const A u = s * e.scale + e.shift;
    /* The identity needs no switch. */
    A f = u, slope = A(1);
    if (e.kind != EDGE_U) {
        switch (e.kind) {
        case EDGE_SIGMOID_U:
            f = SIGMOID(u);
            slope = f * (A(1) - f);
            break;
        case EDGE_EXP_U:
            slope = f = exp_of(u);
            break;
        case EDGE_LEAKY_U:
            f = LEAKY(u, e.slope);
            slope = u > A(0) ? A(1) : e.slope;
            break;
        case EDGE_INVERSE_U:
            f = A(1) / u;
            slope = -f / u;
            break;
        case EDGE_TANH_U:
            f = tanh_of(u);
            slope = A(1) - f * f;
            break;
        default:
            f = A(1), slope = A(0);
        }
    }
    /* val multiplies last, as a program would do it. */
    f *= e.factor;
    slope *= e.factor * e.scale;
    return edge_result<A>{e.valued ? f * a : f, e.valued ? slope * a : slope, e.valued ? f : A(0)};
}

#undef NUM
#undef FORMULA
#undef VALUE_CASE
#undef CHOSEN
