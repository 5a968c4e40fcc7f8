"""Attention with additive scores of one projected tensor, as a single step of autograd.

    k[j,h] = <att_k[h], x[j,h]>   q[i,h] = <att_q[h], x[i,h]>   out = attention(adj, q, k, x, score="additive")

Written with torch this is a dozen small products and sums per step beside attention itself. Their host time is most of
what a small graph costs, and each reads x once more. Here they are three passes over the nodes
(csrc/attention/node_sums.c), in one call of the library forward and one backward, which compute attention as well. The
projection that makes x belongs to the step too, since torch's own would be two more steps of autograd. Where a gradient
is itself differentiated, it is computed by the formula above.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from fusedmm._lib import ops
from fusedmm.matrix.csr import CSR
from fusedmm.ops import attention as base
from fusedmm.ops.attention import ADDITIVE, Options
from fusedmm.ops.autograd import Step
from fusedmm.ops.checks import is_mixed, needs_rules, require_dense
from fusedmm.ops.spmm_sddmm import gradients, run

Call = tuple[CSR, float, float]  # the matrix, slope and dropout

_scores: Any = ops._node_scores.default
_attend: Any = ops._attend_self.default
_attend_back: Any = ops._attend_self_back.default


def attend_self(
    adj: CSR,
    x: Tensor,
    weight: Tensor | None,
    att_k: Tensor,
    att_q: Tensor,
    bias: Tensor | None,
    slope: float,
    dropout: float,
) -> Tensor:
    """Attends from each row to the columns of its entries, with scores computed from x; heads lie side by side.

    Args:
        adj: [n, n], without values.
        x: floating, [n, H * C], or [n, F] with a weight.
        weight: [H * C, F], which x is projected by first, or None.
        att_k, att_q: [1, H, C], of the columns' and of the rows' scores.
        bias: [H * C], added to the result, or None.
        slope, dropout: as of ``attention``.

    Returns:
        out, [n, H * C], of x's dtype.

    Raises:
        TypeError, ValueError: as ``attention``.
    """
    rules = needs_rules(x, weight, att_k, att_q, bias)
    if weight is not None and (rules or is_mixed(x, weight, att_k, att_q, bias)):
        x, weight = linear(x, weight), None
    if weight is None and (rules or is_mixed(x, att_k, att_q, bias)):
        heads = x.view(x.shape[0], *att_k.shape[1:])
        k, q = self_scores(heads, att_k, att_q)
        out = base.attention(adj, q, k, heads, score="additive", slope=slope, dropout=dropout)
        assert isinstance(out, Tensor)
        return out.flatten(1) if bias is None else out.flatten(1) + bias
    require_dense("attention", "x", x, adj, adj.n_cols, "columns")
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if dropout else None
    if torch.is_grad_enabled():
        scores = x.requires_grad or att_k.requires_grad or att_q.requires_grad
        scores = scores or (weight is not None and weight.requires_grad)
        if scores or (bias is not None and bias.requires_grad):
            result: Tensor = SelfAttention.apply((adj, slope, dropout), scores, x, weight, att_k, att_q, bias, seed)
            return result
    x = x if weight is None else linear(x, weight)
    return _forward((adj, slope, dropout), x, att_k, att_q, bias, seed, False)[0]


def self_scores(x: Tensor, att_k: Tensor, att_q: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the scores k and q [n, H] of x [n, H, C], bit by bit those of ``attend_self``; differentiable to any
    order."""
    if needs_rules(x, att_k, att_q) or is_mixed(x, att_k, att_q):
        return (x * att_k).sum(-1), (x * att_q).sum(-1)
    found: tuple[Tensor, Tensor] = Scores.apply(x, att_k, att_q)
    return found


class Scores(Step):
    """Computes ``self_scores`` as a step of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, att_k: Tensor, att_q: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, att_k, att_q)
        k, q = run(_scores, x, x, att_k, att_q)
        return k.squeeze(2), q.squeeze(2)

    @staticmethod
    def backward(ctx: Any, gk: Tensor, gq: Tensor) -> tuple[Tensor, ...]:
        x, att_k, att_q = ctx.saved_tensors
        gk, gq = gk.unsqueeze(2), gq.unsqueeze(2)
        return gk * att_k + gq * att_q, (gk * x).sum(0, keepdim=True), (gq * x).sum(0, keepdim=True)


def _forward(
    o: Call, x: Tensor, att_k: Tensor, att_q: Tensor, bias: Tensor | None, seed: Tensor | None, whole: bool
) -> tuple[Tensor, ...]:
    """Returns out, and bytes that the gradient reads beside it: one tensor, or several of a matrix that ranks share.
    These are complete where ``whole``; with a bias they hold out without the bias too."""
    adj, slope, dropout = o
    none = adj.none
    found: tuple[Tensor, ...] = run(
        _attend, x, adj.ptr, adj.idx, adj.eid, adj.plan, x, att_k, att_q, none if seed is None else seed,
        none if bias is None else bias, slope, dropout, whole,
    )  # fmt: skip
    return found


class SelfAttention(Step):
    """Computes ``attend_self`` as a step of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        o: Call,
        whole: bool,
        x: Tensor,
        weight: Tensor | None,
        att_k: Tensor,
        att_q: Tensor,
        bias: Tensor | None,
        seed: Tensor | None,
    ) -> Tensor:
        projected = x if weight is None else linear(x, weight)
        out, *saved = _forward(o, projected, att_k, att_q, bias, seed, whole)
        ctx.save_for_backward(x, weight, att_k, att_q, seed, projected, out if bias is None else None, *saved)
        ctx.o = o
        return out

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, att_k, att_q, seed, projected, out, *saved = ctx.saved_tensors
        o: Call = ctx.o
        adj, slope, dropout = o
        _, _, *needs, needs_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            gbias = gout.sum(0) if needs_bias else None
            return None, None, *_differentiable(o, (x, weight, att_k, att_q), seed, needs, gout), gbias, None
        if not any(needs):
            return None, None, None, None, None, None, gout.sum(0), None
        none = adj.none
        gx, gatt_k, gatt_q, gbias = run(
            _attend_back, x, *adj.transpose_half(), projected, att_k, att_q, none if seed is None else seed,
            none if out is None else out, saved if len(saved) > 1 else saved[0], gout, slope, dropout, needs_bias,
        )  # fmt: skip
        gweight = None
        if weight is not None:
            gweight = gx.t().mm(x) if needs[1] else None
            gx = gx.mm(weight) if needs[0] else None
        return None, None, gx, gweight, gatt_k, gatt_q, gbias if needs_bias else None, None


def _differentiable(
    o: Call, operands: tuple[Tensor | None, ...], seed: Tensor | None, needs: list[bool], gout: Tensor
) -> tuple[Tensor | None, ...]:
    """Returns the gradients, computed by differentiable operations, for gradients of gradients."""
    with torch.enable_grad():
        given = [t.view_as(t) if t is not None and need else t for t, need in zip(operands, needs, strict=True)]
        x, weight, att_k, att_q = given
        assert x is not None and att_k is not None
        heads = (x if weight is None else linear(x, weight)).view(x.shape[0], *att_k.shape[1:])
        k, q = Scores.apply(heads, att_k, att_q)
        adj, slope, dropout = o
        options = Options(adj, ADDITIVE, 1.0, slope, dropout, 0, True)
        out, _ = base.Attention.apply(options, q, k, heads, None, None, None, seed)
    return gradients((out,), (gout.reshape(out.shape),), given, needs)
