# make test-arm: the C tests on AArch64, whose instruction set NEON no other check runs.
#
# The library without torch and CUDA is cross-compiled, once per instruction set as setup.py does it, and the tests run in
# an emulator. They loop over the registry, so NEON and the plain loops are both tested. On Debian this needs the packages
# qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
ARM_CC ?= aarch64-linux-gnu-gcc
ARM_RUN ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
ARM_FLAGS := $(C_FLAGS) -O2 -ftree-vectorize $(WARNINGS) -Werror -DFMM_CC='"$(ARM_CC)"' -DFMM_CUDA_ARCHS='""'
ARM_SOURCES := $(filter-out csrc/torch/% csrc/cuda/vendor/%,$(wildcard csrc/*/*.c csrc/*/*/*.c))
ARM_SOURCES := $(filter-out $(foreach room,$(wildcard csrc/*),$(room)/torch%.c $(room)/cuda%.c),$(ARM_SOURCES))
ARM_PER_ISA := $(filter %/cpu.c %/index_check.c,$(ARM_SOURCES))
ARM_OBJECTS := $(patsubst csrc/%.c,build/arm/%.o,$(filter-out $(ARM_PER_ISA),$(ARM_SOURCES))) \
               $(foreach isa,neon scalar,$(patsubst csrc/%.c,build/arm/%.$(isa).o,$(ARM_PER_ISA)) \
                   $(patsubst csrc/%.c,build/arm/%.$(isa).bits16.o,$(filter %/cpu.c,$(ARM_PER_ISA))))
ARM_TESTS := $(patsubst tests/c/%.c,build/arm/%,$(wildcard tests/c/test_*.c))
ARM_READ := $(wildcard csrc/*/*.h csrc/*/*.inc csrc/*/*.def) tests/arm.mk

.PHONY: test-arm
test-arm: $(ARM_TESTS)
	set -e; for t in $(ARM_TESTS); do echo $$t; $(ARM_RUN) $$t; done

build/arm/%.o: csrc/%.c $(ARM_READ)
	mkdir -p $(@D)
	$(ARM_CC) $(ARM_FLAGS) -c $< -o $@

define ARM_OF_ISA
build/arm/%.$(1).o: csrc/%.c $(ARM_READ)
	mkdir -p $$(@D)
	$(ARM_CC) $(ARM_FLAGS) $(2) -DFMM_ISA=$(1) -c $$< -o $$@
build/arm/%.$(1).bits16.o: csrc/%.c $(ARM_READ)
	mkdir -p $$(@D)
	$(ARM_CC) $(ARM_FLAGS) $(2) -DFMM_ISA=$(1) -DFMM_16_BITS -c $$< -o $$@
endef
$(eval $(call ARM_OF_ISA,neon,$(NEON)))
$(eval $(call ARM_OF_ISA,scalar,$(SCALAR)))

build/arm/libfusedmm.so: $(ARM_OBJECTS)
	$(ARM_CC) -shared -Wl,--no-undefined $^ -o $@ -ldl -lpthread -lm

build/arm/%: tests/c/%.c $(wildcard tests/c/*.h) $(INTERFACE) build/arm/libfusedmm.so
	$(ARM_CC) -std=c11 -O2 -Icsrc/include $< -o $@ -Lbuild/arm -lfusedmm -lm -lpthread -Wl,-rpath,$(CURDIR)/build/arm
