# make demo: installs into .venv and trains a graph network. make test: installs and runs every test.
# PYTHON is the interpreter the environment is made with; gpu-test uses it as it is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
export FUSEDMM_CUDA ?= 0
CC ?= cc
LIBRARY := fusedmm/libfusedmm.so
WARN := -std=c11 -fexceptions -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Werror
C_TESTS := $(patsubst tests/c/%.c,build/c/%,$(wildcard tests/c/test_*.c))

.PHONY: demo test lint c-test abi-check gpu-test clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(TORCH) "setuptools>=77" wheel

$(VENV)/demo: $(BIN)/python pyproject.toml setup.py
	$(BIN)/pip install -q --no-build-isolation -e ".[demo]"
	touch $@

$(VENV)/dev: $(BIN)/python pyproject.toml setup.py
	$(BIN)/pip install -q --no-build-isolation -e ".[dev]"
	touch $@

demo: $(VENV)/demo
	$(BIN)/python setup.py -q build_ext --inplace
	$(BIN)/python -m fusedmm train

test: $(VENV)/dev
	$(BIN)/python setup.py -q build_ext --inplace
	$(MAKE) c-test abi-check
	$(BIN)/python -m pytest -q

c-test: $(C_TESTS)
	set -e; for t in $(C_TESTS); do $$t; done

build/c/%: tests/c/%.c tests/c/test.h csrc/fusedmm.h $(LIBRARY)
	mkdir -p build/c
	$(CC) -std=c11 -O2 -Icsrc $< -o $@ -Lfusedmm -lfusedmm -lm -lpthread -Wl,-rpath,$(CURDIR)/fusedmm

abi-check: $(VENV)/dev
	$(CXX) -std=c++20 -fsyntax-only -I$$($(BIN)/python -c "import torch.utils.cpp_extension as e; print(e.include_paths()[0])") tests/abi_check.cpp

lint: $(VENV)/dev
	$(BIN)/clang-format --dry-run -Werror $$(git ls-files 'csrc/*.[ch]' 'csrc/*.inc' 'tests/c/*.[ch]')
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:
	rm -rf build $(LIBRARY)
