/* The loops of SpMM on the CPU that are the specification. They also compute rows whose indices
 * are out of range, and skip those entries. */
#pragma once

#include "../cpu/rows.h"

fmm_rows_guarded fmm_spmm_plain_rows;
fmm_status fmm_spmm_reference(const fmm_exec *exec, const fmm_call *call);
