"""SpMM with max or min, whose gradient goes to the entries that reached the extreme, in even shares.

With M[p,c] = 1 where entry p = (i, j) reached y[i,c], three sums are each other's derivatives, so that
gradients of any order exist (csrc/spmm/extreme.c):

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
from fusedmm.matrix.base import Matrix
from fusedmm.ops.checks import needs_rules
from fusedmm.ops.spmm_sddmm import Held, Values, as_channels, half, kind_of, like_values, run, serves_all, spmm_run
from fusedmm.ops.transforms import flat_operand, flat_values

ROWS, COLS, EDGES, COUNTS = 0, 1, 2, 3


class Chosen(NamedTuple):
    """What M is made of: y = extreme of val * x over adj (or its transpose)."""

    adj: Matrix
    transposed: bool
    val: Values
    x: Tensor
    y: Tensor


def extreme(adj: Matrix, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
    """y[i] = max or min over row i's entries of val * x[j]; 0 for an empty row."""
    if needs_rules(val, x):
        return ExtremeRule.apply(Held(adj), transposed, val, x, reduce, algorithm)
    if torch.is_grad_enabled() and (x.requires_grad or (val is not None and val.requires_grad)):
        return Extreme.apply(adj, transposed, val, x, reduce, algorithm)
    return spmm_run(adj, transposed, val, x, reduce, algorithm)


def select(m: Chosen, form: int, weight: Values = None, z: Values = None, g: Values = None) -> Tensor:
    """One of the three forms, differentiable in weight, z and g; or the counts, which are constant."""
    if needs_rules(m.val, m.x, m.y, weight, z, g):
        return SelectedRule.apply(Held(m.adj), m.transposed, m.val, m.x, m.y, form, weight, z, g)
    return _select(m, form, weight, z, g) if form == COUNTS else Selected.apply(m, form, weight, z, g)


def _select(m: Chosen, form: int, weight: Values, z: Values, g: Values) -> Tensor:
    ptr, idx, eid, plan = half(m.adj, not m.transposed if form == COLS else m.transposed)
    none = m.adj.none
    absent = [none if t is None else t for t in (m.val, weight)]
    operands = [none if t is None else t for t in (z, g)]
    return run(ops._select.default, m.x, ptr, idx, eid, plan, *absent, m.x, m.y, *operands, form)


def _edges(m: Chosen, weight: Tensor, z: Values, g: Values) -> Tensor:
    """The form "edges" like weight; heads that share weights are channels of one sum where they share values too."""
    assert z is not None and g is not None
    kind = kind_of(weight)
    if serves_all(kind, z) and (m.val is None or serves_all(kind_of(m.val), z)):
        x, y, z, g = as_channels(m.x, m.y, z, g)
        m = m._replace(val=None if m.val is None else m.val.reshape(-1), x=x, y=y)
    return like_values(select(m, EDGES, None, z, g), kind)


class Extreme(torch.autograd.Function):
    """y, with its gradient by shares."""

    @staticmethod
    def forward(ctx: Any, adj: Matrix, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
        y = spmm_run(adj, transposed, val, x, reduce, algorithm)
        ctx.save_for_backward(val, x, y)
        ctx.adj, ctx.transposed = adj, transposed
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        val, x, y = ctx.saved_tensors
        m = Chosen(ctx.adj, ctx.transposed, None if val is None else val.detach(), x.detach(), y.detach())
        share = (gy / select(m, COUNTS).clamp(min=1)).to(gy.dtype)
        gx = select(m, COLS, val, None, share) if ctx.needs_input_grad[3] else None
        gval = _edges(m, val, x, share) if ctx.needs_input_grad[2] else None
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
        return None, None, *_derivatives(ctx.m, ctx.form, ctx.saved_tensors, grad, ctx.needs_input_grad[2:])


def _derivatives(
    m: Chosen, form: int, given: tuple[Values, ...], grad: Tensor, needs: tuple[bool, ...]
) -> tuple[Values, Values, Values]:
    """The gradients of weight, z and g, which were given."""
    weight, z, g = given
    gweight = gz = gg = None
    if needs[0] and weight is not None:
        gweight = _edges(m, weight, grad if form == COLS else z, grad if form == ROWS else g)
    if needs[1]:
        gz = select(m, COLS, weight if form == ROWS else grad, None, grad if form == ROWS else g)
    if needs[2]:
        gg = select(m, ROWS, weight if form == COLS else grad, grad if form == COLS else z, None)
    return gweight, gz, gg


# ---- the same for torch.func and forward mode ----


class ExtremeRule(torch.autograd.Function):
    """Extreme for torch.func; a tangent is the mean of those of the entries that reached the extreme."""

    @staticmethod
    def forward(held: Held, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
        return spmm_run(held.adj, transposed, val, x, reduce, algorithm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        held, ctx.transposed, val, x, _, _ = inputs
        ctx.adj = held.adj
        ctx.save_for_backward(val, x, output)
        ctx.save_for_forward(val, x, output)

    backward = Extreme.backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        val, x, y = ctx.saved_tensors
        _, _, dval, dx, _, _ = tangents
        m = Chosen(ctx.adj, ctx.transposed, None if val is None else val.detach(), x.detach(), y.detach())
        parts = []
        if dx is not None:
            parts.append(select(m, ROWS, val, dx))
        if dval is not None:
            parts.append(select(m, ROWS, dval, x))
        return (sum(parts[1:], parts[0]) / select(m, COUNTS).clamp(min=1)).to(y.dtype)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, held: Held, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int
    ) -> Any:
        flat, heads = flat_operand(x, in_dims[3], info.batch_size)
        values = flat_values(val, in_dims[2], info.batch_size, heads)
        y = extreme(held.adj, transposed, values, flat, reduce, algorithm)
        return y.reshape(y.shape[0], info.batch_size, *([heads] if heads else []), y.shape[-1]), 1


class SelectedRule(torch.autograd.Function):
    """``select`` for torch.func: linear in each of weight, z and g; val, x and y count as constant."""

    @staticmethod
    def forward(
        held: Held, transposed: bool, val: Values, x: Tensor, y: Tensor, form: int, weight: Values, z: Values, g: Values
    ) -> Tensor:
        return _select(Chosen(held.adj, transposed, val, x, y), form, weight, z, g)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        held, ctx.transposed, *tensors, ctx.form, weight, z, g = inputs
        ctx.adj = held.adj
        ctx.save_for_backward(*tensors, weight, z, g)
        ctx.save_for_forward(*tensors, weight, z, g)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        val, x, y, *given = ctx.saved_tensors
        m = Chosen(ctx.adj, ctx.transposed, val, x, y)
        needs = ctx.needs_input_grad[6:] if ctx.form != COUNTS else (False, False, False)
        return *[None] * 6, *_derivatives(m, ctx.form, tuple(given), grad, needs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:
        val, x, y, *given = ctx.saved_tensors
        m, parts = Chosen(ctx.adj, ctx.transposed, val, x, y), []
        for k, t in enumerate(tangents[6:]):
            if t is not None:
                weight, z, g = (t if j == k else other for j, other in enumerate(given))
                parts.append(select(m, ctx.form, weight, z, g))
        return sum(parts[1:], parts[0]) if parts else None

    @staticmethod
    def vmap(info: Any, in_dims: Any, held: Held, transposed: bool, val: Values, *rest: Any) -> Any:
        x, y, form, weight, z, g = rest
        batch, dims = info.batch_size, in_dims[3:]
        x, heads = flat_operand(x, dims[0], batch)
        y, _ = flat_operand(y, dims[1], batch)
        z, g = (None if t is None else flat_operand(t, d, batch)[0] for t, d in ((z, dims[4]), (g, dims[5])))
        m = Chosen(held.adj, transposed, flat_values(val, in_dims[2], batch, heads), x, y)
        found = select(m, form, flat_values(weight, dims[3], batch, heads), z, g)
        behind = [] if form == EDGES else [found.shape[-1]]
        return found.reshape(found.shape[0], batch, *([heads] if heads else []), *behind), 1
