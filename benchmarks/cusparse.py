"""cuSPARSE's sparse products, called as its documentation asks, by ctypes: a peer that torch and cupy reach in part.

Its algorithms take buffers whose sizes follow from the operands, so a product is a sequence of calls, each once for a
size and once for work. ``SpGEMMreuse`` keeps what it found; ``planned`` gives the call that computes values alone.
"""

from __future__ import annotations

import ctypes
import glob
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fusedmm

ALGORITHMS = {"ALG1": 3, "ALG2": 4, "ALG3": 5}  # cusparseSpGEMMAlg_t
INT32, KINDS = 2, {torch.float32: 0, torch.float64: 1}  # cusparseIndexType_t, cudaDataType
VECTOR = {"csr_alg1": 2, "csr_alg2": 3, "coo_alg1": 1, "coo_alg2": 4}  # cusparseSpMVAlg_t
NOT_SUPPORTED = 10  # cusparseStatus_t
CHUNK = 0.2  # what share of the products ALG3 takes at a time, as in NVIDIA's example

_kept: dict[int, tuple[Any, ctypes.c_void_p]] = {}


def _library() -> tuple[Any, ctypes.c_void_p]:
    """The library that torch loaded, and a handle on torch's current stream."""
    device = torch.cuda.current_device()
    if device not in _kept:
        names = {line.split()[-1] for line in open("/proc/self/maps") if "libcusparse.so" in line}
        found = ctypes.CDLL(min(names) if names else min(glob.glob("/usr/local/cuda/lib64/libcusparse.so*")))
        handle = ctypes.c_void_p()
        _require(found.cusparseCreate(ctypes.byref(handle)))
        _kept[device] = found, handle
    library, handle = _kept[device]
    _require(library.cusparseSetStream(handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
    return library, handle


def _require(status: int) -> None:
    if status:
        raise RuntimeError(f"cuSPARSE status {status}")


class Product:
    """A product's matrices and descriptors, for as long as cuSPARSE reads them."""

    def __init__(self, a: fusedmm.CSR, b: fusedmm.CSR, algorithm: int) -> None:
        self.library, self.handle = _library()
        self.dtype, device = a.val.dtype, a.device
        self.kind, self.algorithm = KINDS[self.dtype], algorithm
        self.one, self.zero = (torch.tensor([v], dtype=self.dtype) for v in (1.0, 0.0))
        self.ptr = torch.empty(a.shape[0] + 1, dtype=torch.int32, device=device)
        self.held: list[Tensor] = []
        nothing = self.ptr[:0]
        self.a, self.b = (self._matrix(m.shape, m.ptr.int(), m.idx, m.val) for m in (a, b))
        self.c = self._matrix((a.shape[0], b.shape[1]), self.ptr, nothing, nothing)
        self.descriptor = ctypes.c_void_p()
        _require(self.library.cusparseSpGEMM_createDescr(ctypes.byref(self.descriptor)))

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self.library.cusparseSpGEMM_destroyDescr(self.descriptor)
        for matrix in (getattr(self, name, None) for name in "abc"):
            if matrix is not None:
                self.library.cusparseDestroySpMat(matrix)

    def _matrix(self, shape: Any, ptr: Tensor, idx: Tensor, val: Tensor) -> ctypes.c_void_p:
        self.held += [ptr, idx, val]
        made, sizes = ctypes.c_void_p(), [ctypes.c_int64(n) for n in (*shape, idx.numel())]
        parts = [ctypes.c_void_p(t.data_ptr() or None) for t in (ptr, idx, val)]
        _require(self.library.cusparseCreateCsr(ctypes.byref(made), *sizes, *parts, INT32, INT32, 0, self.kind))
        return made

    def buffer(self, size: ctypes.c_size_t) -> ctypes.c_void_p:
        """So many bytes, held."""
        self.held.append(torch.empty(max(1, size.value), dtype=torch.uint8, device=self.ptr.device))
        return ctypes.c_void_p(self.held[-1].data_ptr())

    def scaled(self, name: str, *rest: Any) -> None:
        """A call that takes the scalars, too."""
        one, zero = (ctypes.c_void_p(t.data_ptr()) for t in (self.one, self.zero))
        function = getattr(self.library, name)
        how = self.kind, self.algorithm, self.descriptor
        _require(function(self.handle, 0, 0, one, self.a, self.b, zero, self.c, *how, *rest))

    def structural(self, name: str, *rest: Any) -> None:
        """A call of SpGEMMreuse that reads no values."""
        function = getattr(self.library, name)
        _require(function(self.handle, 0, 0, self.a, self.b, self.c, self.algorithm, self.descriptor, *rest))

    def sized(self, call: Callable[..., None], name: str, count: int = 1) -> None:
        """A call with no buffers, for their sizes, and again with them."""
        sizes = [ctypes.c_size_t() for _ in range(count)]
        call(name, *(x for s in sizes for x in (ctypes.byref(s), None)))
        call(name, *(x for s in sizes for x in (ctypes.byref(s), self.buffer(s))))

    def take_columns(self) -> Tensor:
        """Memory for C's columns and values; returns the values."""
        sizes = [ctypes.c_int64() for _ in range(3)]
        _require(self.library.cusparseSpMatGetSize(self.c, *map(ctypes.byref, sizes)))
        idx = torch.empty(sizes[2].value, dtype=torch.int32, device=self.ptr.device)
        val = torch.empty(sizes[2].value, dtype=self.dtype, device=self.ptr.device)
        self.held += [idx, val]
        parts = [ctypes.c_void_p(t.data_ptr() or None) for t in (self.ptr, idx, val)]
        _require(self.library.cusparseCsrSetPointers(self.c, *parts))
        return val


def multiplied(a: fusedmm.CSR, b: fusedmm.CSR, name: str) -> tuple[Tensor]:
    """The values of A B, by one of ``ALGORITHMS``."""
    of = Product(a, b, ALGORITHMS[name])
    of.sized(of.scaled, "cusparseSpGEMM_workEstimation")
    if name == "ALG1":
        of.sized(of.scaled, "cusparseSpGEMM_compute")
    else:
        third, second, chunk = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_float(CHUNK)
        estimate = "cusparseSpGEMM_estimateMemory"
        of.scaled(estimate, chunk, ctypes.byref(third), None, None)
        of.scaled(estimate, chunk, ctypes.byref(third), of.buffer(third), ctypes.byref(second))
        of.held.pop()
        of.scaled("cusparseSpGEMM_compute", ctypes.byref(second), of.buffer(second))
    val = of.take_columns()
    of.scaled("cusparseSpGEMM_copy")
    return (val,)


def planned(a: fusedmm.CSR, b: fusedmm.CSR) -> Callable[[], tuple[Tensor]]:
    """SpGEMMreuse after all that it keeps is made: each call computes the values again."""
    of = Product(a, b, 0)
    of.sized(of.structural, "cusparseSpGEMMreuse_workEstimation")
    of.sized(of.structural, "cusparseSpGEMMreuse_nnz", 3)
    val = of.take_columns()
    of.sized(of.structural, "cusparseSpGEMMreuse_copy")

    def compute() -> tuple[Tensor]:
        of.scaled("cusparseSpGEMMreuse_compute")
        return (val,)

    return compute


class VectorProduct:
    """y = A x by one of ``VECTOR``, as a program with one matrix uses it: descriptors, buffer and preprocessing are
    kept across calls. COO's algorithms may decline to preprocess."""

    def __init__(self, adj: fusedmm.CSR, x: Tensor, name: str) -> None:
        assert adj.val is not None
        self.library, self.handle = _library()
        self.one, self.zero = (torch.tensor([v], dtype=x.dtype) for v in (1.0, 0.0))
        self.y, self.descriptors = x.new_empty(adj.shape[0]), [ctypes.c_void_p() for _ in range(3)]
        coo = name.startswith("coo")
        first = fusedmm.formats.to_coo(adj).row if coo else adj.ptr.int()
        self.held = [first, adj.idx, adj.val, x, self.y]
        at = [ctypes.c_void_p(t.data_ptr()) for t in self.held]
        sizes, kind = [ctypes.c_int64(n) for n in (*adj.shape, adj.nnz)], KINDS[x.dtype]
        create = self.library.cusparseCreateCoo if coo else self.library.cusparseCreateCsr
        widths = [INT32] if coo else [INT32, INT32]
        matrix, dense, result = self.descriptors
        _require(create(ctypes.byref(matrix), *sizes, *at[:3], *widths, 0, kind))
        for vector, size, where in ((dense, sizes[1], at[3]), (result, sizes[0], at[4])):
            _require(self.library.cusparseCreateDnVec(ctypes.byref(vector), size, where, kind))
        one, zero = (ctypes.c_void_p(t.data_ptr()) for t in (self.one, self.zero))
        self.operands = [self.handle, 0, one, matrix, dense, zero, result, kind, VECTOR[name]]
        size = ctypes.c_size_t()
        _require(self.library.cusparseSpMV_bufferSize(*self.operands, ctypes.byref(size)))
        self.held.append(x.new_empty(max(1, size.value), dtype=torch.uint8))
        self.buffer = ctypes.c_void_p(self.held[-1].data_ptr())
        status = self.library.cusparseSpMV_preprocess(*self.operands, self.buffer)
        _require(0 if coo and status == NOT_SUPPORTED else status)

    def __call__(self) -> Tensor:
        _library()  # the stream may be another one
        _require(self.library.cusparseSpMV(*self.operands, self.buffer))
        return self.y

    def __del__(self) -> None:
        for descriptor, kind in zip(getattr(self, "descriptors", []), ("SpMat", "DnVec", "DnVec"), strict=False):
            if descriptor:
                getattr(self.library, f"cusparseDestroy{kind}")(descriptor)
