"""Attention among nodes by beta times the cosine of their features, as a single step of autograd.

    u = x / max(|x|, EPS)    out = attention(adj, beta u, u, x, scale=1)

With gq, gk and gv the gradients of attention's operands,

    gu = gk + beta gq    gbeta = sum of gq u    gx = gv + (gu - u <u, gu>) / |x|, without <u, gu> below EPS

In torch, the derivative of the norm and the three paths by which gradients reach x would be two dozen operations on
nodes. Where a gradient is itself differentiated, it is computed by the formula above.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import WANT_GK, WANT_GQ, WANT_GV, sums_dtype
from fusedmm.matrix.csr import CSR
from fusedmm.ops import attention as base
from fusedmm.ops.attention import DOT, Options
from fusedmm.ops.attention_operands import Operands
from fusedmm.ops.autograd import Step
from fusedmm.ops.checks import needs_rules, normalize, require_dense
from fusedmm.ops.spmm_sddmm import gradients, run, widened

EPS = 1e-12  # as torch's normalize has it


def attend_cosine(adj: CSR, x: Tensor, beta: Tensor) -> Tensor:
    """Attends from each row to the columns of its entries, with beta times cosines of x as scores.

    Args:
        adj: [n, n], without values.
        x: floating, [n, F].
        beta: [1].

    Returns:
        out, [n, F], of x's dtype.

    Raises:
        TypeError, ValueError: as ``attention``.

    Gradient: reaches x and beta, of any order.
    """
    if beta.dtype != x.dtype or torch.compiler.is_compiling() or needs_rules(x, beta):
        unit = normalize(x)
        result: Any = base.attention(adj, beta * unit, unit, x, scale=1.0)
        return result
    require_dense("attention", "x", x, adj, adj.n_cols, "columns")
    o = Options(adj, DOT, 1.0, 0.0, 0.0, 0, False)
    if torch.is_grad_enabled() and (x.requires_grad or beta.requires_grad):
        return CosineAttention.apply(o, x, beta)
    return _forward(o, x[:, None], beta)[0].view(x.shape)


def _forward(o: Options, x: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Computes out, lse and its rest, beta u, u and the lengths that x [n, 1, F] was divided by."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=sums_dtype(x)).clamp_min_(EPS)
    unit = (x / length).to(x.dtype)
    q = beta * unit
    out, *lses, _, _ = base.forward(o, Operands(q, unit, x, None, None, None, None))
    return out, *lses, q, unit, length


class CosineAttention(Step):
    """Computes ``attend_cosine`` as a step of autograd."""

    @staticmethod
    def forward(ctx: Any, o: Options, x: Tensor, beta: Tensor) -> Tensor:
        found = _forward(o, x[:, None], beta)
        ctx.save_for_backward(x, beta, *found)
        ctx.o = o
        return found[0].view(x.shape)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        saved = (*ctx.saved_tensors, gout)  # asked for once, as checkpoints want it
        x, beta, *_ = saved
        o, needs = ctx.o, ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *_differentiable(o, x, beta, needs, gout)
        dtype = x.dtype
        # The gradient of u may be no number of 16 bits where that of x, by its length, is one.
        x, beta, out, *lses, q, unit, length, gout = saved if dtype == sums_dtype(x) else widened(*saved)
        gout, none = gout[:, None], o.adj.none
        operands = Operands(q, unit, x[:, None], None, None, None, None)

        def along(a: Tensor, b: Tensor) -> Tensor:
            """Returns <a, b> of each node, [n, 1]."""
            return run(base.row_sums, a, a, b, none, none, none, none, none, none, o.slope)[0]

        delta = along(gout, out)
        gq = base.backward_rows(o, operands, lses, delta, gout, WANT_GQ)[0]
        gbeta = along(gq, unit).sum(0).to(dtype) if needs[1] else None
        if not needs[0]:
            return None, None, gbeta
        gk, gv = base.backward_cols(o, operands, lses, delta, gout, WANT_GK | WANT_GV)
        gunit = gk.addcmul_(gq, beta)
        del gq  # memory peaks here
        radial = along(gunit, unit)[..., None].mul_(length > EPS)
        gx = gunit.addcmul_(unit, radial, value=-1).div_(length).add_(gv)[:, 0]
        return None, gx.to(dtype), gbeta


def _differentiable(
    o: Options, x: Tensor, beta: Tensor, needs: tuple[bool, ...], gout: Tensor
) -> tuple[Tensor | None, ...]:
    """Returns the gradients, computed by differentiable operations, for gradients of gradients."""
    with torch.enable_grad():
        given = [t.view_as(t) if need else t for t, need in zip((x, beta), needs, strict=True)]
        wide = given[0][:, None]
        unit = normalize(wide)
        out = base.Attention.apply(o, given[1] * unit, unit, wide, None, None, None, None)[0].squeeze(1)
    return gradients((out,), (gout,), given, needs)
