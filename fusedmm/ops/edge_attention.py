"""Attention with edge features, which add to its logits and its values, as a single step of autograd.

    bias[p] = <projected[i], e[p]>    out, u = attention(adj, q, k, v, bias)    summed[i] = sum over p of u[p] e[p]

where u are the weights after dropout. With w and m the softmax and the mask, u = m w, the gradient of entry
p's logit is w (m (<gout, v> + <gsum, e>) - delta), delta = <gout, out> + <gsum, summed>: attention's kernels,
given this delta, lack t = u <gsum, e> alone, which is an SDDMM. Both parts of q's and k's gradients are sums
over rows or columns in a fixed order. Where a gradient is itself differentiated, it is taken through the
formula above.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import WANT_GBIAS, WANT_GK, WANT_GQ, WANT_GV, ops, sums_dtype
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import into_rows
from fusedmm.ops import attention as base
from fusedmm.ops.attention import DOT, Options
from fusedmm.ops.attention_operands import Operands
from fusedmm.ops.autograd import Step
from fusedmm.ops.checks import needs_rules, require_dense
from fusedmm.ops.row_softmax import softmax
from fusedmm.ops.sddmm import sddmm
from fusedmm.ops.spmm import spmm
from fusedmm.ops.spmm_sddmm import gradients, half, run, sddmm_half, spmm_half, widened


def attend_edges(
    adj: CSR, q: Tensor, k: Tensor, v: Tensor, projected: Tensor, attr: Tensor, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attends from each row to the columns of its entries, and to the features of the entries themselves.

    Args:
        adj: [rows, cols], without values.
        q: floating, [rows, H, F].
        k, v: [cols, H, F] and [cols, H, C].
        projected: [rows, H, D], whose product with an entry's features is added to its logit.
        attr: [nnz, D], in the caller's edge order.
        scale, dropout: as of ``attention``.

    Returns:
        out [rows, H, C] and summed [rows, H, D].

    Raises:
        TypeError, ValueError: as ``attention``.

    Gradient: reaches all five tensors, of any order.
    """
    given = (q, k, v, projected, attr)
    mixed = torch.is_autocast_enabled(v.device.type) or any(t.dtype != v.dtype for t in given)
    if mixed or torch.compiler.is_compiling() or needs_rules(*given):
        each, features = into_rows(adj), expanded(attr, q)
        bias = sddmm(each, projected, features)
        out, u = base.attention(adj, q, k, v, scale=scale, bias=bias, dropout=dropout, return_weights=True)
        return out, spmm(each.with_values(u), features)
    require_dense("attention", "q", q, adj, adj.shape[0], "rows")
    require_dense("attention", "v", v, adj, adj.n_cols, "columns")
    seed = torch.randint(2**63 - 1, (1,), device=v.device) if dropout else None
    o = Options(adj, DOT, scale, 0.0, dropout, 0, False)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        result: tuple[Tensor, Tensor] = EdgeAttention.apply(o, *given, seed)
        return result
    out, summed, *_ = _forward(o, Operands(q, k, v, None, None, None, seed), projected, attr)
    return out, summed


def expanded(attr: Tensor, q: Tensor) -> Tensor:
    """Returns attr [nnz, D] repeated for every head of q, [nnz, H, D], by a view that takes no memory."""
    return attr[:, None].expand(-1, q.shape[1], -1)


def _forward(o: Options, x: Operands, projected: Tensor, attr: Tensor) -> tuple[Tensor, ...]:
    """Computes out, summed, lse and its rest, u and the bias."""
    each, features = into_rows(o.adj), expanded(attr, x.q)
    bias = sddmm_half(each, False, None, projected, features)
    x = x._replace(bias=bias)
    out, *lses, _, _ = base.forward(o, x)
    u = _weights(o, x, lses)
    return out, spmm_half(each, False, u, features), *lses, u, bias


def _weights(o: Options, x: Operands, lses: list[Tensor]) -> Tensor:
    """Computes u, of x's dtype."""
    none = o.adj.none
    operands = (*(none if t is None else t for t in (None, x.bias, None, x.seed)), *lses)
    given = x.q, x.k, none, *operands, *base.numbers(o)
    u: Tensor = run(ops._attention_weights.default, x.q, *half(o.adj, False), *given)
    return u


class EdgeAttention(Step):
    """Computes ``attend_edges`` as a step of autograd."""

    @staticmethod
    def forward(
        ctx: Any, o: Options, q: Tensor, k: Tensor, v: Tensor, projected: Tensor, attr: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        out, summed, *others = _forward(o, Operands(q, k, v, None, None, None, seed), projected, attr)
        ctx.save_for_backward(q, k, v, projected, attr, seed, out, summed, *others)
        ctx.o = o
        return out, summed

    @staticmethod
    def backward(ctx: Any, gout: Tensor, gsum: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, projected, attr, seed, out, summed, *lses, u, bias = ctx.saved_tensors
        o, needs = ctx.o, ctx.needs_input_grad[1:6]
        if torch.is_grad_enabled():
            return None, *_differentiable(o, (q, k, v, projected, attr), seed, needs, gout, gsum), None
        dtype, x = q.dtype, Operands(q, k, v, None, bias, None, seed)
        if dtype != sums_dtype(q):  # parts of a logit's gradient may cancel: they are not rounded before
            x = base.in_sums(x)
            projected, attr, out, summed, gout, gsum = widened(projected, attr, out, summed, gout, gsum)
            u = _weights(o, x, lses)
        each, features, none = into_rows(o.adj), expanded(attr, q), o.adj.none
        delta = run(base.row_sums, gout, gout, out, none, none, none, none, none, none, 0.0)[0]
        delta = delta.add_(run(base.row_sums, gsum, gsum, summed, none, none, none, none, none, none, 0.0)[0])
        gq, _, gbias, _ = base.backward_rows(o, x, lses, delta, gout, WANT_GQ | WANT_GBIAS)
        gk, gv = base.backward_cols(o, x, lses, delta, gout, WANT_GK | WANT_GV)
        t = sddmm_half(each, False, u, gsum, features)
        gq = gq.add_(spmm_half(o.adj, False, t, x.k), alpha=o.scale)
        gk = gk.add_(spmm_half(o.adj, True, t, x.q), alpha=o.scale)
        gbias = gbias.add_(t)
        del t  # memory peaks here
        gprojected = spmm_half(each, False, gbias, features)
        gattr = None
        if needs[4]:
            gattr = (spmm_half(each, True, gbias, projected) + spmm_half(each, True, u, gsum)).sum(1)
        found = (None if t is None else t.to(dtype) for t in (gq, gk, gv, gprojected, gattr))
        return None, *found, None


def _differentiable(
    o: Options, given: tuple[Tensor, ...], seed: Tensor | None, needs: tuple[bool, ...], gout: Tensor, gsum: Tensor
) -> tuple[Tensor | None, ...]:
    """Returns the gradients, computed by differentiable operations, for gradients of gradients."""
    with torch.enable_grad():
        copies = [t.view_as(t) if need else t for t, need in zip(given, needs, strict=True)]
        q, k, v, projected, attr = copies
        each, features = into_rows(o.adj), expanded(attr, q)
        x = Operands(q, k, v, None, sddmm_half(each, False, None, projected, features), None, seed)
        out, _ = base.Attention.apply(o, *x)
        x = base.in_sums(x)
        u = base._thinned(o, x, softmax(o.adj, base._logits(o, x)))
        summed = spmm_half(each, False, u, features)
    return gradients((out, summed), (gout, gsum), copies, needs)
