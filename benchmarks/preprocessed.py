"""cuSPARSE's SpMM as a program with one matrix uses it: descriptors, buffer and preprocessing kept across calls.

A call of the package knows no state, so the package's cuSPARSE algorithms start anew each time. Here the library
that torch has loaded is called through ctypes, as its documentation says.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

import fusedmm
from benchmarks.harness import Contender

ALGORITHMS = {"csr_alg1": 4, "csr_alg3": 12}  # cusparseSpMMAlg_t; these are what preprocessing is for
DTYPES = {torch.float32: 0, torch.float64: 1}  # cudaDataType
INDEX_32, ROW_ORDER = 2, 2


def _library() -> ctypes.CDLL:
    """The libcusparse of this process.

    Raises:
        RuntimeError: torch has loaded none.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcusparse.so" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[5])
    raise RuntimeError("no libcusparse in this process")


class Preprocessed:
    """One product, y = A x, ready to be called again and again."""

    def __init__(self, adj: fusedmm.CSR, val: Tensor, x: Tensor, algorithm: int) -> None:
        self.library, self.handle = _library(), ctypes.c_void_p()
        self._call("Create", ctypes.byref(self.handle))
        self.kept = [adj.ptr.to(torch.int32), adj.idx, val, x]  # the descriptors point into these
        self.dtype, self.shape, feat = DTYPES[x.dtype], adj.shape, x.shape[1]
        self.matrix, self.x, self.y = (ctypes.c_void_p() for _ in range(3))
        ptr, idx, values, dense = (ctypes.c_void_p(t.data_ptr()) for t in self.kept)
        sizes = [ctypes.c_int64(n) for n in (*adj.shape, adj.nnz)]
        self._call("CreateCsr", ctypes.byref(self.matrix), *sizes, ptr, idx, values, INDEX_32, INDEX_32, 0, self.dtype)
        self.first = x.new_empty(adj.shape[0], feat)
        for descriptor, rows, at in (
            (self.x, x.shape[0], dense),
            (self.y, adj.shape[0], ctypes.c_void_p(self.first.data_ptr())),
        ):
            size = [ctypes.c_int64(n) for n in (rows, feat, feat)]
            self._call("CreateDnMat", ctypes.byref(descriptor), *size, at, self.dtype, ROW_ORDER)
        number = ctypes.c_float if x.dtype == torch.float32 else ctypes.c_double
        self.one, self.zero = number(1), number(0)
        one, zero = ctypes.byref(self.one), ctypes.byref(self.zero)
        self.operands = [0, 0, one, self.matrix, self.x, zero, self.y, self.dtype, algorithm]
        needed = ctypes.c_size_t()
        self._call("SpMM_bufferSize", self.handle, *self.operands, ctypes.byref(needed))
        self.buffer = x.new_empty(max(needed.value, 1), dtype=torch.uint8)
        self._on_stream()
        self._call("SpMM_preprocess", self.handle, *self.operands, ctypes.c_void_p(self.buffer.data_ptr()))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, f"cusparse{name}")(*arguments)
        if status:
            raise RuntimeError(f"cusparse{name} gave {status}")

    def _on_stream(self) -> None:
        self._call("SetStream", self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def __call__(self) -> Tensor:
        """A new y."""
        y = torch.empty_like(self.first)
        self._on_stream()
        self._call("DnMatSetValues", self.y, ctypes.c_void_p(y.data_ptr()))
        self._call("SpMM", self.handle, *self.operands, ctypes.c_void_p(self.buffer.data_ptr()))
        return y

    def __del__(self) -> None:
        for kind, descriptor in (("SpMat", self.matrix), ("DnMat", self.x), ("DnMat", self.y)):
            if descriptor:
                getattr(self.library, f"cusparseDestroy{kind}")(descriptor)
        self.library.cusparseDestroy(self.handle)


def contenders(adj: fusedmm.CSR, val: Tensor, x: Tensor) -> list[Contender]:
    """One for each algorithm that preprocesses, where it does."""
    if x.device.type != "cuda" or x.dtype not in DTYPES or adj.nnz >= 2**31:
        return []
    found = []
    for name, algorithm in ALGORITHMS.items():
        try:
            found.append(Contender(f"cusparse preprocessed {name}", Preprocessed(adj, val, x, algorithm)))
        except RuntimeError as error:
            print(f"cusparse preprocessed {name}: {error}")
    return found
