# Builds of the library that watch themselves, and the tests that run on them. Part of the Makefile.
SOURCES := $(wildcard csrc/*.c csrc/cpu/*.c csrc/torch/*.c) csrc/cuda/absent.c
HEADERS := $(wildcard csrc/*.h csrc/*/*.h csrc/*/*.inc)
CHECKED := -std=c11 -g -fPIC -fexceptions -fvisibility=hidden -Icsrc
ASAN := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN := -O1 -fsanitize=thread
FUZZ := -O1 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
COVER := -O0 --coverage -fprofile-update=atomic

# $(1): folder under build/, $(2): compiler, $(3): flags
define build
build/$(1)/%.o: csrc/%.c $(HEADERS)
	@mkdir -p $$(@D)
	$(2) $(CHECKED) $(3) $$(if $$(findstring isa_avx2,$$@),$(AVX2)) \
	    $$(if $$(findstring isa_avx512,$$@),$(AVX512) $(AVX2)) -c $$< -o $$@
build/$(1)/fusedmm/libfusedmm.so: $(SOURCES:csrc/%.c=build/$(1)/%.o)
	@mkdir -p $$(@D)
	$(2) -shared $(3) $$^ -o $$@ -ldl -lpthread -lm
build/$(1)/tests/%: tests/c/%.c tests/c/test.h build/$(1)/fusedmm/libfusedmm.so
	@mkdir -p $$(@D)
	$(2) $(CHECKED) $(3) $$< -o $$@ -Lbuild/$(1)/fusedmm -lfusedmm -lm -lpthread \
	    -Wl,-rpath,$(CURDIR)/build/$(1)/fusedmm
endef
$(eval $(call build,asan,gcc,$(ASAN)))
$(eval $(call build,tsan,gcc,$(TSAN)))
$(eval $(call build,fuzz,clang,$(FUZZ)))
$(eval $(call build,coverage,gcc,$(COVER)))

build/fuzz/fuzz_calls: tests/fuzz/fuzz_calls.c $(wildcard tests/fuzz/*.h) $(SOURCES:csrc/%.c=build/fuzz/%.o)
	clang $(CHECKED) $(FUZZ:fuzzer-no-link=fuzzer) -fsanitize=fuzzer $< $(filter %.o,$^) -o $@ -ldl -lpthread -lm
