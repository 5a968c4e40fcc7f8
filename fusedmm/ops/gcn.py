"""A graph convolution's step: a map of each row's features, and the sums or means of what its neighbours' became.

    h = x W^T    out = A h + b        A with values that want no gradient, or without

    gh = A^T g    gx = gh W    gW = gh^T x    gb = sum of g's rows

Written with torch these are four steps of autograd forward and as many backward, whose host time is most of what a
small graph costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from fusedmm._lib import REDUCTIONS
from fusedmm.matrix.csr import CSR
from fusedmm.ops.autograd import Step
from fusedmm.ops.checks import is_mixed, needs_rules
from fusedmm.ops.spmm import spmm
from fusedmm.ops.spmm_sddmm import SpMM, right_side, spmm_back

Optional = Tensor | None


def propagate(adj: CSR, reduce: str, x: Tensor, weight: Tensor, bias: Optional) -> Tensor:
    """Computes ``out`` of the formula above.

    Args:
        adj: A, [rows, cols].
        reduce: "sum" or "mean".
        x: floating, [cols, F].
        weight: W, [G, F].
        bias: b, [G], or None.

    Returns:
        out, [rows, G].

    Raises:
        TypeError, ValueError: as ``spmm``.

    Gradient: reaches x, weight and bias, and adj's values, of any order.
    """
    given = (x, weight, bias)
    if needs_rules(adj.val, *given) or is_mixed(*given) or (adj.val is not None and adj.val.requires_grad):
        out = spmm(adj, linear(x, weight), reduce=reduce)
        return out if bias is None else out + bias
    right_side(adj, x)  # for what it refuses
    if torch.is_grad_enabled():
        result: Tensor = Propagation.apply(adj, REDUCTIONS[reduce], *given)
        return result
    return _forward(adj, REDUCTIONS[reduce], *given)


def _forward(adj: CSR, reduce: int, x: Tensor, weight: Tensor, bias: Optional) -> Tensor:
    out = SpMM.run((adj, False, reduce, 0), adj.val, linear(x, weight))
    return out if bias is None else out.add_(bias)


class Propagation(Step):
    """Computes ``propagate`` as a step of autograd."""

    @staticmethod
    def forward(ctx: Any, adj: CSR, reduce: int, x: Tensor, weight: Tensor, bias: Optional) -> Tensor:
        *_, of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        ctx.call = adj, reduce
        return _forward(adj, reduce, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Optional, ...]:
        x, weight = ctx.saved_tensors
        *_, of_x, of_weight, of_bias = ctx.needs_input_grad
        gx = gweight = None
        if of_x or of_weight:
            adj, reduce = ctx.call
            gh = spmm_back(adj, g, reduce)
            gx = gh.mm(weight) if of_x else None
            gweight = gh.t().mm(x) if of_weight else None
        return None, None, gx, gweight, g.sum(0) if of_bias else None
