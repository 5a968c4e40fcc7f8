"""GraphSAGE's step: a map of the sum or mean of each row's neighbours, plus a map of the row's own features.

Both are a single step of autograd:

    s = A x    out = s W^T + b + t V^T        A without values, or its mean over each row's entries

    gx = A^T (g W) = (A^T g) W    gt = g V    gW = g^T s    gV = g^T t    gb = sum of g's rows

Written with torch this is three steps of autograd forward and as many backward, whose host time is most of what
a small graph costs. As one, t V^T is added where the first product stands, and so is gt to gx where t is x.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from fusedmm._lib import REDUCTIONS
from fusedmm.matrix.csr import CSR
from fusedmm.ops.autograd import Step
from fusedmm.ops.checks import is_mixed, needs_rules, require_dense
from fusedmm.ops.spmm import spmm
from fusedmm.ops.spmm_sddmm import SpMM, spmm_back

Optional = Tensor | None
ONE_STEP = ("sum", "mean")


def convolve(
    adj: CSR, reduce: str, x: Tensor, target: Optional, weight: Tensor, bias: Optional, own: Optional
) -> Tensor:
    """Computes ``out`` of the formula above.

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

    Gradient: reaches all tensors, of any order.
    """
    given = (x, target, weight, bias, own)
    if needs_rules(*given) or is_mixed(*given):
        out = linear(spmm(adj, x, reduce=reduce), weight, bias)
        return out if own is None else out + linear(x if target is None else target, own)
    require_dense("spmm", "x", x, adj, adj.n_cols, "columns")
    if torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = Convolution.apply(adj, reduce, *given)
        return result[0]
    return _forward(adj, reduce, *given)[0]


def _forward(
    adj: CSR, reduce: str, x: Tensor, target: Optional, weight: Tensor, bias: Optional, own: Optional
) -> tuple[Tensor, Tensor]:
    """Computes out and s of the formula above, without a gradient."""
    s = SpMM.run((adj, False, REDUCTIONS[reduce], 0), None, x)
    out = linear(s, weight, bias)
    return out if own is None else out.addmm_(x if target is None else target, own.t()), s


class Convolution(Step):
    """Computes ``convolve`` as a step of autograd. It returns s too: gradients of gradients need no x, which may
    change."""

    @staticmethod
    def forward(
        ctx: Any, adj: CSR, reduce: str, x: Tensor, target: Optional, weight: Tensor, bias: Optional, own: Optional
    ) -> tuple[Tensor, Tensor]:
        out, s = _forward(adj, reduce, x, target, weight, bias, own)
        *_, of_x, of_target, of_weight, _, of_own = ctx.needs_input_grad
        features = (x if target is None else target) if of_own else None
        own = own if of_target or (of_x and target is None) else None
        ctx.save_for_backward(features, weight if of_x else None, own, s if of_weight else None)
        ctx.set_materialize_grads(False)
        ctx.call = adj, REDUCTIONS[reduce], target is None
        return out, s

    @staticmethod
    def backward(ctx: Any, g: Optional, gs: Optional) -> tuple[Optional, ...]:
        features, weight, own, s = ctx.saved_tensors
        adj, reduce, is_one = ctx.call
        *_, of_x, of_target, of_weight, of_bias, of_own = ctx.needs_input_grad
        if g is None:  # a gradient of gW alone
            gx = spmm_back(adj, gs, reduce) if of_x and gs is not None else None
            return None, None, gx, None, None, None, None
        gx = None
        if of_x:
            if gs is None and weight.shape[0] < weight.shape[1]:
                gx = spmm_back(adj, g, reduce).mm(weight)  # neighbours are read where they have the fewer numbers
            else:
                gx = spmm_back(adj, g.mm(weight) if gs is None else torch.addmm(gs, g, weight), reduce)
            if is_one and own is not None:
                gx = gx.addmm_(g, own) if gx.dtype == g.dtype else gx + g.mm(own)  # autocast's products are narrow
        across = g.t()
        return (
            None,
            None,
            gx,
            g.mm(own) if of_target else None,
            across.mm(s) if of_weight else None,
            g.sum(0) if of_bias else None,
            across.mm(features) if of_own else None,
        )
