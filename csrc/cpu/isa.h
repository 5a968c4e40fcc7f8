/* Instruction sets: which of them this machine runs, and a room's algorithms with each.
 *
 * A room says how one call runs with the kernels of a set, `run(exec, call, isa)`. FMM_ISA_RUNS
 * makes of it one function per set, FMM_ISA_ALGORITHMS the lines of the room's table, and
 * fmm_isa_best finds the line that number 0 stands for. */
#ifndef FMM_ISA_H
#define FMM_ISA_H

#include "rows.h"

typedef enum fmm_isa_level { FMM_SCALAR, FMM_AVX2, FMM_AVX512, FMM_NEON, FMM_ISAS } fmm_isa_level;

extern const fmm_cpu_isa fmm_isa_kernels[FMM_ISAS];

/* Guards of a table: whether the machine has the set and the compiler knew it. */
bool fmm_isa_avx2(const fmm_call *call);
bool fmm_isa_avx512(const fmm_call *call);
bool fmm_isa_neon(const fmm_call *call);

/* The line of a table for the best set; its first line is the reference, and the sets follow in the
 * order of fmm_isa_level. NULL, with a message, where FUSEDMM_ISA names no set. */
const fmm_algorithm *fmm_isa_best(const fmm_algorithm *table);

#define FMM_ISA_RUN(isa, level)                                                                    \
    static fmm_status run_##isa(const fmm_exec *exec, const fmm_call *call)                        \
    {                                                                                              \
        return run(exec, call, &fmm_isa_kernels[level]);                                           \
    }
#define FMM_ISA_RUNS                                                                               \
    FMM_ISA_RUN(scalar, FMM_SCALAR)                                                                \
    FMM_ISA_RUN(avx2, FMM_AVX2)                                                                    \
    FMM_ISA_RUN(avx512, FMM_AVX512)                                                                \
    FMM_ISA_RUN(neon, FMM_NEON)
#define FMM_ISA_ALGORITHMS(about, source, workspace)                                                \
    {2, "rows:scalar", about ", plain C", source, true, NULL, workspace, run_scalar},               \
        {3, "rows:avx2", about ", AVX2 + FMA", source, true, fmm_isa_avx2, workspace, run_avx2},    \
        {4, "rows:avx512", about ", AVX-512", source, true, fmm_isa_avx512, workspace, run_avx512}, \
    {                                                                                               \
        5, "rows:neon", about ", NEON", source, true, fmm_isa_neon, workspace, run_neon             \
    }

#endif
