"""SpMM and SDDMM under torch.func and forward mode: the same backwards, with rules for vmap and forward mode.

A batch of operands needs no loop: it becomes more heads of one call. Values without a batch serve all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import sums_dtype
from fusedmm.ops import spmm_sddmm
from fusedmm.ops.spmm_sddmm import Held, Values


def _batch_behind(t: Tensor, dim: int | None, batch: int) -> Tensor:
    """[n, ...] with a batch at dim (or none) as [n, batch, ...]."""
    return t.movedim(dim, 1) if dim is not None else t.unsqueeze(1).expand(t.shape[0], batch, *t.shape[1:])


def flat_operand(x: Tensor, dim: int | None, batch: int) -> tuple[Tensor, int]:
    """An operand [n, F] or [n, H, F] per sample as [n, batch * H, F], and H (0: it had none)."""
    x = _batch_behind(x, dim, batch)
    heads = x.shape[2] if x.dim() == 4 else 0
    return x.reshape(x.shape[0], -1, x.shape[-1]), heads


def flat_values(val: Values, dim: int | None, batch: int, heads: int) -> Tensor | None:
    """Values as [nnz, batch * heads]; [nnz] where one value serves all."""
    if val is None or (dim is None and val.dim() == 1):
        return val
    val = _batch_behind(val, dim, batch)
    if val.dim() == 2:
        val = val.unsqueeze(2).expand(*val.shape, max(heads, 1))
    elif val.shape[2] == 1:
        val = val.expand(*val.shape[:2], max(heads, 1))
    return val.reshape(val.shape[0], -1)


def _added(parts: list[Tensor], like: Tensor) -> Tensor:
    """The sum of a tangent's parts, rounded once to like's dtype."""
    total: Tensor = sum(parts[1:], parts[0])
    return total.to(like.dtype)


class SpMM(torch.autograd.Function):
    """spmm_sddmm.SpMM for torch.func."""

    @staticmethod
    def forward(held: Held, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
        return spmm_sddmm.spmm_run(held.adj, transposed, val, x, reduce, algorithm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        held, ctx.transposed, val, x, ctx.reduce, _ = inputs
        ctx.adj = held.adj
        spmm_sddmm.SpMM.keep(ctx, val, x)
        ctx.save_for_forward(val, x)

    backward = spmm_sddmm.SpMM.backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        val, x = ctx.saved_tensors
        _, _, dval, dx, _, _ = tangents
        parts = []
        if dx is not None:
            parts.append(spmm_sddmm.spmm_half(ctx.adj, ctx.transposed, val, dx.to(sums_dtype(x)), ctx.reduce))
        if dval is not None:
            parts.append(spmm_sddmm.spmm_half(ctx.adj, ctx.transposed, dval, x.to(sums_dtype(x)), ctx.reduce))
        return _added(parts, x)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, held: Held, transposed: bool, val: Any, x: Tensor, reduce: int, algorithm: int
    ) -> Any:
        flat, heads = flat_operand(x, in_dims[3], info.batch_size)
        values = flat_values(val, in_dims[2], info.batch_size, heads)
        y = spmm_sddmm.spmm_half(held.adj, transposed, values, flat, reduce, algorithm)
        return y.reshape(y.shape[0], info.batch_size, *([heads] if heads else []), y.shape[-1]), 1


class SDDMM(torch.autograd.Function):
    """spmm_sddmm.SDDMM for torch.func."""

    @staticmethod
    def forward(held: Held, transposed: bool, val: Values, a: Tensor, b: Tensor, algorithm: int) -> Tensor:
        return spmm_sddmm.sddmm_run(held.adj, transposed, val, a, b, algorithm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        held, ctx.transposed, val, a, b, _ = inputs
        ctx.adj = held.adj
        spmm_sddmm.SDDMM.keep(ctx, val, a, b)
        ctx.save_for_forward(val, a, b)

    backward = spmm_sddmm.SDDMM.backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        val, a, b = ctx.saved_tensors
        _, _, dval, da, db, _ = tangents
        like, dtype = a, sums_dtype(a)
        a, b = a.to(dtype), b.to(dtype)
        parts = []
        if dval is not None:
            parts.append(spmm_sddmm.sddmm_half(ctx.adj, ctx.transposed, dval, a, b))
        if da is not None:
            parts.append(spmm_sddmm.sddmm_half(ctx.adj, ctx.transposed, val, da.to(dtype), b))
        if db is not None:
            parts.append(spmm_sddmm.sddmm_half(ctx.adj, ctx.transposed, val, a, db.to(dtype)))
        return _added(parts, like)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, held: Held, transposed: bool, val: Values, a: Tensor, b: Tensor, algorithm: int
    ) -> Any:
        flat_a, heads = flat_operand(a, in_dims[3], info.batch_size)
        flat_b, _ = flat_operand(b, in_dims[4], info.batch_size)
        values = flat_values(val, in_dims[2], info.batch_size, heads)
        e = spmm_sddmm.sddmm_half(held.adj, transposed, values, flat_a, flat_b, algorithm)
        return e.reshape(e.shape[0], info.batch_size, *([heads] if heads else [])), 1
