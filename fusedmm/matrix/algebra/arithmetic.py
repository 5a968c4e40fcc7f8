"""Sums and products of matrices, entry by entry, and by a number."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.algebra.entries import common, is_same, kept, like, once, reduced_once, values_of
from fusedmm.matrix.arguments import FLOATS, require_number
from fusedmm.matrix.base import M, Matrix
from fusedmm.matrix.compress import rows_of
from fusedmm.matrix.constructors import from_coo
from fusedmm.matrix.structure import lasting


class Arithmetic(Matrix):
    """``A + B``, ``A - B``, ``A * B``, ``A * s``, ``A / s`` and ``-A``."""

    __array_ufunc__ = None  # numpy's arrays leave operators to us, and would make an array of matrices of a product

    def __add__(self: M, other: Any) -> M:
        """The sum of two matrices of one shape, with an entry wherever either has one; a pattern counts as ones.

        Values are in A's edge order where B has the same entries in the same order, as matrices that share a structure
        have. Elsewhere the sum has each place once, with rising columns, and its values in the order of its rows.
        Gradients reach both. What is no CSR is refused: ``fusedmm.as_csr`` makes one.
        """
        return _union("A + B", self, other, 1) if isinstance(other, Matrix) else NotImplemented

    def __radd__(self: M, other: Any) -> M:
        """The matrix itself for the 0 that Python's ``sum`` of matrices begins with."""
        return self if type(other) is int and other == 0 else NotImplemented

    def __sub__(self: M, other: Any) -> M:
        """The difference of two matrices, as ``A + B``."""
        return _union("A - B", self, other, -1) if isinstance(other, Matrix) else NotImplemented

    def __neg__(self: M) -> M:
        """A with the values negated, in A's edge order."""
        return self.with_values(-values_of(self))

    def __mul__(self: M, other: Any) -> M:
        """``A * s`` by a number, or ``A * B`` entry by entry, with an entry where both have one.

        A number, or a tensor of one that gradients reach, multiplies the values, which stay in A's edge order (a
        pattern gets float32 values, or the tensor's dtype).

        Of ``A * B`` entries that repeat count as their sum. Its values are in A's edge order where B has the same
        entries in the same order and none repeats; elsewhere columns rise and values are in the order of the rows. Two
        patterns give a pattern if none of their entries repeats.
        """
        if isinstance(other, Matrix):
            return _intersection(self, other)
        return self.with_values(_factor("A * s", self, other, torch.mul))

    __rmul__ = __mul__

    def __truediv__(self: M, other: Any) -> M:
        """``A / s``: the values divided by a number, as in ``A * s``."""
        if isinstance(other, Matrix):
            raise TypeError("A / B: matrices of one structure divide by A.with_values(A.val / B.val)")
        return self.with_values(_factor("A / s", self, other, torch.div))


def _factor(what: str, adj: Matrix, s: Any, op: Any) -> Tensor:
    """The values multiplied or divided by a number, or by a tensor of one number."""
    if isinstance(s, Tensor):
        if s.dim() or s.dtype not in FLOATS:
            found = f"{list(s.shape)} of {s.dtype}"
            raise TypeError(f"{what}: s must be one floating-point number, not {found}; A.scale takes rows= and cols=")
        if s.device != adj.device and not s.is_cpu:
            raise TypeError(f"{what}: s is on {s.device}, the matrix on {adj.device}")
        dtype = s.dtype if adj.val is None else None
    else:
        if not isinstance(s, Real):
            other = " or a CSR" if op is torch.mul else ""
            raise TypeError(f"{what}: s must be a number{other}, not {type(s).__name__}")
        require_number(f"{what}: s", s, torch.float32 if adj.val is None else adj.val.dtype)
        s, dtype = float(s), None
    val: Tensor = op(values_of(adj).to(dtype), s)
    return val


def _pair(what: str, a: Matrix, b: Matrix) -> tuple[Tensor, Tensor]:
    """The values of both, of one dtype and as many heads.

    Raises:
        TypeError: two devices.
        ValueError: other shapes or heads.
    """
    if a.shape != b.shape:
        raise ValueError(f"{what}: A is {list(a.shape)} and B {list(b.shape)}")
    if a.device != b.device:
        raise TypeError(f"{what}: A is on {a.device}, B on {b.device}")
    known = [t for t in (a.val, b.val) if t is not None] or [values_of(a)]
    dtype, heads = common(what, *known)
    return like(values_of(a), dtype, heads), like(values_of(b), dtype, heads)


def _union(what: str, a: M, b: Matrix, sign: int) -> M:
    """``A + sign * B``."""
    val, other = _pair(what, a, b)
    if is_same(a, b):
        return a.with_values(torch.add(val, other, alpha=sign))
    (row, col, _), (row_b, col_b, _) = a.coo(), b.coo()
    both = from_coo(type(a), torch.cat([row, row_b]), torch.cat([col, col_b]), None, a.shape, False)
    return once(both).pattern.with_values(reduced_once(both, torch.cat([val, sign * other])))


def _intersection(a: M, b: Matrix) -> M:
    """``A * B``."""
    val, other = _pair("A * B", a, b)
    patterns = a.val is None and b.val is None
    if is_same(a, b) and once(a).pattern.nnz == a.nnz:
        return a if patterns else a.with_values(val * other)
    pattern, in_a, in_b = _common(once(a).pattern, once(b).pattern)
    if patterns and once(a).pattern.nnz == a.nnz and once(b).pattern.nnz == b.nnz:
        return pattern
    left, right = reduced_once(a, val).index_select(0, in_a), reduced_once(b, other).index_select(0, in_b)
    return pattern.with_values(left * right)


@lasting
def _common(a: M, b: Matrix) -> tuple[M, Tensor, Tensor]:
    """The structure that two matrices of sorted single entries share, and where its entries are in either."""
    keys, others = (rows_of(m.ptr, m.nnz).long() * m.shape[1] + m.idx for m in (a, b))
    place = torch.searchsorted(others, keys)
    both = torch.zeros_like(keys, dtype=torch.bool) if not b.nnz else others[place.clamp(max=b.nnz - 1)] == keys
    ptr, _, number = kept(a, both)
    return type(a).make(ptr, a.idx[both], a.none, None, a.shape[1], False), number, place[both]
