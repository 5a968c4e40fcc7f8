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


def attend_self(
    adj: CSR, x: Tensor, att_k: Tensor, att_q: Tensor, bias: Tensor | None, slope: float, dropout: float
) -> Tensor:
    """What each row gathers of x, all heads side by side.

    Args:
        adj: [n, n]; values are not used.
        x: floating, [n, H * C].
        att_k, att_q: [1, H, C], of the columns' and of the rows' scores.
        bias: [H * C], added to the result, or None.
        slope, dropout: as of ``attention``.

    Returns:
        out, [n, H * C], of x's dtype.

    Raises:
        TypeError, ValueError: as ``attention``.
    """
    refuse_rules("attention", x, att_k, att_q)
    if _mixed(x, att_k, att_q, bias):
        heads = x.view(x.shape[0], *att_k.shape[1:])
        k, q = self_scores(heads, att_k, att_q)
        out = base.attention(adj.pattern(), q, k, heads, score="additive", slope=slope, dropout=dropout)
        assert isinstance(out, Tensor)
        return out.flatten(1) if bias is None else out.flatten(1) + bias
    require_dense("attention", "x", x, adj, adj.n_cols, "columns")
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if dropout else None
    learns = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (x, att_k, att_q, bias)]
    o = Options(adj, ADDITIVE, 1.0, slope, dropout, 0, any(learns[:3]))
    if any(learns):
        result: Tensor = SelfAttention.apply(o, x, att_k, att_q, bias, seed)
        return result
    return _biased(_forward(o, x, att_k, att_q, seed)[0], x, bias)


def self_scores(x: Tensor, att_k: Tensor, att_q: Tensor) -> tuple[Tensor, Tensor]:
    """k and q of x [n, H, C], [n, H], in the bits that ``attend_self`` has; of any order."""
    if _mixed(x, att_k, att_q):
        return (x * att_k).sum(-1), (x * att_q).sum(-1)
    k, q = Scores.apply(x, att_k, att_q)
    return k.squeeze(-1), q.squeeze(-1)


def _mixed(x: Tensor, *others: Tensor | None) -> bool:
    """Whether operands are of several dtypes, or autocast makes them so: torch promotes what is multiplied."""
    return torch.is_autocast_enabled(x.device.type) or any(t is not None and t.dtype != x.dtype for t in others)


class Scores(torch.autograd.Function):
    """``self_scores``, [n, H, 1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, att_k: Tensor, att_q: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, att_k, att_q)
        found: tuple[Tensor, Tensor] = run(_scores, x, x, att_k, att_q)
        return found

    @staticmethod
    def backward(ctx: Any, gk: Tensor, gq: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, att_k, att_q = ctx.saved_tensors
        return gk * att_k + gq * att_q, (gk * x).sum(0, keepdim=True), (gq * x).sum(0, keepdim=True)


def _biased(out: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    return out.view(x.shape) if bias is None else out.view(x.shape) + bias


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
    def forward(
        ctx: Any, o: Options, x: Tensor, att_k: Tensor, att_q: Tensor, bias: Tensor | None, seed: Tensor | None
    ) -> Tensor:
        out, operands, kept = _forward(o, x, att_k, att_q, seed)
        ctx.save_for_backward(x, att_k, att_q, seed, operands.k, operands.q, out, *kept)
        ctx.o = o
        return _biased(out, x, bias)

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, att_k, att_q, seed, k, q, out, lse, pos, pos_w = ctx.saved_tensors
        o: Options = ctx.o
        needs = ctx.needs_input_grad[1:5]
        gbias = None
        if not any(needs[:3]):
            return None, None, None, None, gout.sum(0), None
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            gbias = gout.sum(0) if needs[3] else None
            return None, *_differentiable(o, x, att_k, att_q, seed, needs[:3], gout), gbias, None
        heads, gout, none = x.view(out.shape), gout.reshape(out.shape), o.adj.none
        delta, gq = run(base.row_sums, x, gout, out, lse, none, pos, pos_w, o.slope)
        operands = Operands(q, k, heads, None, None, None, seed)
        gk, gv = base.backward_cols(o, operands, lse, delta, gout, 3)
        gx, parts = run(_spread, x, heads, att_k, att_q, gk, gq, gv, gout if needs[3] else none)
        gatt_k, gatt_q, *rest = parts.sum(0, keepdim=True, dtype=x.dtype).split(out.shape[1], 1)
        if needs[3]:
            gbias = rest[0].reshape(-1)
        return None, gx.view(x.shape), gatt_k, gatt_q, gbias, None


def _differentiable(
    o: Options, x: Tensor, att_k: Tensor, att_q: Tensor, seed: Tensor | None, needs: tuple[bool, ...], gout: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients as a graph of their own."""
    with torch.enable_grad():
        given = [t.view_as(t) if need else t for t, need in zip((x, att_k, att_q), needs, strict=True)]
        heads = given[0].view(x.shape[0], *att_k.shape[1:])
        k, q = Scores.apply(heads, *given[1:])
        out, _ = base.Attention.apply(o, q, k, heads, None, None, None, seed)
    wanted = [t for t, need in zip(given, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, gout.view(out.shape), create_graph=True))
    return tuple(next(found) if need else None for need in needs)
