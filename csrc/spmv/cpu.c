/* The loops of SpMV, compiled once per instruction set and pair of dtypes: the build gives the
 * instruction set by its flags, kernels.inc includes the files below for each pair. */
#define ROOM spmv
#define PER_SUM "../spmv/cpu_sums.inc"
#define LOOPS "../spmv/cpu.inc"
#include "../cpu/reference.h"
#include "cpu.h"
#include "../cpu/kernels.inc"
