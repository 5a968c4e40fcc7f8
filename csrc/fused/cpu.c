/* The loops of fused, compiled once per instruction set and pair of dtypes. The edge function works
 * on sums, so it is compiled once for f32, which f16 and bf16 share, and once for f64. */
#include "../cpu/exp.h"

/* What a row takes of the gathered ones: their sum, that of two tables, their maximum, or the sum
 * of the row's own side less each of them. */
typedef enum fused_takes { TAKES_ONE, TAKES_TWO, TAKES_MAX, TAKES_LESS } fused_takes;

#define PER_SUM "../fused/cpu_edge.inc"
#define ROOM fused
#define LOOPS "../fused/cpu.inc"
#include "../cpu/kernels.inc"
