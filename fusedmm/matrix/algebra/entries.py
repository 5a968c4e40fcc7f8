"""What the algebra stands on: entries in the order of the rows, parts of them, and entries of the same place as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor
from torch.nn.functional import pad

from fusedmm._lib import REDUCTIONS
from fusedmm.matrix.base import M, Matrix
from fusedmm.matrix.compress import eid_dtype, pointers, rows_of
from fusedmm.matrix.structure import derived, lasting, plan_of
from fusedmm.ops.extreme import extreme
from fusedmm.ops.spmm_sddmm import spmm_half

NOT_SEEN = (
    "the algebra of this CSR needs what is made once of its structure: call the method once before the compiled code"
)


def numbers_of(adj: Matrix) -> Tensor:
    """The position of each entry in the caller's edge order."""
    if adj.eid.numel():
        return adj.eid
    return torch.arange(adj.nnz, dtype=eid_dtype(adj.nnz), device=adj.device)


def values_of(adj: Matrix) -> Tensor:
    """The values in the caller's order; float32 ones of a pattern."""
    return torch.ones(adj.nnz, dtype=torch.float32, device=adj.device) if adj.val is None else adj.val


def common(what: str, *values: Tensor | None) -> tuple[torch.dtype, int | None]:
    """The dtype that torch promotes values to, and how many heads they have together; None where none has heads.

    Raises:
        ValueError: heads that do not agree.
    """
    given = [t for t in values if t is not None]
    heads, dtype = {t.shape[1] for t in given if t.dim() == 2}, given[0].dtype
    for t in given[1:]:
        dtype = torch.promote_types(dtype, t.dtype)
    if len(heads - {1}) > 1:
        raise ValueError(f"{what}: heads do not agree: {', '.join([str(list(t.shape)) for t in given])}")
    return dtype, next(iter(heads - {1} or heads), None)


def like(val: Tensor, dtype: torch.dtype, heads: int | None) -> Tensor:
    """Values of that dtype and of so many heads."""
    val = val.to(dtype)
    return val if heads is None else (val if val.dim() == 2 else val[:, None]).expand(-1, heads)


def reduced(adj: Matrix, transposed: bool, val: Tensor | None, x: Tensor, reduce: str) -> Tensor:
    """SpMM with any reduction, of x [n], [n, heads] or [n, heads, F]; a vector gives a vector."""
    number = REDUCTIONS[reduce]
    compute: Any = spmm_half if reduce in ("sum", "mean") else extreme
    y: Tensor = compute(adj, transposed, val, x[:, None] if x.dim() == 1 else x, number, 0)
    return y[:, 0] if x.dim() == 1 else y


def kept(adj: Matrix, stays: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ptr, eid and the caller's numbers of the entries that stay; they keep the caller's order.

    stays: a boolean for each entry, in the order of the rows.
    """
    number = numbers_of(adj)
    ptr = pad(stays.cumsum(0), (1, 0))[adj.ptr.clamp(0, adj.nnz)]
    mine = torch.empty_like(stays).scatter_(0, number.long(), stays)
    eid = (mine.cumsum(0) - 1).to(number.dtype)[number[stays].long()]
    return ptr, eid, mine.nonzero()[:, 0]


def ones_at(adj: M, ptr: Tensor, number: Tensor) -> M:
    """[rows, nnz]: has a one at (i, p) for each of the caller's entries p that a row lists; it adds values up."""
    if adj.nnz >= 2**31:
        raise ValueError(f"sums over entries need fewer than 2^31 of them, not {adj.nnz}")
    return type(adj).make(ptr, number.to(torch.int32), adj.none, None, adj.nnz, False)


@dataclass(frozen=True, eq=False)
class Once(Generic[M]):
    """A structure in which each place has one entry and columns rise, and the matrix that reduces values to it."""

    pattern: M
    gather: M


def once(adj: M) -> Once[M]:
    """Entries of the same place as one, found once for each structure.

    Raises:
        ValueError: 2^31 entries or more.
        RuntimeError: in compiled code of one graph, for a structure not yet seen outside of it.
    """
    return derived(adj, "once", NOT_SEEN, _once)


@lasting
def _once(adj: M) -> Once[M]:
    rows, cols = adj.shape
    row, col, number = rows_of(adj.ptr, adj.nnz), adj.idx, numbers_of(adj)
    keys = row.long() * cols + col
    if bool((keys[1:] < keys[:-1]).any()):
        keys, order = torch.sort(keys, stable=True)
        row, col, number = row[order], col[order], number[order]
    new = torch.ones_like(keys, dtype=torch.bool)
    new[1:] = keys[1:] != keys[:-1]
    first = new.nonzero()[:, 0]
    row, col = row[first], col[first]
    pattern = type(adj).make(pointers(row, rows), col, adj.none, None, cols, False)
    gather = ones_at(adj, pad(first, (0, 1), value=adj.nnz), number)
    place = torch.empty(adj.nnz, dtype=torch.int32, device=adj.device)
    place.scatter_(0, number.long(), (new.cumsum(0) - 1).int())
    each = torch.arange(adj.nnz + 1, device=adj.device)
    plan, rows_are = plan_of(each, place, first.numel(), False)
    gather._set(ptr_t=each, idx_t=place, eid_t=adj.none, plan_t=plan, rows_are_t=rows_are)
    return Once(pattern, gather)


def reduced_once(adj: M, val: Tensor, reduce: str = "sum") -> Tensor:
    """Values in the caller's order reduced to those of ``once(adj).pattern``."""
    return reduced(once(adj).gather, False, None, val, reduce)


def is_same(a: Matrix, b: Matrix) -> bool:
    """Whether two matrices have the same entries in the same orders, of rows and of the callers."""
    if a.shape != b.shape or a.nnz != b.nnz:
        return False
    pairs = ((a.ptr, b.ptr), (a.idx, b.idx), (a.eid, b.eid))
    return all(s is t or (s.shape == t.shape and torch.equal(s, t)) for s, t in pairs)
