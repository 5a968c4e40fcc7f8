/* The loops of SpMM, compiled once per instruction set and pair of dtypes. */
#define ROOM spmm
#define LOOPS "../spmm/cpu.inc"
#include "../cpu/kernels.inc"
