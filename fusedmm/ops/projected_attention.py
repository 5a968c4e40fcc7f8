"""Attention among linear maps of one tensor, as a single step of autograd.

    p = x W^T + b    k = v, q = p    out = attention(adj, q, k, v, score="gatv2", att=att) + added
                     k, v, q = p     out = attention(adj, q, k, v, scale=scale) + added
                     k, v, q, skip = p                                  the same + skip

One product gives all maps side by side. Attention reads them there, and leaves their gradients in the same layout for
the product's own gradients. That is one call of the library forward and one backward
(csrc/attention/torch_attend_maps.c). In parts it would be a dozen calls of torch, whose host time is most of what a
small graph costs. Where a gradient is itself differentiated, it is computed by the formula above.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from fusedmm._lib import ops
from fusedmm.matrix.csr import CSR
from fusedmm.ops import attention as base
from fusedmm.ops.attention import DOT, GATV2, Options
from fusedmm.ops.attention_operands import Optional
from fusedmm.ops.autograd import Step
from fusedmm.ops.checks import is_mixed, needs_rules, require_dense
from fusedmm.ops.spmm_sddmm import gradients, run

_attend: Any = ops._attend_maps.default
_attend_back: Any = ops._attend_maps_back.default


class Call(NamedTuple):
    """Holds the part of a call that is no tensor."""

    adj: CSR
    scale: float
    slope: float
    dropout: float
    heads: int
    maps: int

    def split(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor, Optional]:
        """Returns q, k, v, [n, H, C], and skip, [n, H * C], of p."""
        k, *others = p.view(p.shape[0], self.maps, self.heads, -1).unbind(1)
        v, q, *skip = others if self.maps > 2 else (k, *others)
        return q, k, v, skip[0].flatten(1) if skip else None


def attend_maps(call: Call, x: Tensor, weight: Tensor, bias: Optional, att: Optional, added: Optional) -> Tensor:
    """Attends from each row to the columns of its entries, with linear maps of x as q, k and v; heads lie side by side.

    Args:
        call: adj is [n, n], without values; slope is of the scores of two maps, scale of those of three or four.
        x: floating, [n, F].
        weight: [maps * H * C, F], of k and v (which are one of two maps), q and what is added, in this order.
        bias: [maps * H * C] or None.
        att: [1, H, C] for two maps, else None.
        added: [H * C] or None, and None for four maps.

    Returns:
        out, [n, H * C], of x's dtype.

    Raises:
        TypeError, ValueError: as ``attention``.

    Gradient: reaches all tensors, of any order.
    """
    given = (x, weight, bias, att, added)
    if needs_rules(*given) or is_mixed(*given):
        q, k, v, skip = call.split(linear(x, weight, bias))
        options: dict[str, Any] = {"scale": call.scale} if att is None else {"score": "gatv2", "att": att}
        out: Any = base.attention(call.adj, q, k, v, slope=call.slope, dropout=call.dropout, **options)
        return _sum(out.flatten(1), skip, added)
    require_dense("attention", "x", x, call.adj, call.adj.n_cols, "columns")
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if call.dropout else None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        result: Tensor = MapsAttention.apply(call, *given, seed)
        return result
    return _forward(call, linear(x, weight, bias), att, seed, added, False)[0]


def _sum(out: Tensor, *others: Optional) -> Tensor:
    for t in others:
        out = out if t is None else out + t
    return out


def _forward(o: Call, p: Tensor, att: Optional, seed: Optional, added: Optional, whole: bool) -> tuple[Tensor, ...]:
    """Returns out, and bytes that the gradient reads beside it, in one tensor, or several of a matrix that ranks share:
    complete where ``whole``, and with the out before anything was added to it."""
    adj, *numbers = o
    none = adj.none
    found: tuple[Tensor, ...] = run(
        _attend, p, adj.ptr, adj.idx, adj.eid, adj.plan, p, none if att is None else att,
        none if seed is None else seed, none if added is None else added, *numbers, whole,
    )  # fmt: skip
    return found


class MapsAttention(Step):
    """Computes ``attend_maps`` as a step of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        o: Call,
        x: Tensor,
        weight: Tensor,
        bias: Optional,
        att: Optional,
        added: Optional,
        seed: Optional,
    ) -> Tensor:
        p = linear(x, weight, bias)
        out, *saved = _forward(o, p, att, seed, added, True)
        plain = added is None and o.maps < 4
        ctx.save_for_backward(x, weight, bias, att, seed, p, out if plain else None, *saved)
        ctx.o = o
        return out

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Optional, ...]:
        x, weight, bias, att, seed, p, out, *saved = ctx.saved_tensors
        o: Call = ctx.o
        adj, *numbers = o
        _, *needs, needs_added, _ = ctx.needs_input_grad
        gadded = gout.sum(0) if needs_added else None
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return None, *_differentiable(o, (x, weight, bias, att), seed, needs, gout), gadded, None
        if not any(needs):
            return None, None, None, None, None, gadded, None
        none = adj.none
        gp, gatt = run(
            _attend_back, p, adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half(), p,
            none if att is None else att, none if seed is None else seed, none if out is None else out,
            saved if len(saved) > 1 else saved[0], gout, *numbers,
        )  # fmt: skip
        return (
            None,
            gp.mm(weight) if needs[0] else None,
            gp.t().mm(x) if needs[1] else None,
            gp.sum(0) if needs[2] else None,
            gatt.sum(0, keepdim=True).to(p.dtype) if needs[3] else None,
            gadded,
            None,
        )


def _differentiable(
    o: Call, operands: tuple[Optional, ...], seed: Optional, needs: list[bool], gout: Tensor
) -> tuple[Optional, ...]:
    """Returns the gradients, computed by differentiable operations, for gradients of gradients."""
    with torch.enable_grad():
        given = [t.view_as(t) if t is not None and need else t for t, need in zip(operands, needs, strict=True)]
        x, weight, bias, att = given
        assert x is not None and weight is not None
        q, k, v, skip = o.split(linear(x, weight, bias))
        options = Options(o.adj, DOT if att is None else GATV2, o.scale, o.slope, o.dropout, 0, False)
        each = None if att is None else att[0]
        out = _sum(base.Attention.apply(options, q, k, v, each, None, None, seed)[0].flatten(1), skip)
    return gradients((out,), (gout,), given, needs)
