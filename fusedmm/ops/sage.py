"""Neighbours' sums or means, mapped, beside a map of each row's own features, as a single step of autograd.

    s = A x    out = s W^T + b + t V^T        A without values, or its mean over each row's entries

    gx = A^T (g W)    gt = g V    gW = g^T s    gV = g^T t    gb = sum of g's rows

Written with torch this is three steps of autograd forward and as many backward, whose host time is most of what
a small graph costs. As one, t V^T is added where the first product stands, and so is gt to gx where t is x.
Where a gradient is itself differentiated, it is taken through the formula above.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from fusedmm._lib import REDUCTIONS
from fusedmm.csr import CSR
from fusedmm.ops.operands import is_mixed, needs_rules, require_dense
from fusedmm.ops.pair import spmm_back, spmm_run
from fusedmm.ops.spmm import spmm

Optional = Tensor | None
ONE_STEP = ("sum", "mean")


def convolve(
    adj: CSR, reduce: str, x: Tensor, target: Optional, weight: Tensor, bias: Optional, own: Optional
) -> Tensor:
    """The result above.

    Args:
        adj: A, [rows, cols], without values.
        reduce: one of ``ONE_STEP``.
        x: floating, [cols, F].
        target: t, [rows, E], or None where it is x.
        weight: W, [G, F].
        bias: b, [G], or None.
        own: V, [G, E], or None where t has no part.

    Returns:
        out, [rows, G].

    Raises:
        TypeError, ValueError: as ``spmm``.

    Gradient: reaches all tensors, of any order; until then x and t must not be written to.
    """
    given = (x, target, weight, bias, own)
    if needs_rules(*given) or is_mixed(*given):
        return _in_parts(adj, reduce, *given)
    require_dense("spmm", "x", x, adj, adj.n_cols, "columns")
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        result: Tensor = Convolution.apply(adj, reduce, *given)
        return result
    return _forward(adj, reduce, *given)[0]


def _in_parts(
    adj: CSR, reduce: str, x: Tensor, target: Optional, weight: Tensor, bias: Optional, own: Optional
) -> Tensor:
    """By torch's own steps of autograd."""
    out = linear(spmm(adj, x, reduce=reduce), weight, bias)
    return out if own is None else out + linear(x if target is None else target, own)


def _forward(
    adj: CSR, reduce: str, x: Tensor, target: Optional, weight: Tensor, bias: Optional, own: Optional
) -> tuple[Tensor, Tensor]:
    """out and s."""
    s = spmm_run(adj, False, None, x, REDUCTIONS[reduce], 0)
    out = linear(s, weight, bias)
    return out if own is None else out.addmm_(x if target is None else target, own.t()), s


class Convolution(torch.autograd.Function):
    """``convolve``."""

    @staticmethod
    def forward(
        ctx: Any, adj: CSR, reduce: str, x: Tensor, target: Optional, weight: Tensor, bias: Optional, own: Optional
    ) -> Tensor:
        out, s = _forward(adj, reduce, x, target, weight, bias, own)
        ctx.save_for_backward(x, target, weight, bias, own, s)
        ctx.adj, ctx.reduce = adj, reduce
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Optional, ...]:  # type: ignore[override]
        x, target, weight, bias, own, s = ctx.saved_tensors
        adj, reduce = ctx.adj, ctx.reduce
        _, _, *needs = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return None, None, *_differentiable(adj, reduce, (x, target, weight, bias, own), needs, g)
        of_x, of_target, of_weight, of_bias, of_own = needs
        gx = spmm_back(adj, g.mm(weight), REDUCTIONS[reduce]) if of_x else None
        if gx is not None and own is not None and target is None:
            gx.addmm_(g, own)
        across = g.t()
        return (
            None,
            None,
            gx,
            g.mm(own) if of_target else None,
            across.mm(s) if of_weight else None,
            g.sum(0) if of_bias else None,
            across.mm(x if target is None else target) if of_own else None,
        )


def _differentiable(
    adj: CSR, reduce: str, operands: tuple[Optional, ...], needs: list[bool], g: Tensor
) -> tuple[Optional, ...]:
    """The gradients as a graph of their own."""
    with torch.enable_grad():
        given: Any = [t.view_as(t) if t is not None and need else t for t, need in zip(operands, needs, strict=True)]
        out = _in_parts(adj, reduce, *given)
    wanted = [t for t, need in zip(given, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, g, create_graph=True))
    return tuple(next(found) if need else None for need in needs)
