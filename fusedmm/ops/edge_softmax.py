"""Softmax over each row's entries of numbers that the caller has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.adapters import operand
from fusedmm.matrix.arguments import FLOATS, require_strided
from fusedmm.matrix.csr import CSR
from fusedmm.ops.checks import autocast, require_pattern
from fusedmm.ops.row_softmax import softmax


def edge_softmax(adj: Any, logits: Tensor) -> Tensor:
    """Normalises numbers of entries over each row: ``w[p] = exp(logits[p]) / sum of exp(logits) in p's row``.

    Args:
        adj: a ``CSR`` without values, or what ``as_csr`` takes, without values too: the formula has none. Of a
            holder that always has some (scipy's, a torch sparse tensor) give ``as_csr(adj).pattern()``; where
            they are the logits, give them as ``logits``.
        logits: float32, float64, float16 or bfloat16, [nnz], [nnz, heads] or [nnz, heads, 1], in the caller's edge
            order.

    Returns:
        w, like logits. Any size of logits is fine; a row of nothing but -inf gives 0.

    Raises:
        TypeError: wrong types or devices.
        ValueError: another shape, a malformed matrix, or one with values.

    Gradient: reaches logits, of any order.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(2, 2))
        >>> fusedmm.edge_softmax(A, torch.tensor([0., 0., 5.]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    given, adj = adj, adj if type(adj) is CSR else operand("edge_softmax", "adj", adj)
    require_pattern("edge_softmax", "the formula names no values", adj, given)
    require_logits("edge_softmax", "logits", logits, adj)
    logits = autocast(logits)
    if logits.dim() == 1:
        return softmax(adj, logits[:, None])[:, 0]
    return softmax(adj, logits) if logits.dim() == 2 else softmax(adj, logits[..., 0])[..., None]


def require_logits(op: str, name: str, x: Tensor, adj: CSR) -> None:
    """x is a floating tensor [nnz], [nnz, heads] or [nnz, heads, 1] on the matrix's device.

    Raises:
        TypeError: not a tensor, a dtype without a kernel, another device.
        ValueError: another shape.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, not {type(x).__name__}")
    if x.dtype not in FLOATS:
        hint = "; attention takes masks as mask=" if x.dtype == torch.bool else ""
        raise TypeError(f"{op}: {name} must be float32, float64, float16 or bfloat16, not {x.dtype}{hint}")
    require_strided(f"{op}: {name}", x)
    if x.device != adj.ptr.device:
        raise TypeError(f"{op}: {name} is on {x.device}, the matrix on {adj.ptr.device}")
    if x.dim() not in (1, 2, 3) or x.shape[0] != adj.nnz or (x.dim() == 3 and x.shape[2] != 1):
        raise ValueError(f"{op}: {name} must be [{adj.nnz}] or [{adj.nnz}, heads], not {list(x.shape)}")
