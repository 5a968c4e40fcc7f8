/* The loops of SpMV, compiled once per instruction set and pair of dtypes. */
#define ROOM spmv
#define PER_SUM "../spmv/cpu_sums.inc"
#define LOOPS "../spmv/cpu.inc"
#include "../cpu/reference.h"
#include "cpu.h"
#include "../cpu/kernels.inc"
