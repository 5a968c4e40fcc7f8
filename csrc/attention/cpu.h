/* The loops of attention on the CPU that are the specification. They also compute rows whose
 * indices are out of range, and skip those entries. */
#pragma once

#include "../cpu/rows.h"

fmm_rows_guarded fmm_attention_plain_rows;
fmm_status fmm_attention_reference(const fmm_exec *exec, const fmm_call *call);
/* Writes zeros to the parts of gatt. */
void fmm_attention_clear_gatt(const fmm_attention *call);
