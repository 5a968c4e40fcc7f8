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
 * the program and hence lie in local memory, which stays in L1. */
#ifndef FMM_CUDA_FUSED_EDGE_CUH
#define FMM_CUDA_FUSED_EDGE_CUH

#include <float.h>

#include "../cuda/common.cuh"

/* F of u = scale s + shift. */
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

struct edge_form {
    int kind;
    bool valued; /* times a */
    double factor, scale, shift, slope;
};

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
    const auto is_number = [](const edge_form &f) { return f.kind == EDGE_ONE && !f.valued; };
    const auto is_plain = [](const edge_form &f) {
        return f.kind == EDGE_U && !f.valued && f.factor == 1;
    };
    const auto times = [](edge_form f, double k) {
        if (f.kind == EDGE_U && f.shift == 0)
            f.scale *= k;
        else
            f.factor *= k;
        return f;
    };
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
    case FMM_EDGE_MUL:
        if (l.kind == EDGE_ONE) {
            const edge_form other = l;
            l = r, r = other;
        }
        if (l.kind == EDGE_PROGRAM || r.kind != EDGE_ONE || (l.valued && r.valued)) return none;
        l.valued |= r.valued;
        return times(l, r.factor);
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

template <class A> static inline edge_program<A> edge_of_fusion(const fmm_fusion *f)
{
    edge_program<A> e;
    edge_form at[FMM_EDGE_REGISTERS];
    for (edge_form &form : at) form = edge_form{EDGE_PROGRAM, false, 1, 1, 0, 0};
    at[0] = edge_form{EDGE_U, false, 1, 1, 0, 0};
    at[1] = edge_form{EDGE_ONE, true, 1, 1, 0, 0};
    for (int64_t k = 0; k < f->count; k++)
        at[f->steps[k].out] =
            edge_form_of(f->steps[k], at[f->steps[k].left], at[f->steps[k].right]);
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

static __device__ __forceinline__ float exp_of(float v) { return expf(v); }
static __device__ __forceinline__ double exp_of(double v) { return exp(v); }
static __device__ __forceinline__ float tanh_of(float v) { return tanhf(v); }
static __device__ __forceinline__ double tanh_of(double v) { return tanh(v); }
static __device__ __forceinline__ float pow_of(float v, float k) { return powf(v, k); }
static __device__ __forceinline__ double pow_of(double v, double k) { return pow(v, k); }
static __device__ __forceinline__ float log_of(float v) { return logf(v); }
static __device__ __forceinline__ double log_of(double v) { return log(v); }
static __device__ __forceinline__ float sqrt_of(float v) { return sqrtf(v); }
static __device__ __forceinline__ double sqrt_of(double v) { return sqrt(v); }
static __device__ __forceinline__ float log1p_of(float v) { return log1pf(v); }
static __device__ __forceinline__ double log1p_of(double v) { return log1p(v); }

template <class A> static __device__ __forceinline__ A absolute(A v) { return v < A(0) ? -v : v; }
template <class A> static __device__ __forceinline__ A larger(A l, A r)
{
    return l > r || l != l ? l : r;
}
template <class A> static __device__ __forceinline__ A lesser(A l, A r)
{
    return l < r || l != l ? l : r;
}
template <class A> static __device__ __forceinline__ A sigmoid(A v)
{
    return A(1) / (A(1) + exp_of(-v));
}

template <class A> static __device__ __forceinline__ A leaky(A v, A slope)
{
    return v > A(0) || v != v ? v : slope == A(0) ? A(0) : slope * v;
}

template <class A> static __device__ A edge_step(int op, A l, A r, A k)
{
    switch (op) {
    case FMM_EDGE_CONST:
        return k;
    case FMM_EDGE_COPY:
        return l;
    case FMM_EDGE_ADD:
        return l + r;
    case FMM_EDGE_SUB:
        return l - r;
    case FMM_EDGE_MUL:
        return l * r;
    case FMM_EDGE_DIV:
        return l / r;
    case FMM_EDGE_NEG:
        return -l;
    case FMM_EDGE_POW:
        return pow_of(l, k);
    case FMM_EDGE_EXP:
        return exp_of(l);
    case FMM_EDGE_LOG:
        return log_of(l);
    case FMM_EDGE_SQRT:
        return sqrt_of(l);
    case FMM_EDGE_SIGMOID:
        return sigmoid(l);
    case FMM_EDGE_TANH:
        return tanh_of(l);
    case FMM_EDGE_SOFTPLUS:
        return larger(l, A(0)) + log1p_of(exp_of(-absolute(l)));
    case FMM_EDGE_ABS:
        return absolute(l);
    case FMM_EDGE_SIGN:
        return l > A(0) ? A(1) : l < A(0) ? A(-1) : l;
    case FMM_EDGE_MAX:
        return larger(l, r);
    case FMM_EDGE_MIN:
        return lesser(l, r);
    case FMM_EDGE_LEAKY:
        return leaky(l, k);
    default:
        return l > A(0) ? A(1) : k; /* FMM_EDGE_STEP */
    }
}

/* w, and its derivatives by s and a where the program computes them. */
template <class A> struct edge_result {
    A w, by_s, by_a;
};
template <class A>
static __device__ __noinline__ edge_result<A> edge_run(const edge_program<A> &e, A s, A a)
{
    A at[FMM_EDGE_REGISTERS];
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
    const A u = s * e.scale + e.shift;
    A f = u, slope = A(1);
    if (e.kind != EDGE_U) {
        switch (e.kind) {
        case EDGE_SIGMOID_U:
            f = sigmoid(u);
            slope = f * (A(1) - f);
            break;
        case EDGE_EXP_U:
            slope = f = exp_of(u);
            break;
        case EDGE_LEAKY_U:
            f = leaky(u, e.slope);
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
    f *= e.factor;
    slope *= e.factor * e.scale;
    return edge_result<A>{e.valued ? f * a : f, e.valued ? slope * a : slope, e.valued ? f : A(0)};
}

/* ---- messages ---- */

/* One channel before its activation; y is z[j] for SCALE. */
template <class A> static __device__ __forceinline__ A message_raw(int message, A x, A y)
{
    switch (message) {
    case FMM_MESSAGE_ADD:
        return x + y;
    case FMM_MESSAGE_SUB:
        return x - y;
    case FMM_MESSAGE_MUL:
        return x * y;
    case FMM_MESSAGE_MAX:
        return larger(x, y);
    case FMM_MESSAGE_MIN:
        return lesser(x, y);
    default:
        return y;
    }
}

template <class A> static __device__ __forceinline__ A activated(int activation, A m)
{
    switch (activation) {
    case FMM_ACT_RELU:
        return m < A(0) ? A(0) : m;
    case FMM_ACT_LEAKY_RELU:
        return m < A(0) ? m * A(0.01) : m;
    case FMM_ACT_SIGMOID:
        return sigmoid(m);
    case FMM_ACT_TANH:
        return tanh_of(m);
    default:
        return m;
    }
}

/* ---- what gradients need: slopes of the activation by what it gave, of the message and of the
 * score by one side's channel. In a tie of max or min either side has half. ---- */

template <class A> static __device__ __forceinline__ A activation_slope(int activation, A m)
{
    switch (activation) {
    case FMM_ACT_RELU:
        return A(m > A(0));
    case FMM_ACT_LEAKY_RELU:
        return m > A(0) ? A(1) : A(0.01);
    case FMM_ACT_SIGMOID:
        return m * (A(1) - m);
    case FMM_ACT_TANH:
        return A(1) - m * m;
    default:
        return A(1);
    }
}

template <class A>
static __device__ __forceinline__ A message_slope(int message, bool by_y, A own, A other)
{
    switch (message) {
    case FMM_MESSAGE_SUB:
        return by_y ? A(-1) : A(1);
    case FMM_MESSAGE_MUL:
        return other;
    case FMM_MESSAGE_MAX:
        return own > other ? A(1) : own == other ? A(0.5) : A(0);
    case FMM_MESSAGE_MIN:
        return own < other ? A(1) : own == other ? A(0.5) : A(0);
    default:
        return A(1);
    }
}

template <class A> static __device__ __forceinline__ A score_slope(int score, A own, A other)
{
    switch (score) {
    case FMM_SCORE_DOT:
        return other;
    case FMM_SCORE_SQDIST:
        return A(2) * (own - other);
    case FMM_SCORE_L1:
        return own > other ? A(1) : own < other ? A(-1) : own - other;
    case FMM_SCORE_ADDITIVE:
        return A(1);
    default:
        return A(0);
    }
}

#endif
