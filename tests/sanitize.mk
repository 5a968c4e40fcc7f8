# Builds of the library that watch themselves, and the tests that run on them. Part of the Makefile.
# Objects of a build, by the names of their sources: those of a room's loops, one per instruction set and pair of
# dtypes, and the rest.
LOOPS := $(wildcard csrc/*/cpu.c)
PER_ISA := $(foreach isa,scalar avx2 avx512,$(LOOPS:csrc/%.c=%.$(isa).o) $(LOOPS:csrc/%.c=%.$(isa).bits16.o) \
    cpu/index_check.$(isa).o)
ONCE := $(filter-out csrc/cuda/% csrc/lessons/% $(wildcard csrc/*/cuda*.c) $(LOOPS) csrc/cpu/index_check.c,\
    $(wildcard csrc/*/*.c)) csrc/cuda/absent.c
OBJECTS := $(PER_ISA) $(ONCE:csrc/%.c=%.o)
HEADERS := $(wildcard csrc/*/*.h csrc/*/*.inc csrc/*/*.def)
# The loops are functions here and not copied into their callers, where they would be written out for every width and
# option: a compiler would take minutes to watch all those copies, and each has the same accesses. For the same reason
# they are not optimised, which where calls are small nobody waits for.
CHECKED := $(C_FLAGS) -g1 -Icsrc/include -fno-omit-frame-pointer "-DFMM_INLINE=static inline" -Wno-psabi
UNDEFINED := -fsanitize=undefined -fno-sanitize-recover=all

# $(1): folder under build/, $(2): compiler, $(3): flags, $(4): instruction set, $(5): its flags
define build_isa
build/$(1)/%.$(4).o: csrc/%.c $(HEADERS)
	@mkdir -p $$(@D)
	$(2) $(CHECKED) $(3) $(5) -DFMM_ISA=$(4) -c $$< -o $$@
build/$(1)/%.$(4).bits16.o: csrc/%.c $(HEADERS)
	@mkdir -p $$(@D)
	$(2) $(CHECKED) $(3) $(5) -DFMM_ISA=$(4) -DFMM_16_BITS -c $$< -o $$@
endef

# $(1): folder under build/, $(2): compiler, $(3): flags, $(4): more flags for the loops of an instruction set
define build
build/$(1)/%.o: csrc/%.c $(HEADERS)
	@mkdir -p $$(@D)
	$(2) $(CHECKED) $(3) -c $$< -o $$@
$(call build_isa,$(1),$(2),$(3) -O0 $(4),scalar,)
$(call build_isa,$(1),$(2),$(3) -O0 $(4),avx2,$(AVX2))
$(call build_isa,$(1),$(2),$(3) -O0 $(4),avx512,$(AVX512))
build/$(1)/fusedmm/libfusedmm.so: $(addprefix build/$(1)/,$(OBJECTS))
	@mkdir -p $$(@D)
	$(2) -shared $(3) $$^ -o $$@ -ldl -lpthread -lm
build/$(1)/tests/%: tests/c/%.c $(wildcard tests/c/*.h) build/$(1)/fusedmm/libfusedmm.so
	@mkdir -p $$(@D)
	$(2) $(CHECKED) $(3) $$< -o $$@ -Lbuild/$(1)/fusedmm -lfusedmm -lm -lpthread \
	    -Wl,-rpath,$(CURDIR)/build/$(1)/fusedmm
endef
# gcc 12 puts vectors of 64 bytes at any 32 where it watches the stack of functions that returned.
$(eval $(call build,asan,gcc,-O1 -fsanitize=address $(UNDEFINED),--param asan-use-after-return=0))
$(eval $(call build,tsan,gcc,-O1 -fsanitize=thread))
# An operand without elements may have no memory. Null plus nothing is null to every compiler, but not to C before C2y,
# and clang tells of it in the loops, which add offsets before they know that there is nothing to read.
$(eval $(call build,fuzz,clang,-O1 -fsanitize=address $(UNDEFINED) -fsanitize=fuzzer-no-link,\
    -fno-sanitize=pointer-overflow))
$(eval $(call build,coverage,gcc,-O0 --coverage -fprofile-update=atomic))

build/fuzz/fuzz_calls: tests/fuzz/fuzz_calls.c $(wildcard tests/fuzz/*.h) $(addprefix build/fuzz/,$(OBJECTS))
	clang $(CHECKED) -O1 -fsanitize=address,fuzzer $(UNDEFINED) $< $(filter %.o,$^) -o $@ -ldl -lpthread -lm

# Programs that have the fault which their gate must find.
build/planted/%: tests/planted/%.c build/asan/fusedmm/libfusedmm.so build/tsan/fusedmm/libfusedmm.so
	@mkdir -p $(@D)
	gcc $(CHECKED) -O1 $(if $(findstring race,$@),-fsanitize=thread,-fsanitize=address $(UNDEFINED)) $< -o $@ \
	    -L$(if $(findstring race,$@),build/tsan,build/asan)/fusedmm -lfusedmm -lpthread \
	    -Wl,-rpath,$(CURDIR)/$(if $(findstring race,$@),build/tsan,build/asan)/fusedmm
build/planted/fusedmm/libfusedmm.so: csrc/torch/frame.c $(addprefix build/asan/,$(OBJECTS))
	@mkdir -p $(@D)
	sed 's/eid.numel != a->nnz/eid.numel > a->nnz/' $< >build/planted/frame.c
	gcc -shared $(CHECKED) -Icsrc/torch -O1 -fsanitize=address $(UNDEFINED) build/planted/frame.c \
	    $(filter-out %/frame.o,$(filter %.o,$^)) -o $@ -ldl -lpthread -lm
build/planted/fuzz_calls: tests/fuzz/fuzz_calls.c $(wildcard tests/fuzz/*.h) $(addprefix build/fuzz/,$(OBJECTS))
	@mkdir -p $(@D)
	sed 's/return \(r->task->copy(.*)\);/return \1, true;/' csrc/cpu/rows.c >build/planted/rows.c
	clang $(CHECKED) -Icsrc/cpu -O1 -fsanitize=address,fuzzer $(UNDEFINED) $< build/planted/rows.c \
	    $(filter-out %/rows.o,$(filter %.o,$^)) -o $@ -ldl -lpthread -lm

C_TESTED := $(patsubst tests/c/%.c,%,$(wildcard tests/c/test_*.c))
PLANTED := build/planted/overread build/planted/leak build/planted/undefined build/planted/race
FOUND := tests/planted/found.sh
export ASAN_OPTIONS := detect_leaks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS := print_stacktrace=1
export TSAN_OPTIONS := halt_on_error=1
FUZZ_SECONDS ?= 3600
# What Python's tests reach and the C tests do not: the operators' way through torch, construction, plug-ins, bad input;
# and of those that go over shapes, dtypes and options the cases that are not large.
PYTHON_CHECKED ?= $(foreach name,forged forged_order contract attention_rules fused_contract sddmm gat maps construction csr \
    raw_operators plugins plugin_faults empty_sizes misaligned written_while_read spmv_arguments,$(wildcard tests/*/test_$(name).py))
PYTHON_SAMPLED ?= $(foreach name,spmm fused attention,$(wildcard tests/*/test_$(name).py))
LARGE := cuda or hub or many_rows or power_law or presets or gradcheck or wide or row_of or passes_over or lanes_fill or \
    test_fused and covering
# What calls the same operators over and over for the sake of a number, or through torch's compiler.
REPEATED := test_derivatives or any_order or test_opcheck or compiled

.PHONY: sanitize sanitize-built sanitize-c sanitize-threads sanitize-python sanitize-sampled sanitize-planted
.PHONY: fuzz fuzz-minute fuzz-torch fuzz-torch-minute
sanitize:
	$(MAKE) -j$$(nproc) sanitize-built
	$(MAKE) -O -j$$(nproc) sanitize-python sanitize-sampled fuzz-torch-minute fuzz-minute sanitize-c sanitize-planted \
	    sanitize-threads

# All that is compiled for it, without an environment.
sanitize-built: $(C_TESTED:%=build/asan/tests/%) build/tsan/tests/test_threads $(PLANTED) build/fuzz/fuzz_calls \
    build/planted/fuzz_calls build/planted/fusedmm/libfusedmm.so

sanitize-planted: $(PLANTED) build/planted/fuzz_calls
	$(FOUND) "AddressSanitizer: heap-buffer-overflow" build/planted/overread
	$(FOUND) "LeakSanitizer: detected memory leaks" build/planted/leak
	$(FOUND) "signed integer overflow" build/planted/undefined
	$(FOUND) "ThreadSanitizer: data race" build/planted/race
	mkdir -p build/planted/corpus
	$(FOUND) "AddressSanitizer" build/planted/fuzz_calls $(FUZZ_FLAGS) $(FUZZ_SAME) build/planted/corpus tests/fuzz/corpus

sanitize-c: $(C_TESTED:%=build/asan/tests/%)
	set -e; for t in $^; do echo $$t; $$t; done

sanitize-threads: build/tsan/tests/test_threads
	$<

# The package beside the watched library. Python itself never frees all it holds, so no leaks are looked for; what is
# larger than any memory is refused, as without the sanitizer; its reports are not pytest's to capture. What the tests
# start in the repository's root finds the watched library too, and not the one that lies there (PYTHONSAFEPATH).
WATCHED = env LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONPATH=$(CURDIR)/build/asan PYTHONSAFEPATH=1
sanitize-python: package-asan $(VENV)/dev
	$(FOUND) "AddressSanitizer: heap-buffer-overflow" $(WATCHED) $(BIN)/python tests/planted/overread.py
	$(WATCHED) $(BIN)/pytest -q --capture=sys $(PYTHON_CHECKED) -k "not ($(REPEATED))"
sanitize-sampled: package-asan $(VENV)/dev
	$(WATCHED) $(BIN)/pytest -q --capture=sys $(PYTHON_SAMPLED) -k "not ($(LARGE))"

# The package's files beside a library under build/.
package-%: build/%/fusedmm/libfusedmm.so
	for f in $$(cd fusedmm && git ls-files); do mkdir -p build/$*/fusedmm/$$(dirname $$f); \
	    ln -sf $(CURDIR)/fusedmm/$$f build/$*/fusedmm/$$f; done

# Both begin with the inputs of tests/fuzz/corpus. The gate's goes on with the same new ones at every run, which take
# half a minute (reload: nothing that time decides); the other with ones of its own, and keeps those that reach new code.
FUZZ_FLAGS := -max_len=600 -len_control=0 -print_funcs=0 -artifact_prefix=build/fuzz/
FUZZ_SAME := -seed=1 -runs=4000 -reload=0
fuzz: build/fuzz/fuzz_calls
	mkdir -p build/fuzz/corpus
	build/fuzz/fuzz_calls $(FUZZ_FLAGS) -max_total_time=$(FUZZ_SECONDS) build/fuzz/corpus tests/fuzz/corpus
fuzz-minute: build/fuzz/fuzz_calls
	rm -rf build/fuzz/minute
	mkdir -p build/fuzz/minute
	build/fuzz/fuzz_calls $(FUZZ_FLAGS) $(FUZZ_SAME) build/fuzz/minute tests/fuzz/corpus

# The operators as torch calls them, whose arguments tests/fuzz/fuzz_torch.py makes bad; no sizes take the machine's memory.
# The gate makes the same calls at every run, the planted fault is found among the first of them; the other goes on from a
# seed of its own, and says which.
FUZZ_TORCH = ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=256 OMP_NUM_THREADS=1 \
    $(BIN)/python tests/fuzz/fuzz_torch.py
fuzz-torch: package-asan $(VENV)/dev
	set -e; seed=$$(date +%s); end=$$((seed + $(FUZZ_SECONDS))); while [ $$(date +%s) -lt $$end ]; do \
	    $(WATCHED) $(FUZZ_TORCH) $$seed 50000; seed=$$((seed + 1)); done
fuzz-torch-minute: package-asan package-planted $(VENV)/dev
	$(FOUND) "AddressSanitizer: heap-buffer-overflow" $(subst build/asan,build/planted,$(WATCHED)) $(FUZZ_TORCH) 1 3000
	$(WATCHED) $(FUZZ_TORCH) 1 20000

# On a machine with a GPU, whose Python has torch; the library as gpu-test built it. torch's pool of memory is off, so
# that every tensor is an allocation with ends of its own.
COMPUTE_SANITIZER ?= compute-sanitizer
GPU_TOOLS := memcheck racecheck initcheck synccheck
# What each says of the fault that is planted for it, and of nothing else: all of them end with a summary.
PLANTED_memcheck := Invalid __global__ write
PLANTED_racecheck := Race reported between
PLANTED_initcheck := Uninitialized __global__ memory read
PLANTED_synccheck := Barrier error detected
OPTIONS_synccheck := --num-cuda-barriers 65536
define gpu_tool
	$(FOUND) "$(PLANTED_$(1))" $(COMPUTE_SANITIZER) --tool $(1) --error-exitcode 9 build/planted/gpu $(1)
	PYTHONPATH=. $(COMPUTE_SANITIZER) --tool $(1) $(OPTIONS_$(1)) --error-exitcode 9 --report-api-errors no $(PYTHON) \
	    tests/gpu_sanitize.py $(1)

endef
.PHONY: gpu-sanitize
gpu-sanitize: export FUSEDMM_CUDA := 1
gpu-sanitize: export TORCH_CUDA_ARCH_LIST ?= 9.0
gpu-sanitize: export PYTORCH_NO_CUDA_MEMORY_CACHING := 1
gpu-sanitize: build/planted/gpu
	$(PYTHON) setup.py -q build_ext --inplace
	$(foreach tool,$(GPU_TOOLS),$(call gpu_tool,$(tool)))

build/planted/gpu: tests/gpu_planted.cu
	@mkdir -p $(@D)
	$(NVCC) -arch=$(CUDA_ARCH) -lineinfo $< -o $@

# Lines of csrc/*.c and *.inc that the C tests and Python's run. Left out is what looks at the library as it is built, and
# what takes long and calls what other tests call: torch's compiler, and the programs of the documents.
UNCOVERED := $(wildcard tests/interop/test_compile*.py) tests/interop/test_export.py tests/interop/test_build.py tests/docs
.PHONY: coverage
coverage: $(VENV)/dev
	$(BIN)/python setup.py -q build_ext --inplace
	$(MAKE) -j$$(nproc) $(C_TESTED:%=build/coverage/tests/%) package-coverage
	find build/coverage -name '*.gcda' -delete
	set -e; for t in $(C_TESTED:%=build/coverage/tests/%); do $$t; done
	PYTHONPATH=$(CURDIR)/build/coverage:$(CURDIR) $(BIN)/pytest -q $(UNCOVERED:%=--ignore %)
	$(BIN)/python tests/line_coverage.py build/coverage
