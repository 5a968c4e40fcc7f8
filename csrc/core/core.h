/* What every file of the library shares: errors, dtype facts, the registry's tables. */
#pragma once

#include "../include/fusedmm.h"

FMM_C_BEGIN

/* Fails the function with a status and a sentence unless cond holds. */
#define REQUIRE(cond, status, ...)                                                                 \
    do {                                                                                           \
        if (!(cond)) return fmm_fail(status, __VA_ARGS__);                                         \
    } while (0)
/* Passes on the failure of a call, whose sentence is already set. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const fmm_status try_status = (call);                                                      \
        if (try_status != FMM_OK) return try_status;                                               \
    } while (0)

/* Sets the thread's message and returns status. */
fmm_status fmm_fail(fmm_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Large matrices that are this full, and have as many rows and columns, are asked how even their
 * rows are: CUDA's choice between `segments` and `tiles` depends on that (cuda/heuristics.c). */
enum { FMM_TILED_ROWS = 1024, FMM_TILED_COLS = 512 };
#define FMM_TILED_SHARE 0.03

size_t fmm_dtype_bytes(fmm_dtype dtype);
const char *fmm_dtype_name(fmm_dtype dtype);

/* Runs body over [0, count) with the caller's threads, or here. */
void fmm_parallel(const fmm_exec *exec, int64_t count, fmm_range *body, void *ctx);

/* A device's algorithms for one operator, ended by a NULL name, and what number 0 stands for; both
 * NULL where the operator does not run on the device. choose may answer NULL, and say why. A room
 * defines fmm_<name>_cpu and fmm_<name>_cuda in its cpu_algorithms.c and cuda_algorithms.c. */
typedef struct fmm_registry {
    const fmm_algorithm *builtin;
    const fmm_algorithm *(*choose)(const fmm_call *);
} fmm_registry;

/* The line that an algorithm leaves in its table, behind the others, when it is removed: programs
 * that hold its number run what number 0 stands for. Nothing lists it, and its name is free. */
/* clang-format off */
#define FMM_RESERVED(id, was) {.number = id, .name = was}
/* clang-format on */

/* Finds number (0 and reserved ones: chooses) for a call; fails by name if it does not exist or
 * does not support it. */
fmm_status fmm_algorithm_find(fmm_operator op, fmm_device device, int number, const fmm_call *call,
                              const fmm_algorithm **found);

/* What every operator does with a call whose operands it has checked: finds the algorithm, gives it
 * its workspace and, unless all outputs are empty, runs it. Or only says how large that workspace
 * is. */
fmm_status fmm_run(fmm_operator op, const fmm_exec *exec, int number, const fmm_call *call,
                   bool empty);
fmm_status fmm_workspace(fmm_operator op, const fmm_exec *exec, int number, const fmm_call *call,
                         size_t *bytes);

/* The word of a report: bits 0-2 the code, 3-62 the index, bit 63 set for faults of idx, so that
 * the smallest word is the first culprit and faults of ptr come before those of idx. All ones:
 * none. */
#define FMM_CSR_FAULT(code, where)                                                                 \
    ((uint64_t)((code) == FMM_CSR_IDX) << 63 | (uint64_t)(where) << 3 | (uint64_t)(code))

/* CUDA's side of what checks.c and plan need; in a build without nvcc they say how to get one. */
fmm_status fmm_cuda_csr_check(const fmm_exec *exec, const fmm_csr *a, uint64_t *report);
size_t fmm_cuda_plan_bytes(const fmm_csr *a);
fmm_status fmm_cuda_plan_workspace(const fmm_csr *a, size_t *bytes);
fmm_status fmm_cuda_plan(const fmm_exec *exec, const fmm_csr *a, void *plan);
const char *fmm_isa_levels(void); /* cpu/isa.c: "scalar,avx2,avx512", those this machine runs */
const char *
fmm_cuda_info(void); /* JSON object: architectures, runtime, needed driver; "null" without nvcc */

FMM_C_END
