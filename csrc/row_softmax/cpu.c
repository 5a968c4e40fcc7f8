/* The loops of softmax over rows, compiled once per instruction set and pair of dtypes. Of exp,
 * which is plain C, the compiler makes vectors of each set. */
#define ROOM row_softmax
#define LOOPS "../row_softmax/cpu.inc"
#include "../cpu/exp.h"
#include "../cpu/reference.h"
#include "../cpu/kernels.inc"
