/* The loops of attention, compiled once per instruction set and pair of dtypes. */
#include "../core/philox.h"
#include "../cpu/exp.h"

#define ROOM attention
#define LOOPS "../attention/cpu.inc"
#include "../cpu/kernels.inc"
