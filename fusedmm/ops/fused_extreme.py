"""The gradients of a fused maximum or minimum, a few rows at a time.

The composite keeps several tensors [nnz, heads, F]. An extreme is one of its own row's entries, so that a part
of whole rows has the same winners as the matrix, and the composite of one part after another needs the memory
of one part. Operands are gathered here, a row per entry, and what their gradients are is added to sums over all
parts, in their order: the same bits every time, on a GPU too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import sums_dtype
from fusedmm._torch_compat import is_batch_of_gradients
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import UNKNOWN, is_captured
from fusedmm.ops.autograd import Values
from fusedmm.ops.checks import needs_rules
from fusedmm.ops.spmm_sddmm import gradients, widened

# Numbers per gathered operand of a part; a row alone may have more. Larger ones took a CPU twice the time, since
# their memory comes from the system anew at each step. The GPU's number is a guess: nobody timed others.
PART = {"cpu": 2**22, "cuda": 2**24}

Needed = tuple[bool, bool, bool, bool]


class Gathered:
    """Stands for an operand that was gathered already: it has a row per entry, and gathering it again gives it as it
    is."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    is_cuda = False  # so that ``reference`` gathers by index_select alone

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        return self.rows


def is_too_large(adj: CSR, x: Tensor, z: Tensor, g: Tensor) -> bool:
    """Tells whether gradients are to be made in parts: never where they are differentiated, traced, mapped or recorded.

    Parts are found on the host, which waits for the device: what is small, or captured in a CUDA graph, does not.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or type(adj.ptr) is not Tensor:
        return False
    if type(adj) is not CSR:  # of a part of a larger graph the size says nothing
        return False
    if adj.nnz * _numbers(x, z) <= PART[x.device.type] or is_captured(g) or needs_rules(g):
        return False
    return not is_batch_of_gradients(g)


def in_parts(composite: Callable[..., Tensor], adj: CSR, saved: Any, spec: Any, needed: Needed, g: Tensor) -> Any:
    """Returns the gradients of val, x, y and z, from the composite of each part; None where one is not needed."""
    val, x, y, z = saved
    dtype = sums_dtype(x)
    sums: list[Values] = [None, None, None, None]  # val's, in its own dtype and the caller's order; x's, y's and z's

    def add(rows: slice, entries: slice) -> None:
        ptr, idx = adj.ptr[rows.start : rows.stop + 1] - entries.start, adj.idx[entries]
        part = CSR.make(ptr, idx, adj.none, None, adj.n_cols, False, (adj.none, UNKNOWN))
        row, col, _ = part.coo()
        place = adj.eid[entries].long() if adj.eid.numel() else None
        a = val if val is None else (val[entries] if place is None else val.index_select(0, place)).detach()
        a = a if a is None else a.requires_grad_(needed[0])
        xi, yj = x[rows].index_select(0, row).to(dtype), y.index_select(0, col).to(dtype)
        zj = yj if z is y else z.index_select(0, col).to(dtype)
        given = [Gathered(t.detach().requires_grad_(n)) for t, n in zip((xi, yj, zj), needed[1:], strict=True)]
        with torch.enable_grad():
            out = composite(part, a, *given, spec)
        found = gradients((out,), widened(g[rows]), (a, *(t.rows for t in given)), needed, False)
        for k, (of, index) in enumerate(((val, place), (x, row + rows.start), (y, col), (z, col))):
            term, total = found[k], sums[k]
            if term is None:
                continue
            if total is None:
                total = sums[k] = of.new_zeros(of.shape, dtype=dtype if k else of.dtype)
            if k:
                _add_at(total, index, term)
            elif place is None:
                total[entries] = term
            else:
                total.index_copy_(0, place, term)

    for rows, entries in _parts(adj, max(PART[x.device.type] // _numbers(x, z), 1)):
        add(rows, entries)  # in a function, so that nothing of a part outlives it
    return tuple(t if t is None else t.to(of.dtype) for t, of in zip(sums, saved, strict=True))


def _numbers(x: Tensor, z: Tensor) -> int:
    """Tells how many numbers a gathered operand has per entry, but at least one."""
    return max(x.shape[1:].numel(), z.shape[1:].numel(), 1)


def _parts(adj: CSR, most: int) -> Iterator[tuple[slice, slice]]:
    """Ranges of rows and of their entries: at most so many entries each, unless a single row has more."""
    # One copy and one wait for all parts. Pointers that nobody checked must not lead outside, or backwards.
    ptr = adj.ptr.cpu().clamp(0, adj.nnz).cummax(0).values
    first, rows = 0, adj.shape[0]
    while first < rows:
        last = max(int(torch.searchsorted(ptr, ptr[first] + most, right=True)) - 1, first + 1)
        entries = slice(int(ptr[first]), int(ptr[last]))
        if entries.start < entries.stop:
            yield slice(first, last), entries
        first = last


def _add_at(total: Tensor, index: Tensor, terms: Tensor) -> None:
    """Adds terms[p] to total[index[p]], in a fixed order: index_put_ sorts on a GPU and adds one after another in one
    thread for index_add_ on a CPU, where the other of the two would be atomic."""
    if total.is_cuda:
        total.index_put_((index,), terms, accumulate=True)
    else:
        total.index_add_(0, index, terms)
