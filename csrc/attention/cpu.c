/* The loops of attention, compiled once per instruction set and pair of dtypes. Dropout's random
 * numbers and exp are plain C, of which the compiler makes vectors of each set. */
#include "../core/philox.h"
#include "../cpu/exp.h"

#define ROOM attention
#define LOOPS "../attention/cpu.inc"
#include "../cpu/kernels.inc"
