/* fused on CUDA, what its kernels share: the edge function and the messages.
 *
 * A program travels as a kernel's argument, so it lives in constant memory and every lane reads the
 * same step at the same time. The commonest functions have direct code; the others are interpreted,
 * one entry per lane, over registers that are indexed by the program and hence lie in local memory,
 * which stays in L1. */
#ifndef FMM_CUDA_FUSED_EDGE_CUH
#define FMM_CUDA_FUSED_EDGE_CUH

#include "common.cuh"

/* w = f(s), times a where `valued`: what has direct code. */
enum edge_kind {
    EDGE_ONE,
    EDGE_S,
    EDGE_SIGMOID_S,
    EDGE_SIGMOID_MINUS_S,
    EDGE_RECIPROCAL, /* 1 / (1 + s) */
    EDGE_LEAKY_S,
    EDGE_PROGRAM,
};

template <class A> struct edge_program {
    int32_t kind, count;
    bool valued;
    A slope;
    uchar4 step[FMM_EDGE_STEPS]; /* operation, out, left, right */
    A constant[FMM_EDGE_STEPS];
};

/* The direct code of a program, which is compared with what expressions are assembled to. */
static inline int edge_kind_of(const fmm_fusion *f, bool *valued, double *slope)
{
    const fmm_edge_step *s = f->steps;
    int64_t n = f->count;
    const auto is = [&](int64_t k, int op, int out, int left, int right) {
        return k < n && s[k].op == op && s[k].out == out && s[k].left == left &&
               s[k].right == right;
    };
    const bool one = n && s[0].op == FMM_EDGE_CONST && s[0].constant == 1;
    *valued = false;
    *slope = 0;
    if (f->g) return EDGE_PROGRAM; /* with its derivatives */
    if (n == 1 && one && s[0].out == 0) return EDGE_ONE;
    if (n == 2 && is(0, FMM_EDGE_COPY, 2, 1, 1) && is(1, FMM_EDGE_COPY, 0, 2, 2)) {
        *valued = true;
        return EDGE_ONE;
    }
    for (int r = 1; r <= 2; r++)
        if (n == 3 && one && is(0, FMM_EDGE_CONST, r, 0, 0) && is(1, FMM_EDGE_ADD, 0, r, 0) &&
            is(2, FMM_EDGE_DIV, 0, 1, 0)) {
            *valued = r == 2; /* register 1 still holds a */
            return EDGE_RECIPROCAL;
        }
    if (n && (is(n - 1, FMM_EDGE_MUL, 0, 0, 1) || is(n - 1, FMM_EDGE_MUL, 0, 1, 0))) {
        *valued = true;
        n--;
    }
    if (n == 0) return EDGE_S;
    if (n == 1 && is(0, FMM_EDGE_SIGMOID, 0, 0, 0)) return EDGE_SIGMOID_S;
    if (n == 2 && is(0, FMM_EDGE_NEG, 0, 0, 0) && is(1, FMM_EDGE_SIGMOID, 0, 0, 0))
        return EDGE_SIGMOID_MINUS_S;
    if (n == 1 && is(0, FMM_EDGE_LEAKY, 0, 0, 0)) {
        *slope = s[0].constant;
        return EDGE_LEAKY_S;
    }
    return EDGE_PROGRAM;
}

template <class A> static inline edge_program<A> edge_of_fusion(const fmm_fusion *f)
{
    edge_program<A> e;
    double slope;
    e.kind = edge_kind_of(f, &e.valued, &slope);
    e.slope = (A)slope;
    e.count = (int32_t)f->count;
    for (int64_t k = 0; k < f->count; k++) {
        const fmm_edge_step &s = f->steps[k];
        e.step[k] = make_uchar4((unsigned char)s.op, (unsigned char)s.out, (unsigned char)s.left,
                                (unsigned char)s.right);
        e.constant[k] = (A)s.constant;
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

/* result[0] = w, and the derivatives by s and a where the program computes them. */
template <class A>
static __device__ __noinline__ void edge_run(const edge_program<A> &e, A s, A a, A *result)
{
    A at[FMM_EDGE_REGISTERS];
    at[0] = s, at[1] = a, at[2] = A(0);
    for (int k = 0; k < e.count; k++) {
        const uchar4 step = e.step[k];
        at[step.y] = edge_step<A>(step.x, at[step.z], at[step.w], e.constant[k]);
    }
    for (int k = 0; k < 3; k++) result[k] = at[k];
}

/* Functions with direct code; the interpreter is a call, which costs registers in every kernel that
 * might make it. */
template <class A>
static __device__ __forceinline__ A edge_direct(const edge_program<A> &e, A s, A a)
{
    A w = s;
    if (e.kind == EDGE_ONE) w = A(1);
    if (e.kind == EDGE_SIGMOID_S || e.kind == EDGE_SIGMOID_MINUS_S)
        w = sigmoid(e.kind == EDGE_SIGMOID_S ? s : -s);
    if (e.kind == EDGE_RECIPROCAL) w = A(1) / (A(1) + s);
    if (e.kind == EDGE_LEAKY_S) w = leaky(s, e.slope);
    return e.valued ? w * a : w;
}
template <class A>
static __device__ __forceinline__ A edge_weight(const edge_program<A> &e, A s, A a)
{
    if (e.kind != EDGE_PROGRAM) return edge_direct(e, s, a);
    A result[3];
    edge_run(e, s, a, result);
    return result[0];
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

#endif
