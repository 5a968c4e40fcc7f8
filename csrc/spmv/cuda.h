/* What cuda_algorithms.c needs of the CUDA files of SpMV. */
#pragma once

#include "../core/core.h"

FMM_C_BEGIN

fmm_status fmm_spmv_reference_cuda(const fmm_exec *exec, const fmm_call *call);

/* Entries of a row, in the mean, from which four warps share it: 8192 x 8192 with 10 % took 0.85 of
 * the time, ogbl_ddi_train 0.61 (H100); with 472 entries one warp is as fast. */
enum { FMM_SPMV_LONG = 480 };

/* CSR: a thread, or a group of lanes, for each row. */
fmm_status fmm_spmv_csr_scalar(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmv_csr_vector(const fmm_exec *exec, const fmm_call *call);

/* CSR and COO in equal shares. What blocks leave of rows that they share needs room. */
fmm_status fmm_spmv_segmented(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmv_merge(const fmm_exec *exec, const fmm_call *call);
size_t fmm_spmv_segmented_workspace(const fmm_call *call);
size_t fmm_spmv_merge_workspace(const fmm_call *call);

/* Launches `segmented` on a matrix's entries; `sums`, of the type that x is summed in, takes what
 * each row adds up to, before alpha and beta, in place of y. room is what its workspace says. */
void fmm_spmv_segmented_sums(const fmm_exec *exec, const fmm_call *call, void *room, void *sums);

fmm_status fmm_spmv_dia(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmv_ell(const fmm_exec *exec, const fmm_call *call);
fmm_status fmm_spmv_sell(const fmm_exec *exec, const fmm_call *call);
/* Finishes y from the sums of the places of SELL's order. */
void fmm_spmv_sell_place(const fmm_exec *exec, const fmm_call *call, const void *sums);
fmm_status fmm_spmv_hyb(const fmm_exec *exec, const fmm_call *call);
size_t fmm_spmv_hyb_workspace(const fmm_call *call);

FMM_C_END
