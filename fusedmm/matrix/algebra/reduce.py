"""Sums, means and extremes of rows, of columns and of all entries, and the softmax over either."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.algebra.entries import reduced, values_of
from fusedmm.matrix.base import M, Matrix
from fusedmm.ops.row_softmax import softmax


class Reduce(Matrix):
    """``sum``, ``mean``, ``max``, ``min`` and ``softmax``; a pattern counts as float32 ones."""

    def sum(self, dim: int | None = None) -> Tensor:
        """Sums stored entries: ``dim=1`` over each row, ``dim=0`` over each column, None over all.

        Args:
            dim: 0, 1, or -2 and -1 for these, or None.

        Returns:
            A dense tensor [rows], [cols] or [], with [heads] behind it where values have heads, of the values' dtype.
            Sums are kept in float32 (float64 for float64). What has no entries gives 0.

        Raises:
            ValueError: another dim.

        Gradient: reaches the values, of any order.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 1]), torch.tensor([1., 2., 3.]))
            >>> A.sum(dim=1), A.sum(dim=0), A.sum()
            (tensor([3., 0., 3.]), tensor([1., 5.]), tensor(6.))
        """
        return _reduced(self, dim, "sum")

    def mean(self, dim: int | None = None) -> Tensor:
        """The mean of stored entries, as ``sum``: absent entries do not count, what has no entries gives 0."""
        return _reduced(self, dim, "mean")

    def max(self, dim: int | None = None) -> Tensor:
        """The largest stored entry, as ``sum``; entries that share it share its gradient evenly."""
        return _reduced(self, dim, "max")

    def min(self, dim: int | None = None) -> Tensor:
        """The least stored entry, as ``sum``; entries that share it share its gradient evenly."""
        return _reduced(self, dim, "min")

    def softmax(self: M, dim: int = 1) -> M:
        """The softmax of the values over each row (``dim=1``) or each column (``dim=0``).

        Returns:
            CSR of A's structure; its values are in A's edge order, as ``fusedmm.edge_softmax`` has them, which takes
            the numbers beside a pattern.

        Raises:
            ValueError: another dim.

        Gradient: reaches the values, of any order.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([0., 0., 5.]))
            >>> A.softmax().val
            tensor([0.5000, 0.5000, 1.0000])
        """
        val = values_of(self)
        half = self if _axis(dim) else self.t()
        w: Tensor = softmax(half, val[:, None] if val.dim() == 1 else val)
        return self.with_values(w[:, 0] if val.dim() == 1 else w)


def _axis(dim: Any) -> int:
    """0 or 1 for a dim, which may be any kind of integer."""
    axis = dim
    if type(dim) is not int and not isinstance(dim, bool) and hasattr(dim, "__index__"):
        axis = operator.index(dim)
    if type(axis) is not int or axis not in (-2, -1, 0, 1):
        raise ValueError(f"dim must be 0 (over columns), 1 (over rows) or None, not {dim!r}")
    return axis % 2


def _reduced(adj: Matrix, dim: int | None, reduce: str) -> Tensor:
    val = values_of(adj)
    if dim is not None:
        transposed = not _axis(dim)
        ones = val.new_ones(1).expand(adj.shape[0 if transposed else 1])
        if val.dim() == 1:
            return reduced(adj, transposed, adj.val, ones, reduce)
        return reduced(adj, transposed, adj.val, ones[:, None, None].expand(-1, val.shape[1], 1), reduce)[..., 0]
    if not adj.nnz:
        return val.sum(0)
    found: Tensor = getattr(torch, {"max": "amax", "min": "amin"}.get(reduce, reduce))(val, 0)
    return found
