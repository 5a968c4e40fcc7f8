"""Sums of a matrix's values, row by row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._fakes import fake
from fusedmm._lib import algorithm_number, ops, raise_translated
from fusedmm.matrix.adapters import as_csr
from fusedmm.matrix.csr import CSR
from fusedmm.ops.sddmm import sddmm


@fake("_rowsum")
def _(ptr, idx, eid, plan, val, algorithm):  # type: ignore[no-untyped-def]
    return val.new_empty((ptr.size(0) - 1, *val.shape[1:]))


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, adj: CSR, val: Tensor, number: int) -> Tensor:
        ctx.adj = adj
        try:
            y: Tensor = ops._rowsum(adj.ptr, adj.idx, adj.eid, adj.plan, val[:, None], number)
        except RuntimeError as error:
            raise_translated(error, val.device)
        return y[:, 0]

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[None, Tensor, None]:  # type: ignore[override]
        ones = gy.new_ones(ctx.adj.shape[1], 1)
        return None, sddmm(ctx.adj.pattern(), gy[:, None], ones), None


def rowsum(adj: Any, *, algorithm: str = "auto") -> Tensor:
    """Sums the values of a matrix's rows: ``y[i] = sum of val[p]`` over the entries p of row i.

    Args:
        adj: a ``CSR`` with values [nnz], or what ``as_csr`` takes.
        algorithm: a name from ``fusedmm.algorithms("rowsum", device)``, or "auto".

    Returns:
        y, [rows], of the values' dtype. Sums are kept in float64.

    Raises:
        ValueError: a matrix without values [nnz], or an unknown algorithm.

    Gradient: reaches the values, of any order.

    Example:
        >>> fusedmm.rowsum(fusedmm.CSR.from_coo(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0])))
        tensor([3.])
    """
    adj = as_csr(adj)
    if adj.val is None or adj.val.dim() != 1:
        raise ValueError("rowsum: adj must have values [nnz]")
    y: Tensor = _RowSum.apply(adj, adj.val, algorithm_number("rowsum", adj.val.device.type, algorithm))
    return y
