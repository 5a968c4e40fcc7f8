# make demo: installs into .venv and trains a graph network. make test: installs and runs every test that is not slow.
# PYTHON is the interpreter the environment is made with; gpu-test uses it as it is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
export FUSEDMM_CUDA ?= 0
CC ?= cc
LIBRARY := fusedmm/libfusedmm.so
INTERFACE := $(wildcard csrc/include/*.h)
include csrc/flags.mk
WARN := $(C_FLAGS) -O2 $(WARNINGS) -Wstrict-prototypes -Wmissing-prototypes -Werror
NVCC ?= nvcc
CUDA_ARCH ?= sm_90
# With what the library asks of a device once; vpath finds the one and the others.
LESSON_OBJECTS := $(patsubst csrc/lessons/%.cu,build/lessons/%.o,$(wildcard csrc/lessons/*.cu)) build/lessons/device.o
vpath %.cu csrc/lessons csrc/cuda
C_TESTS := $(patsubst tests/c/%.c,build/c/%,$(wildcard tests/c/test_*.c))

.PHONY: demo test quick slow mutants lint c-test abi-check gpu-test lessons clean distclean

# Each step leaves a stamp when all of it is done, so that what was interrupted is done again.
$(VENV)/torch: Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(TORCH) "setuptools>=77" wheel
	touch $@

$(VENV)/demo: $(VENV)/torch pyproject.toml setup.py
	$(BIN)/pip install -q --no-build-isolation -e ".[demo]"
	touch $@

$(VENV)/dev: $(VENV)/torch pyproject.toml setup.py
	$(BIN)/pip install -q --no-build-isolation -e ".[dev]"
	touch $@

# Threads that spin while they wait would take a busy machine's cores from those that compute.
demo: export OMP_WAIT_POLICY ?= passive
demo: $(VENV)/demo
	$(BIN)/python setup.py -q build_ext --inplace
	$(BIN)/python -m fusedmm train

test: $(VENV)/dev
	$(BIN)/python setup.py -q build_ext --inplace
	$(MAKE) -O -j2 c-test abi-check
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# Of every folder what finds most in little time: the answers, the contract and the layers, of small sizes.
QUICK := $(foreach name,construction csr spmm sddmm fused attention gradients attention_rules huge_logits determinism \
    contract forged layouts_raw layers attention_layers sage,$(wildcard tests/*/test_$(name).py))
SEEN := not (million or many_rows or power_law or presets or compiles or opcheck or repeats or gradcheck or narrow_features)
quick: $(VENV)/dev
	$(BIN)/python setup.py -q build_ext --inplace
	$(BIN)/python -m pytest -q -x -n 2 --dist worksteal $(QUICK) -k "$(SEEN)"

# What make test leaves out; FUSEDMM_SLOW=0.1 make test takes a tenth of it in.
slow: export FUSEDMM_SLOW := 1
slow: $(VENV)/dev
	$(BIN)/python setup.py -q build_ext --inplace
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

# Faults made by hand, which the tests have to find; on a machine with a GPU `python tests/mutants.py cuda`.
mutants: $(VENV)/dev
	$(BIN)/python tests/mutants.py

# The same suite on a machine with a GPU, whose Python has torch and pytest: no environment, no network.
gpu-test: export FUSEDMM_CUDA := 1
gpu-test: export TORCH_CUDA_ARCH_LIST ?= 9.0
gpu-test:
	$(PYTHON) setup.py -q build_ext --inplace
	$(MAKE) c-test BUILDER=$(PYTHON)
	$(PYTHON) tests/gpu_report.py benchmarks/results/gpu-tests.json

# For c-test alone: what builds or tests more has built it by then, newer than all of this. BUILDER is a Python with
# setuptools, that of the environment if it is not named.
BUILDER ?= $(BIN)/python
$(LIBRARY): setup.py $(wildcard $(foreach suffix,c h inc def cu cuh,csrc/*/*.$(suffix) csrc/*/*/*.$(suffix))) \
            | $(if $(filter $(BIN)/python,$(BUILDER)),$(VENV)/torch)
	$(BUILDER) setup.py -q build_ext --inplace

c-test: $(C_TESTS)
	set -e; for t in $(C_TESTS); do echo $$t; $$t; done

build/c/%: tests/c/%.c $(wildcard tests/c/*.h) $(INTERFACE) $(LIBRARY)
	mkdir -p build/c
	$(CC) -std=c11 -O2 -Icsrc/include $< -o $@ -Lfusedmm -lfusedmm -lm -lpthread -Wl,-rpath,$(CURDIR)/fusedmm

# The literature's algorithms as a plug-in: fusedmm.load_algorithms("build/lessons/lessons.so").
lessons: build/lessons/lessons.so

build/lessons/lessons.so: $(LESSON_OBJECTS)
	$(NVCC) -shared -arch=$(CUDA_ARCH) $^ -o $@ -lcudadevrt

# What SpMM is held against on a CPU: python -m benchmarks spmm --plugins build/benchmarks/gather_wall.so.
build/benchmarks/gather_wall.so: benchmarks/gather_wall.c $(INTERFACE)
	mkdir -p build/benchmarks
	$(CC) $(C_FLAGS) -O3 -march=native -shared -Icsrc/include $< -o $@

# What `tiles` is held against on a GPU, in the same way.
build/benchmarks/tiles_wall.so: benchmarks/tiles_wall.cu csrc/cuda/device.cu \
                                $(wildcard csrc/spmm/*.cuh csrc/cuda/*.cuh) csrc/core/core.h $(INTERFACE)
	mkdir -p build/benchmarks
	$(NVCC) -O3 -std=c++17 -arch=$(CUDA_ARCH) -Xcompiler -fPIC,-fvisibility=hidden -shared $(filter %.cu,$^) -o $@

# Kernels that launch kernels are linked once more, as device code.
build/lessons/sddmm_dynamic.o: LESSON_FLAGS := -rdc=true
build/lessons/%.o: %.cu $(wildcard csrc/lessons/*.cuh csrc/cuda/*.cuh) \
                   csrc/fused/cuda_edge.cuh $(wildcard csrc/fused/formulas.*) csrc/core/core.h $(INTERFACE)
	mkdir -p build/lessons
	$(NVCC) -O3 -std=c++17 -arch=$(CUDA_ARCH) -Xcompiler -fPIC,-fvisibility=hidden $(LESSON_FLAGS) -c $< -o $@

abi-check: $(VENV)/dev
	$(CXX) -std=c++20 -fsyntax-only -I$$($(BIN)/python -c "import torch.utils.cpp_extension as e; print(e.include_paths()[0])") tests/abi_check.cpp

lint: $(VENV)/dev warnings
	$(BIN)/clang-format --dry-run -Werror \
	    $$(git ls-files 'csrc/*.[ch]' 'csrc/*.inc' 'csrc/*.cu' 'csrc/*.cuh' 'tests/*.[ch]' \
	        'docs/*.[ch]' 'benchmarks/*.c' 'benchmarks/*.cu' tests/gpu_planted.cu)
	$(BIN)/python tests/layers.py
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Every C file under both compilers, warnings as errors; the vector files with their own flags.
.PHONY: warnings warnings-gcc warnings-clang
warnings: warnings-gcc warnings-clang
warnings-gcc warnings-clang: warnings-%:
	set -e; for f in $$(git ls-files 'csrc/*.c'); do \
	    case $$f in \
	        */cpu.c | */index_check.c) \
	            for bits in "" -DFMM_16_BITS; do \
	                $* $(WARN) -DFMM_ISA=scalar $$bits -fsyntax-only $$f; \
	                $* $(WARN) $(AVX2) -DFMM_ISA=avx2 $$bits -fsyntax-only $$f; \
	                $* $(WARN) $(AVX512) -DFMM_ISA=avx512 $$bits -fsyntax-only $$f; \
	            done;; \
	        *) $* $(WARN) -fsyntax-only $$f;; \
	    esac; \
	done; \
	for f in $$(git ls-files 'tests/c/*.c'); do \
	    $* -std=c11 -O2 -Wall -Wextra -Werror -Icsrc/include -fsyntax-only $$f; \
	done

include tests/sanitize.mk
include tests/arm.mk
include tests/peers.mk

clean:
	rm -rf build $(LIBRARY)

# The environment too: the next demo or test makes it anew.
distclean: clean
	rm -rf $(VENV)
