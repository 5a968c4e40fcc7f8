/* The algorithms of SpGEMM's numeric phase on CUDA. They differ in where a row keeps its sums
 * (cuda_table.cuh), and all add the same terms in the same order. None needs a workspace. */
#include "cuda.h"

#include <inttypes.h>

/* For those who list rows: what finds a structure, and gradients. */
fmm_status fmm_spgemm_countable(const fmm_csr *a)
{
    REQUIRE(a->rows < INT32_MAX, FMM_UNSUPPORTED,
            "spgemm: a has %" PRId64 " rows, CUDA takes less than 2^31 - 1", a->rows);
    return FMM_OK;
}

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
     "KokkosKernels KKSPEED", true, NULL, NULL, kkspeed},
    {3, "kkmem", "hash tables in shared memory, in windows of entries", "KokkosKernels KKMEM", true,
     NULL, NULL, kkmem},
    {4, "sort", "sorted columns in shared memory, found by bisection", "fusedmm", true, NULL, NULL,
     sorting},
    {0},
};

/* Number 0 asks for each window of a row what suits it: choose_table in cuda_rows.cu says how. Rows
 * that are small are merged by threads (cuda_small.cuh), and where a plan has kept where products
 * go (cuda_kept.cu), that is taken. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    static const fmm_algorithm mixed = {0,    "auto", "each row as suits it", "fusedmm", true, NULL,
                                        NULL, by_row};
    return (void)call, &mixed;
}

const fmm_registry fmm_spgemm_cuda = {algorithms, choose};
