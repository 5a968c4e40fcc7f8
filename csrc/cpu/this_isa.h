/* The vector primitives of the instruction set that the build names, FMM_ISA: isa_<name>.h. Where
 * the compiler does not know the set, FMM_PANEL is not defined. */
#include "simd.h"

#define FMM_QUOTE_TOKENS(x) #x
#define FMM_QUOTE(x) FMM_QUOTE_TOKENS(x)
#define FMM_DOT_H(name) name.h
#include FMM_QUOTE(FMM_DOT_H(FMM_JOIN(isa, FMM_ISA)))
