/* The loops of fused, compiled once per instruction set and pair of dtypes. */
#include "../cpu/exp.h"

#define PER_SUM "../fused/cpu_edge.inc"
#define ROOM fused
#define LOOPS "../fused/cpu.inc"
#include "../cpu/kernels.inc"
