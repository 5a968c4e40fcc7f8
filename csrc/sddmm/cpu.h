/* The loops of SDDMM on the CPU that are the specification. They also compute rows whose indices
 * are out of range, and skip those entries. */
#pragma once

#include "../cpu/rows.h"

fmm_rows_guarded fmm_sddmm_plain_rows;
fmm_status fmm_sddmm_reference(const fmm_exec *exec, const fmm_call *call);
