# The compiler flags that every build of the library shares. The Makefile includes this file, and setup.py reads the lines
# of the form NAME := flags.
C_FLAGS := -std=c11 -fPIC -fvisibility=hidden -fexceptions
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion
# Those of the instruction sets. The plain loops are built without vectors, in half the time.
SCALAR := -O1
AVX2 := -mavx2 -mfma -mf16c -mbmi2
AVX512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mbmi2
NEON :=
