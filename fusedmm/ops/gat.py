"""Attention with additive scores of one projected tensor, as a single step of autograd.

    k[j,h] = <att_k[h], x[j,h]>   q[i,h] = <att_q[h], x[i,h]>   out = attention(adj, q, k, x, score="additive")

Written with torch this is a dozen small products and sums per step beside attention itself: their host time
is most of what a small graph costs, and each passes over x once more. Here they are three passes over nodes
(csrc/gat.c). Where a gradient is itself differentiated, it is taken through the formula above.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.csr import CSR
from fusedmm.ops import attention as base
from fusedmm.ops.attention import ADDITIVE, Operands, Options
from fusedmm.ops.operands import refuse_rules, require_dense
from fusedmm.ops.pair import run

_scores: Any = ops._gat_scores.default
_spread: Any = ops._gat_spread.default


def attend_self(adj: CSR, x: Tensor, att_k: Tensor, att_q: Tensor, slope: float, dropout: float) -> Tensor:
    """What each row gathers of x, all heads side by side.

    Args:
        adj: [n, n]; values are not used.
        x: floating, [n, H * C].
        att_k, att_q: [1, H, C], of the columns' and of the rows' scores.
        slope, dropout: as of ``attention``.

    Returns:
        out, [n, H * C], of x's dtype.

    Raises:
        TypeError, ValueError: as ``attention``.
    """
    refuse_rules("attention", x, att_k, att_q)
    if torch.is_autocast_enabled(x.device.type) or att_k.dtype != x.dtype or att_q.dtype != x.dtype:
        heads = x.view(x.shape[0], *att_k.shape[1:])
        k, q = (heads * att_k).sum(-1), (heads * att_q).sum(-1)
        out = base.attention(adj.pattern(), q, k, heads, score="additive", slope=slope, dropout=dropout)
        assert isinstance(out, Tensor)
        return out.flatten(1)
    require_dense("attention", "x", x, adj, adj.n_cols, "columns")
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if dropout else None
    learns = torch.is_grad_enabled() and (x.requires_grad or att_k.requires_grad or att_q.requires_grad)
    o = Options(adj, ADDITIVE, 1.0, slope, dropout, 0, learns)
    if learns:
        result: Tensor = SelfAttention.apply(o, x, att_k, att_q, seed)
        return result
    return _forward(o, x, att_k, att_q, seed)[0].view(x.shape)


def _forward(
    o: Options, x: Tensor, att_k: Tensor, att_q: Tensor, seed: Tensor | None
) -> tuple[Tensor, Operands, tuple[Tensor, ...]]:
    heads = x.view(x.shape[0], *att_k.shape[1:])
    k, q = run(_scores, x, heads, att_k, att_q)
    operands = Operands(q, k, heads, None, None, None, seed)
    out, *kept = base.forward(o, operands)
    return out, operands, tuple(kept)


class SelfAttention(torch.autograd.Function):
    """``attend_self``."""

    @staticmethod
    def forward(ctx: Any, o: Options, x: Tensor, att_k: Tensor, att_q: Tensor, seed: Tensor | None) -> Tensor:
        out, operands, kept = _forward(o, x, att_k, att_q, seed)
        ctx.save_for_backward(x, att_k, att_q, seed, operands.k, operands.q, out, *kept)
        ctx.o = o
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, att_k, att_q, seed, k, q, out, lse, pos, pos_w = ctx.saved_tensors
        o: Options = ctx.o
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return None, *_differentiable(o, x, att_k, att_q, seed, ctx.needs_input_grad[1:4], gout), None
        heads, gout = x.view(out.shape), gout.reshape(out.shape)
        delta, gq = run(base.row_sums, x, gout, out, lse, o.adj.none, pos, pos_w, o.slope)
        operands = Operands(q, k, heads, None, None, None, seed)
        gk, gv = base.backward_cols(o, operands, lse, delta, gout, 3)
        gx, parts = run(_spread, x, heads, att_k, att_q, gk, gq, gv)
        gatt_k, gatt_q = parts.sum(0, keepdim=True, dtype=x.dtype).split(out.shape[1], 1)
        return None, gx.view(x.shape), gatt_k, gatt_q, None


def _differentiable(
    o: Options, x: Tensor, att_k: Tensor, att_q: Tensor, seed: Tensor | None, needs: tuple[bool, ...], gout: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients as a graph of their own."""
    with torch.enable_grad():
        given = [t.view_as(t) if need else t for t, need in zip((x, att_k, att_q), needs, strict=True)]
        heads = given[0].view(x.shape[0], *att_k.shape[1:])
        k, q = ((heads * att).sum(-1, keepdim=True) for att in given[1:])
        out, _ = base.Attention.apply(o, q, k, heads, None, None, None, seed)
    wanted = [t for t, need in zip(given, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, gout.view(out.shape), create_graph=True))
    return tuple(next(found) if need else None for need in needs)
