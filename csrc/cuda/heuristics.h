/* What the choices of several rooms ask of a matrix. */
#pragma once

#include "../core/core.h"

/* Whether windows of the dense operand in shared memory are likely to pay: enough entries, in rows
 * that are even enough. */
bool fmm_may_be_tiled(const fmm_csr *a);
