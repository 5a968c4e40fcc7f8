"""What each operator means, in a few lines of plain torch: the documentation, and the tests' oracle.

They gather nnz x heads x F numbers, compute in the operands' dtype (give float64 for an oracle) and
are differentiable by torch alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fusedmm._lib import sums_dtype
from fusedmm.matrix.csr import CSR


def spmm(adj: CSR, x: Tensor, reduce: str = "sum") -> Tensor:
    """y[i] = reduce over row i's entries p of val[p] * x[col[p]]; 0 for a row without entries."""
    row, col, val = adj.coo()
    terms = x[col]
    if val is not None:
        terms = terms * val.to(x.dtype).reshape(*val.shape, *[1] * (terms.dim() - val.dim()))
    return spmm_terms(adj, row, terms, reduce)


def spmm_terms(adj: CSR, row: Tensor, terms: Tensor, reduce: str) -> Tensor:
    """Reduces one term per entry, in the caller's edge order, over the entries of each row."""
    y = terms.new_zeros(adj.shape[0], *terms.shape[1:])
    if reduce in ("sum", "mean"):
        y = y.index_add(0, row, terms)
        if reduce == "sum":
            return y
        entries = adj.degree().clamp(min=1).to(sums_dtype(y))
        return (y / entries.view(-1, *[1] * (y.dim() - 1))).to(y.dtype)
    index = row.view(-1, *[1] * (terms.dim() - 1)).expand_as(terms)
    worst = float("-inf") if reduce == "max" else float("inf")  # not 0, which would count as a tie
    y = torch.full_like(y, worst).scatter_reduce(0, index, terms, {"max": "amax", "min": "amin"}[reduce])
    return y.masked_fill((adj.degree() == 0).view(-1, *[1] * (y.dim() - 1)), 0)


def sddmm(adj: CSR, a: Tensor, b: Tensor) -> Tensor:
    """e[p] = val[p] * <a[row[p]], b[col[p]]>."""
    row, col, val = adj.coo()
    e = (a[row] * b[col]).sum(-1)
    if val is None:
        return e
    return e * val.to(e.dtype).reshape(*val.shape, *[1] * (e.dim() - val.dim()))


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Returns x[index] with a gradient of the same bits every time: what indexing adds by atomics on a CPU index_select
    adds in order, and the other way round on a GPU."""
    return x[index] if x.is_cuda else x.index_select(0, index)


def fused(
    adj: CSR,
    x: Tensor,
    y: Tensor,
    z: Tensor,
    w: Callable[[Tensor, Tensor], Tensor],
    score: str = "dot",
    message: str = "scale",
    activation: str | None = None,
    reduce: str = "sum",
) -> Tensor:
    """out[i] = reduce over row i's entries of w(score, val[p]) * activation(message)."""
    row, col, val = adj.coo()
    xi, yj, zj = _rows(x, row), _rows(y, col), _rows(z, col)
    s = {
        "none": lambda: xi.new_ones(xi.shape[:-1]),
        "dot": lambda: (xi * yj).sum(-1),
        "sqdist": lambda: ((xi - yj) ** 2).sum(-1),
        "l1": lambda: (xi - yj).abs().sum(-1),
        "additive": lambda: (xi + yj).squeeze(-1),
    }[score]()
    a = s.new_ones(()) if val is None else val.to(s.dtype).reshape(*val.shape, *[1] * (s.dim() - val.dim()))
    m = {
        "scale": lambda: zj,
        "add": lambda: xi + yj,
        "sub": lambda: xi - yj,
        "mul": lambda: xi * yj,
        "max": lambda: torch.maximum(xi, yj),
        "min": lambda: torch.minimum(xi, yj),
    }[message]()
    if activation is not None:
        m = getattr(torch.nn.functional, activation)(m)
    weight = w(s, a)
    return spmm_terms(adj, row, weight.unsqueeze(-1) * m, reduce)


def dense(adj: CSR) -> Tensor:
    """Returns the matrix in float64, entries added up."""
    val = torch.ones(adj.nnz, device=adj.device) if adj.val is None else adj.val.double()
    return adj.with_values(val).to_dense().double()
