/* The loops of messages, compiled once per instruction set and pair of dtypes. */
#define ROOM messages
#define LOOPS "../messages/cpu.inc"
#include "../cpu/kernels.inc"
