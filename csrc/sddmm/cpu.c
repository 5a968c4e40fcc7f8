/* The loops of SDDMM, compiled once per instruction set and pair of dtypes. */
#define ROOM sddmm
#define LOOPS "../sddmm/cpu.inc"
#include "../cpu/kernels.inc"
