/* The plug-in: registers every lesson. A lesson is one file and one line here.
 *
 *     fusedmm.load_algorithms(path) --- calls ---> FMM_PLUGIN --- adds ---> each file's list
 *
 * The lists are arrays that end with an entry without a name. They have to stay where they are,
 * because the library that loads the plug-in keeps their addresses. Each is defined in the file of
 * its name. */
#include "../cuda/plugin.cuh"
#include "lesson.cuh"

#define LESSONS(X)                                                                                 \
    X(FMM_SPMM, spmm_thread_per_output)                                                            \
    X(FMM_SPMM, spmm_shared)                                                                       \
    X(FMM_SPMM, spmm_row_split)                                                                    \
    X(FMM_SPMM, spmm_multi_spmv)                                                                   \
    X(FMM_SPMM, spmm_crc)                                                                          \
    X(FMM_SPMM, spmm_row_vector)                                                                   \
    X(FMM_SPMM, spmm_merge_path)                                                                   \
    X(FMM_SPMM, spmm_gather_wall)                                                                  \
    X(FMM_SDDMM, sddmm_edge_search)                                                                \
    X(FMM_SDDMM, sddmm_dense_grid)                                                                 \
    X(FMM_SDDMM, sddmm_row_blocks)                                                                 \
    X(FMM_SDDMM, sddmm_row_vector)                                                                 \
    X(FMM_SDDMM, sddmm_dynamic)                                                                    \
    X(FMM_FUSED, fused_blocks_atomic)                                                              \
    X(FMM_FUSED, fused_row_vector)

#define DECLARE(op, list) extern fmm_algorithm list[];
LESSONS(DECLARE)

/* The library gives every algorithm a number, and refuses a name that it has already. */
static fmm_status add_all(const fmm_host *host, fmm_operator op, fmm_algorithm *list)
{
    for (; list->name; list++) TRY(host->add(op, FMM_CUDA, list));
    return FMM_OK;
}

/* What load_algorithms calls, once. */
FMM_PLUGIN
{
    host_of_errors = host;
#define ADD(op, list) TRY(add_all(host, op, list));
    LESSONS(ADD)
    return FMM_OK;
}
