# make interop: our functions against dgl's, which is not among the tests' packages.
#
# dgl comes as a wheel, into an environment of its own (5 GB) with a torch that it knows and a Python that it has a wheel
# for. What its functions give is written to a file, and compared with ours in the environment of the tests.
DGL_PYTHON ?= python3.11
DGL_PACKAGES := dgl==2.1.0 torch==2.2.1 torchdata==0.7.1 "numpy<2" pandas pyyaml pydantic

.PHONY: interop
interop: build/interop/dgl.npz $(VENV)/dev
	FUSEDMM_DGL_VALUES=$(CURDIR)/$< $(BIN)/python -m pytest -q -n 0 tests/peers/against_dgl.py

build/interop/dgl.npz: build/interop/dgl/done tests/peers/dgl_values.py
	DGLBACKEND=pytorch build/interop/dgl/bin/python tests/peers/dgl_values.py $@

build/interop/dgl/done:
	$(DGL_PYTHON) -m venv build/interop/dgl
	build/interop/dgl/bin/pip install -q $(DGL_PACKAGES)
	touch $@
