/* Instruction sets: which of them this machine runs, and a room's algorithms with each.
 *
 * A room's cpu_algorithms.c says how one call runs with the kernels of a set, `run(exec, call,
 * level)`. FMM_ISA_REGISTRY makes of it one function per set, and registers the table of the room's
 * algorithms: the specification, the sets, and what the room adds, the last of which is {0}. Number
 * 0 stands for the line that fmm_isa_best finds. */
#pragma once

#include "rows.h"

typedef enum fmm_isa { FMM_SCALAR, FMM_AVX2, FMM_AVX512, FMM_NEON, FMM_ISAS } fmm_isa;

/* The sets that this build has. X(room, name, level) */
#if defined(__x86_64__)
#define FMM_ISA_LIST(X, room)                                                                      \
    X(room, scalar, FMM_SCALAR) X(room, avx2, FMM_AVX2) X(room, avx512, FMM_AVX512)
#elif defined(__aarch64__)
#define FMM_ISA_LIST(X, room) X(room, scalar, FMM_SCALAR) X(room, neon, FMM_NEON)
#else
#define FMM_ISA_LIST(X, room) X(room, scalar, FMM_SCALAR)
#endif

/* Defines kernel_of(level, dtype), the room's kernel in a set: its objects are those of cpu.c. */
#define FMM_ISA_DECLARE(room, isa, level)                                                          \
    extern fmm_rows_kernel *const fmm_##room##_##isa##_wide[2],                                    \
        *const fmm_##room##_##isa##_bits16[2];
#define FMM_ISA_NAME(room, isa, level)                                                             \
    [level] = {fmm_##room##_##isa##_wide, fmm_##room##_##isa##_bits16},
#define FMM_ISA_KERNELS(room)                                                                      \
    FMM_ISA_LIST(FMM_ISA_DECLARE, room)                                                            \
    static fmm_rows_kernel *kernel_of(fmm_isa level, fmm_dtype dtype)                              \
    {                                                                                              \
        static fmm_rows_kernel *const *const kernels[FMM_ISAS][2] = {                              \
            FMM_ISA_LIST(FMM_ISA_NAME, room)};                                                     \
        const bool bits16 = dtype == FMM_F16 || dtype == FMM_BF16;                                 \
        return kernels[level][bits16][dtype == FMM_F64 || dtype == FMM_BF16];                      \
    }

/* Bytes of a core's second cache, asked once; 1 MiB where the system does not say. */
int64_t fmm_second_cache(void);

/* The set's copy and check of a chunk's indices. */
fmm_rows_copy *fmm_isa_copy(fmm_isa level);

/* Guards of a table: whether the machine has the set and the compiler knew it. */
bool fmm_isa_avx2(const fmm_call *call);
bool fmm_isa_avx512(const fmm_call *call);
bool fmm_isa_neon(const fmm_call *call);

/* The best set within FUSEDMM_ISA; fails where that names no set. */
fmm_status fmm_isa_level(fmm_isa *level);

/* The line of a table for the best set; its first line is the reference, and the sets follow in the
 * order of fmm_isa. NULL, with a message, where FUSEDMM_ISA names no set. */
const fmm_algorithm *fmm_isa_best(const fmm_algorithm *table);

#define FMM_ISA_RUN(isa, level)                                                                    \
    static fmm_status run_##isa(const fmm_exec *exec, const fmm_call *call)                        \
    {                                                                                              \
        return run(exec, call, level);                                                             \
    }
/* clang-format off */
#define FMM_ISA_ALGORITHMS(room, about, source, workspace)                                        \
    {1, "reference", "plain loops in double: the specification", "fusedmm", true, NULL, NULL,     \
     fmm_##room##_reference},                                                                     \
    {2, "rows:scalar", about ", plain C", source, true, NULL, workspace, run_scalar},             \
    {3, "rows:avx2", about ", AVX2 + FMA", source, true, fmm_isa_avx2, workspace, run_avx2},      \
    {4, "rows:avx512", about ", AVX-512", source, true, fmm_isa_avx512, workspace, run_avx512},   \
    {5, "rows:neon", about ", NEON", source, true, fmm_isa_neon, workspace, run_neon}
/* clang-format on */
#define FMM_ISA_REGISTRY(room, about, source, workspace, ...)                                      \
    FMM_ISA_RUN(scalar, FMM_SCALAR)                                                                \
    FMM_ISA_RUN(avx2, FMM_AVX2)                                                                    \
    FMM_ISA_RUN(avx512, FMM_AVX512)                                                                \
    FMM_ISA_RUN(neon, FMM_NEON)                                                                    \
    static const fmm_algorithm algorithms[] = {FMM_ISA_ALGORITHMS(room, about, source, workspace), \
                                               __VA_ARGS__};                                       \
    static const fmm_algorithm *choose(const fmm_call *call)                                       \
    {                                                                                              \
        return (void)call, fmm_isa_best(algorithms);                                               \
    }                                                                                              \
    const fmm_registry fmm_##room##_cpu = {algorithms, choose};
