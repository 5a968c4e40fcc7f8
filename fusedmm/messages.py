"""Messages with features of edges under the names of ``dgl.ops``: shortcuts of ``gspmm`` and ``gsddmm``.

- ``u_add_e_sum(adj, x, e)`` and its like, of u_{add, sub, mul, div}_e_{sum, mean, max, min}: messages of x at the
  sources and e at the edges, reduced to the targets; ``copy_u_sum(adj, x)`` and ``copy_e_sum(adj, e)``, of one operand,
  with the same four reductions. All are ``gspmm``.
- ``u_add_v(adj, lhs, rhs)`` and its like, of two of the targets u, v and e and one of add, sub, mul, div and dot, and
  ``copy_u(adj, x)`` and ``copy_v(adj, x)``: numbers of edges. All are ``gsddmm``.
- ``scatter_add``, ``scatter_softmax`` and ``segment``: what torch_scatter calls so, over the targets of a graph.

u are the columns of the matrix (the sources), v its rows (the targets), e its entries in the caller's order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fusedmm._lib import REDUCTIONS
from fusedmm.matrix.adapters import operand
from fusedmm.matrix.csr import CSR
from fusedmm.ops.edge_softmax import edge_softmax
from fusedmm.ops.gspmm import COMBINATIONS, gsddmm, gspmm

Shortcut = Callable[..., Tensor]


def scatter_add(adj: Any, e: Tensor) -> Tensor:
    """Sums features of edges over the edges of each target.

    Args:
        adj: a ``CSR`` [rows, cols] without values, or what ``as_csr`` takes.
        e: [nnz, ...] in the caller's edge order.

    Returns:
        [rows, ...]; 0 where no edge is.

    Raises:
        TypeError, ValueError: as ``gspmm``.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(3, 2))
        >>> fusedmm.messages.scatter_add(A, torch.tensor([1., 2., 3.]))
        tensor([3., 3., 0.])
    """
    return segment(adj, e)


def segment(adj: Any, e: Tensor, reduce: str = "sum") -> Tensor:
    """Reduces features of edges over the edges of each target.

    Args:
        adj: a ``CSR`` [rows, cols] without values, or what ``as_csr`` takes.
        e: [nnz, ...] in the caller's edge order.
        reduce: "sum" (or "add"), "mean", "max" or "min".

    Returns:
        [rows, ...]; 0 where no edge is.

    Raises:
        TypeError, ValueError: as ``gspmm``.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(3, 2))
        >>> fusedmm.messages.segment(A, torch.tensor([1., 2., 3.]), "max")
        tensor([2., 3., 0.])
    """
    if not isinstance(reduce, str) or reduce not in (*REDUCTIONS, "add"):
        raise ValueError(f"segment: reduce must be one of add, {', '.join(REDUCTIONS)}, not {reduce!r}")
    return gspmm(adj, "copy_rhs", reduce, None, e)


def scatter_softmax(adj: Any, e: Tensor) -> Tensor:
    """Normalises numbers of edges over the edges of each target, each feature by itself: ``fusedmm.edge_softmax``.

    Args:
        adj: a ``CSR`` [rows, cols] without values, or what ``as_csr`` takes.
        e: [nnz, ...] in the caller's edge order, with features of any number of axes.

    Returns:
        Like e; each target's add up to one.

    Raises:
        TypeError, ValueError: as ``edge_softmax``.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(2, 2))
        >>> fusedmm.messages.scatter_softmax(A, torch.tensor([0., 0., 5.]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    adj = adj if type(adj) is CSR else operand("scatter_softmax", "adj", adj)
    if not isinstance(e, Tensor) or e.dim() < 3:
        return edge_softmax(adj, e)
    return edge_softmax(adj, e.flatten(1)).reshape(e.shape)


def _reducing(op: str, reduce: str) -> Shortcut:
    if op == "copy_lhs":
        return lambda adj, x: gspmm(adj, op, reduce, x)
    if op == "copy_rhs":
        return lambda adj, e: gspmm(adj, op, reduce, None, e)
    return lambda adj, x, e: gspmm(adj, op, reduce, x, e)


def _keeping(op: str, lhs_target: str, rhs_target: str) -> Shortcut:
    return lambda adj, lhs, rhs: gsddmm(adj, op, lhs, rhs, lhs_target, rhs_target)


def _copying(target: str) -> Shortcut:
    return lambda adj, x: gsddmm(adj, "copy_lhs", x, None, target)


def _shortcuts() -> dict[str, Shortcut]:
    found = {f"copy_{target}": _copying(target) for target in ("u", "v")}
    for reduce in REDUCTIONS:
        found |= {f"u_{op}_e_{reduce}": _reducing(op, reduce) for op in COMBINATIONS}
        found[f"copy_u_{reduce}"] = _reducing("copy_lhs", reduce)
        found[f"copy_e_{reduce}"] = _reducing("copy_rhs", reduce)
    for (lhs, rhs), op in itertools.product(itertools.permutations("uve", 2), (*COMBINATIONS, "dot")):
        found[f"{lhs}_{op}_{rhs}"] = _keeping(op, lhs, rhs)
    for name, shortcut in found.items():
        shortcut.__name__ = shortcut.__qualname__ = name
        shortcut.__doc__ = f"``{name}`` of ``dgl.ops``; see ``fusedmm.messages``."
    return found


SHORTCUTS = _shortcuts()
__all__ = ["SHORTCUTS", "gsddmm", "gspmm", "scatter_add", "scatter_softmax", "segment", *sorted(SHORTCUTS)]


def __getattr__(name: str) -> Shortcut:
    """The shortcut of this name."""
    if name not in SHORTCUTS:
        raise AttributeError(f"module 'fusedmm.messages' has no attribute {name!r}")
    return SHORTCUTS[name]


def __dir__() -> list[str]:
    """The public names alone, without the modules that importing them leaves here."""
    return sorted(__all__)
