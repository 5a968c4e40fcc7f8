/* The loops of fused, compiled once per instruction set and pair of dtypes. The edge function works
 * on sums, so it is compiled once for f32, which f16 and bf16 share, and once for f64. */
#include "../cpu/exp.h"

#define PER_SUM "../fused/cpu_edge.inc"
#define ROOM fused
#define LOOPS "../fused/cpu.inc"
#include "../cpu/kernels.inc"
