/* What is fixed about a walk when it is compiled.
 *
 * A task says what is computed, a shape says how the lanes of a warp share it, and walk_traits
 * joins the two and names what follows from them. Every step of the walk is a function of one
 * template parameter, K, which is a walk_traits. What is known only when a call is made, such as
 * sizes, strides and the plan, stands in the kernel's argument, attend_args (cuda.cuh). */
#pragma once

#include "cuda.cuh"

/* T is the type in memory; WALK, SCORE and KIND come from the enumerations of the same names. With
 * POS, FORWARD also sums the entries whose argument of leaky is above 0 on their own. */
template <class T_, int WALK_, int SCORE_, int KIND_, bool POS_> struct walk_task {
    typedef T_ T;
    static constexpr int WALK = WALK_, SCORE = SCORE_, KIND = KIND_;
    static constexpr bool POS = POS_;
};

/* A lane owns VEC neighbouring columns of its head, PER times. A batch gathers FLY entries at once.
 * A multiprocessor must have registers for BLOCKS blocks. BITS is the logarithm of the number of
 * lanes that a head has, where its columns fill these lanes exactly and the kernel is compiled for
 * that number; with ANY_BITS the number is s.lane_bits and some lanes may have no columns. */
enum { ANY_BITS = -1 };
template <int VEC_, int PER_, int FLY_, int BLOCKS_, int BITS_ = ANY_BITS> struct walk_shape {
    static constexpr int VEC = VEC_, PER = PER_, FLY = FLY_, BLOCKS = BLOCKS_, BITS = BITS_;
};

template <class TASK, class SHAPE> struct walk_traits : TASK, SHAPE {
    using SHAPE::BITS;
    using SHAPE::PER;
    using SHAPE::VEC;
    using TASK::KIND;
    using TASK::SCORE;
    using TASK::WALK;
    using typename TASK::T;
    typedef typename sum_of<T>::type A; /* the type of sums */
    static constexpr int THREADS = threads_of(WALK);
    static constexpr bool BACK = WALK != FORWARD;
    static constexpr bool EDGES = KIND == WITH_EDGES, SAME = KIND == SAME_FAR;
    static constexpr bool FULL = BITS >= 0;
    static constexpr int LANES = 1 << (FULL ? BITS : 0); /* of a head, if FULL */

    /* q and k are one number a head in ADDITIVE, hence one register on the side of the score. */
    static constexpr bool SCALAR = SCORE == FMM_ADDITIVE;
    static constexpr int PS = SCALAR ? 1 : PER, VS = SCALAR ? 1 : VEC;

    /* COLS of ADDITIVE needs <gout, v> of no single entry, but only the sum over entries that goes
     * into gk. Its lanes add up their own products over a batch first and meet once for it. There q
     * and lse_rest come with the statistics of a row: a branch around a load makes registers spill.
     */
    static constexpr bool LATE = SCALAR && WALK == COLS;
    /* ROWS of GATV2 also sums the gradient of att. */
    static constexpr bool COLLECT = WALK == ROWS && SCORE == FMM_GATV2;
    /* The next row's own operands are loaded during the current row, where registers suffice. */
    static constexpr bool AHEAD = PER == 1 || FULL;

    typedef PACK(T, SHAPE::VEC) pack_v; /* one load of each side */
    typedef PACK(T, VS) pack_s;
};

/* The arguments of a walk's kernel, and what a step is: a function of K that the compiler inlines.
 */
template <class K> using walk_args = attend_args<typename K::T>;
#define STEP template <class K> static __device__ __forceinline__
