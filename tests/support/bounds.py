"""The promise about errors, element by element, and the oracle it is measured against."""

from __future__ import annotations

from typing import Any

import accuracy
import numpy as np
import torch
from torch import Tensor

import fusedmm
from fusedmm import reference

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def assert_within(
    computed: Tensor,
    exact: Tensor,
    magnitude: Tensor,
    n: Tensor | int,
    dtype: torch.dtype,
    note: str = "",
    operator: str = "",
) -> None:
    """|computed - exact| <= 4 sqrt(n) u sum|a||b| + u_out |exact|, and half a step of the smallest number.

    Args:
        computed: what the operator gave, of ``dtype``.
        exact: the same in float64.
        magnitude: sum over the terms of their absolute values, float64.
        n: number of terms of each element.
        dtype: output dtype; sums are kept in float32, or float64 for float64.
        note: what to say when it fails.
        operator: of docs/accuracy.md's table, in whose line this comparison counts.
    """
    assert computed.dtype == dtype and computed.shape == exact.shape, (note, computed.dtype, computed.shape)
    terms = torch.as_tensor(n, dtype=torch.float64)
    bound = 4 * terms.sqrt() * UNIT[accumulator(dtype)] * magnitude + UNIT[dtype] * exact.abs()
    bound = bound + torch.finfo(dtype).smallest_normal * UNIT[dtype]
    error = (computed.double().cpu() - exact).abs()
    wrong = ~(error <= bound)
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{note}: {int(wrong.sum())} of {wrong.numel()} outside the bound, first at {list(at)}: "
            f"{computed[at].item()!r} for {exact[at].item()!r}, error {error[at].item():.3g} > {bound[at].item():.3g}"
        )
    accuracy.record(operator, computed, error, bound)


def double(adj: fusedmm.CSR) -> fusedmm.CSR:
    """adj on the CPU with float64 values."""
    return adj.to("cpu", torch.float64) if adj.val is not None else adj.to("cpu")


def magnitudes(adj: fusedmm.CSR) -> fusedmm.CSR:
    """adj with the absolute values."""
    return adj if adj.val is None else adj.with_values(adj.val.abs())


def spmm_oracle(adj: fusedmm.CSR, x: Tensor, reduce: str) -> tuple[Tensor, Tensor, Tensor]:
    """(exact, magnitude, n) of spmm(adj, x): float64, on the CPU."""
    low, adj, x = x.dtype != torch.float64, double(adj), x.detach().double().cpu()
    exact = reference.spmm(adj, x, reduce) if low or reduce in ("max", "min") else _long_spmm(adj, x, reduce)
    over = "max" if reduce in ("max", "min") else reduce
    magnitude = reference.spmm(magnitudes(adj), x.abs(), over)
    n = adj.degree().double().view(-1, *[1] * (x.dim() - 1))
    return exact, magnitude, torch.ones_like(n) if over == "max" else n


class LongSum(torch.autograd.Function):
    """Adds up float64 terms with the same index in long double, one after the other: [n, ...].

    In float64 those of 2,000 equal terms leave the bound themselves.
    """

    @staticmethod
    def forward(ctx: Any, index: Tensor, n: int, terms: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        order = index.argsort(stable=True)
        numbers, terms = index[order].numpy(), terms.detach()[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        y = np.zeros((n, *terms.shape[1:]))
        if starts.size:
            y[numbers[starts]] = np.add.reduceat(terms.numpy().astype(np.longdouble), starts)
        return torch.from_numpy(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None, Tensor]:  # type: ignore[override]
        return None, None, g[ctx.saved_tensors[0]]


def long_sum(adj: fusedmm.CSR, row: Tensor, terms: Tensor, reduce: str) -> Tensor:
    """The sum or mean of each row's terms in float64, kept in long double."""
    y: Tensor = LongSum.apply(row, adj.shape[0], terms)
    return y if reduce == "sum" else y / adj.degree().clamp(min=1).view(-1, *[1] * (y.dim() - 1))


def _long_spmm(adj: fusedmm.CSR, x: Tensor, reduce: str) -> Tensor:
    row, col, val = adj.coo()
    terms = x[col] if val is None else x[col] * val.reshape(*val.shape, *[1] * (x.dim() - val.dim()))
    return long_sum(adj, row, terms.detach(), reduce)


def sddmm_oracle(adj: fusedmm.CSR, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, int]:
    """(exact, magnitude, n) of sddmm(adj, a, b)."""
    adj, a, b = double(adj), a.detach().double().cpu(), b.detach().double().cpu()
    return reference.sddmm(adj, a, b), reference.sddmm(magnitudes(adj), a.abs(), b.abs()), a.shape[-1]


def assert_values_gradient(
    g: Tensor, val: Tensor, exact: Tensor, magnitude: Tensor, n: int, dtype: torch.dtype
) -> None:
    """g, the gradient of values, against (exact, magnitude, n) per entry and head of an SDDMM of ``dtype``.

    Where a value serves all heads, it is one sum over their channels. One rounding follows the sum, and
    another one where the values are of another dtype.
    """
    assert g.dtype == val.dtype and g.shape == val.shape, (g.dtype, g.shape)
    if val.dim() < exact.dim():
        exact, magnitude, n = exact.sum(1), magnitude.sum(1), n * exact.shape[1]
    rounding = UNIT[dtype] + (UNIT[val.dtype] if val.dtype != dtype else 0.0)
    bound = 4 * n**0.5 * UNIT[accumulator(dtype)] * magnitude + rounding * exact.abs()
    bound = bound + sum(torch.finfo(t).smallest_normal * UNIT[t] for t in {dtype, val.dtype})
    error = (g.double().cpu() - exact).abs()
    assert bool((error <= bound).all()), f"error {error.max():.3g}, over its bound by {(error - bound).max():.3g}"
