# make interop: our functions against those of dgl, torch_scatter and torch_sparse, which are not among the tests'
# packages.
#
# dgl comes as a wheel, into an environment of its own (5 GB) with a torch that it knows and a Python that it has a wheel
# for. What its functions give is written to a file, and compared with ours in the environment of the tests.
#
# torch_scatter and torch_sparse have no wheel for a new torch. They are built from their sources, for the CPU, into a
# folder beside the environment, which only their own tests see. Where that takes longer than INTEROP_SECONDS, or fails,
# their tests are left out, and a line says so.
DGL_PYTHON ?= python3.11
DGL_PACKAGES := dgl==2.1.0 torch==2.2.1 torchdata==0.7.1 "numpy<2" pandas pyyaml pydantic
INTEROP_SECONDS ?= 3600
SPARSE := build/interop/sparse
SPARSE_PACKAGES := torch_scatter==2.1.2 torch_sparse==0.6.18

.PHONY: interop
interop: build/interop/dgl.npz $(SPARSE)/tried $(VENV)/dev
	FUSEDMM_DGL_VALUES=$(CURDIR)/$< $(BIN)/python -m pytest -q -n 0 tests/peers/against_dgl.py
	if [ -e $(SPARSE)/done ]; then \
	    PYTHONPATH=$(SPARSE) $(BIN)/python -m pytest -q -n 0 tests/peers/against_torch_sparse.py; \
	else echo "torch_sparse could not be built: see $(SPARSE)/log; make interop tries again without $(SPARSE)"; fi

build/interop/dgl.npz: build/interop/dgl/done tests/peers/dgl_values.py
	DGLBACKEND=pytorch build/interop/dgl/bin/python tests/peers/dgl_values.py $@

build/interop/dgl/done:
	$(DGL_PYTHON) -m venv build/interop/dgl
	build/interop/dgl/bin/pip install -q $(DGL_PACKAGES)
	touch $@

# Both need the torch of the environment while they are built, and would take that of an index without being told.
$(SPARSE)/tried: $(VENV)/torch
	mkdir -p $(SPARSE)
	if FORCE_ONLY_CPU=1 timeout $(INTEROP_SECONDS) $(BIN)/pip install -q --target $(SPARSE) --no-deps \
	    --no-build-isolation $(SPARSE_PACKAGES) > $(SPARSE)/log 2>&1; then touch $(SPARSE)/done; fi
	touch $@
