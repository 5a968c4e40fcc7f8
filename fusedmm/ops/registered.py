"""Gradients of ``torch.ops.fusedmm.spmm`` and ``.sddmm``, which exported and C++ programs call.

The same kernels as the Python functions, with both halves of the matrix among the arguments: the
gradient of one half runs on the other. Absent tensors have no elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import REDUCTIONS, ops, sums_dtype
from fusedmm.ops.spmm_sddmm import (
    as_channels,
    entries_of,
    kept,
    kind_of,
    like_values,
    per_entry,
    serves_all,
    shares_of,
    times_share,
    times_values,
)  # fmt: skip

Halves = tuple[Tensor, ...]  # ptr, idx, eid, plan of the matrix, then of its transpose


def _transposed(halves: Halves) -> Halves:
    if not halves[4].numel():
        raise RuntimeError("fusedmm: a gradient needs the transpose: give ptr_t, idx_t, eid_t and plan_t")
    return halves[4:] + halves[:4]


def _spmm_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *halves, val, x, ctx.reduce, _ = inputs
    of_val, of_x = ctx.needs_input_grad[8:10]
    ctx.save_for_backward(*halves, val if of_x else None, x if of_val else None)
    ctx.kind = kind_of(val)


def _spmm_backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
    *halves_list, val, x = ctx.saved_tensors
    halves, gx, gval = tuple(halves_list), None, None
    if ctx.reduce not in (REDUCTIONS["sum"], REDUCTIONS["mean"]):
        raise RuntimeError("fusedmm: torch.ops.fusedmm.spmm has no gradient of max and min; fusedmm.spmm has")
    share = None
    if ctx.reduce == REDUCTIONS["mean"] and gy.dtype == sums_dtype(gy):
        gy = per_entry(entries_of(halves[0], gy), gy)
    elif ctx.reduce == REDUCTIONS["mean"]:  # 16 bits may have no number for the quotient
        ptr, idx, eid, plan = halves[:4]
        share = shares_of(ptr, idx, eid, plan, halves[4].shape[0] - 1 if x is None else x.shape[0], gy)
    if ctx.needs_input_grad[9]:
        gx = ops.spmm(*_transposed(halves), times_share(share, val), gy, 0, 0)
    if ctx.needs_input_grad[8]:
        if serves_all(ctx.kind, x):
            gy, x = as_channels(gy, x)
        gval = like_values(ops.sddmm(*halves, x.new_empty(0) if share is None else share, gy, x, 0), ctx.kind)
    return *[None] * 8, gval, gx, None, None


def _sddmm_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *halves, val, a, b, _ = inputs
    of_val, of_a, of_b = ctx.needs_input_grad[8:11]
    ctx.save_for_backward(
        *halves, val if of_a or of_b else None, a if of_val or of_b else None, b if of_val or of_a else None
    )
    ctx.kind = kind_of(val)


def _sddmm_backward(ctx: Any, ge: Tensor) -> tuple[Tensor | None, ...]:
    *halves_list, val, a, b = ctx.saved_tensors
    halves, ga, gb, gval = tuple(halves_list), None, None, None
    weight = ge if val is None else times_values(ge, val)
    if ctx.needs_input_grad[9]:
        ga = ops.spmm(*halves, weight, b, 0, 0)
    if ctx.needs_input_grad[10]:
        gb = ops.spmm(*_transposed(halves), weight, a, 0, 0)
    if ctx.needs_input_grad[8]:
        if serves_all(ctx.kind, a):
            ge, a, b = kept(ge, a, b)
        gval = like_values(ops.sddmm(*halves, ge, a, b, 0), ctx.kind)
    return *[None] * 8, gval, ga, gb, None


torch.library.register_autograd("fusedmm::spmm", _spmm_backward, setup_context=_spmm_context)
torch.library.register_autograd("fusedmm::sddmm", _sddmm_backward, setup_context=_sddmm_context)
