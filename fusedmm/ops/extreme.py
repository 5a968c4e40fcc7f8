"""SpMM with max or min, whose gradient goes to the entries that reached the extreme, in even shares.

With M[p,c] = 1 where entry p = (i, j) reached y[i,c], three sums are each other's derivatives, so that
gradients of any order exist (csrc/select.c):

    rows (w, z)[i] = sum over row i's p of     w[p] M[p] z[j]
    cols (w, g)[j] = sum over column j's p of  w[p] M[p] g[i]
    edges(z, g)[p] = sum over channels of      M[p] z[j] g[i]

y = max_p val[p] x[j]:  share = gy / rows(1, 1), which "counts" keeps in the dtype of sums;
                        gx = cols(val, share);  gval = edges(x, share).
M itself has no derivative (the extreme is not smooth where it changes hands).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.csr import CSR
from fusedmm.ops.operands import refuse_rules
from fusedmm.ops.pair import Values, half, like_values, run, spmm_run

ROWS, COLS, EDGES, COUNTS = 0, 1, 2, 3


class Chosen(NamedTuple):
    """What M is made of: y = extreme of val * x over adj (or its transpose)."""

    adj: CSR
    transposed: bool
    val: Values
    x: Tensor
    y: Tensor


def extreme(adj: CSR, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
    """y[i] = max or min over row i's entries of val * x[j]; 0 for an empty row.

    Raises:
        RuntimeError: under a torch.func transform or with a tangent, for which there is no rule.
    """
    refuse_rules("spmm with max or min", val, x)
    if torch.is_grad_enabled() and (x.requires_grad or (val is not None and val.requires_grad)):
        return Extreme.apply(adj, transposed, val, x, reduce, algorithm)
    return spmm_run(adj, transposed, val, x, reduce, algorithm)


def _select(m: Chosen, form: int, weight: Values, z: Values, g: Values) -> Tensor:
    ptr, idx, eid, plan = half(m.adj, m.transposed != (form == COLS))
    none = m.adj.none
    absent = [none if t is None else t for t in (m.val, weight)]
    operands = [none if t is None else t for t in (z, g)]
    return run(ops._select.default, m.x, ptr, idx, eid, plan, *absent, m.x, m.y, *operands, form)


class Extreme(torch.autograd.Function):
    """y, with its gradient by shares."""

    @staticmethod
    def forward(ctx: Any, adj: CSR, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
        y = spmm_run(adj, transposed, val, x, reduce, algorithm)
        ctx.save_for_backward(val, x, y)
        ctx.adj, ctx.transposed = adj, transposed
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        val, x, y = ctx.saved_tensors
        m = Chosen(ctx.adj, ctx.transposed, None if val is None else val.detach(), x.detach(), y.detach())
        share = (gy / _select(m, COUNTS, None, None, None).clamp(min=1)).to(gy.dtype)
        gx = Selected.apply(m, COLS, val, None, share) if ctx.needs_input_grad[3] else None
        gval = like_values(Selected.apply(m, EDGES, None, x, share), val) if ctx.needs_input_grad[2] else None
        return None, None, gval, gx, None, None


class Selected(torch.autograd.Function):
    """One of the three forms; its derivatives are the other two."""

    @staticmethod
    def forward(ctx: Any, m: Chosen, form: int, weight: Values, z: Values, g: Values) -> Tensor:
        ctx.save_for_backward(weight, z, g)
        ctx.m, ctx.form = m, form
        return _select(m, form, weight, z, g)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, z, g = ctx.saved_tensors
        m, form = ctx.m, ctx.form
        needs_weight, needs_z, needs_g = ctx.needs_input_grad[2:]
        gweight = gz = gg = None
        if needs_weight:
            e = Selected.apply(m, EDGES, None, grad if form == COLS else z, grad if form == ROWS else g)
            gweight = like_values(e, weight)
        if needs_z:
            gz = Selected.apply(m, COLS, weight if form == ROWS else grad, None, grad if form == ROWS else g)
        if needs_g:
            gg = Selected.apply(m, ROWS, weight if form == COLS else grad, grad if form == COLS else z, None)
        return None, None, gweight, gz, gg
