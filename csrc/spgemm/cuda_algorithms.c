/* The algorithms of SpGEMM's numeric phase on CUDA. They differ in where a row keeps its sums
 * (cuda_table.cuh), and all add the same terms in the same order. `auto` chooses a table for each
 * window of a row (choose_table in cuda_windows.cuh). */
#include "cuda.h"

#include <inttypes.h>

fmm_status fmm_spgemm_countable(const fmm_csr *a)
{
    REQUIRE(a->rows < INT32_MAX, FMM_UNSUPPORTED,
            "spgemm: a has %" PRId64 " rows, CUDA takes less than 2^31 - 1", a->rows);
    return FMM_OK;
}

/* The same as a guard: what choose asks for instead has no limit. */
static bool countable(const fmm_call *call) { return call->a->rows < INT32_MAX; }

/* An algorithm is one kernel with one kind of table. */
#define IN(name, where)                                                                            \
    static fmm_status name(const fmm_exec *exec, const fmm_call *call)                             \
    {                                                                                              \
        return fmm_spgemm_rows_cuda(exec, call, where);                                            \
    }
IN(kkspeed, SPGEMM_IN_DENSE)
IN(kkmem, SPGEMM_IN_HASH)
IN(sorting, SPGEMM_IN_SORTED)
IN(by_row, SPGEMM_AUTO)

/* The numbers are those of the CPU's algorithms of these names. */
static const fmm_algorithm algorithms[] = {
    {1, "reference", "one thread per entry of C: the specification", "the definition", true, NULL,
     NULL, fmm_spgemm_reference_cuda},
    {2, "kkspeed", "dense rows of sums in shared memory, in windows of entries",
     "KokkosKernels KKSPEED", true, countable, fmm_spgemm_rows_workspace, kkspeed},
    {3, "kkmem", "hash tables in shared memory, in windows of entries", "KokkosKernels KKMEM", true,
     countable, fmm_spgemm_rows_workspace, kkmem},
    {4, "sort", "sorted columns in shared memory, found by bisection", "fusedmm", true, countable,
     fmm_spgemm_rows_workspace, sorting},
    {0},
};

/* The call with which the CPU's side asks whether there is an algorithm at all has no operands.
 * Rows that no list can number are left to the reference, which needs none. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    static const fmm_algorithm mixed = {0,    "auto", "each row as suits it",    "fusedmm",
                                        true, NULL,   fmm_spgemm_rows_workspace, by_row};
    return countable(call) ? &mixed : &algorithms[0];
}

const fmm_registry fmm_spgemm_cuda = {algorithms, choose};
