"""Every contender's result against float64: |computed - exact| <= 4 sqrt(n) u sum|terms| + u_out max(|exact|, least
normal number)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusedmm import CSR

LIMIT = 2**25  # products in float64; beyond, a sample
UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def finite(t: Tensor) -> bool:
    """Whether all numbers are. Their least and largest are NaN where one is, and need no memory of the size of t."""
    return bool(torch.isfinite(torch.stack(torch.aminmax(t.detach()))).all())


@dataclass(frozen=True)
class Oracle:
    """The exact result at some rows or entries (picked; None: all), and how far off each may be."""

    picked: Tensor | None
    exact: Tensor
    bound: Tensor

    @staticmethod
    def make(picked: Tensor | None, exact: Tensor, size: Tensor, terms: Tensor, dtype: torch.dtype) -> Oracle:
        """From sums, sums of magnitudes and numbers of terms; sums are kept in f32, in f64 for f64."""
        accumulator = min(UNIT[dtype], UNIT[torch.float32])
        rounding = UNIT[dtype] * exact.abs().clamp(min=torch.finfo(dtype).tiny)  # below, numbers lie as far apart
        bound = 4 * terms.double().sqrt() * accumulator * size + rounding
        return Oracle(picked, exact, bound.clamp(min=1e-300))

    def errors(self, result: Tensor) -> tuple[float, float]:
        """(norm of the error / norm of the exact, largest error / its bound); inf unless all is finite."""
        if not finite(result):
            return float("inf"), float("inf")
        error = (result if self.picked is None else result[self.picked]).double() - self.exact
        return float(error.norm() / self.exact.norm().clamp(min=1e-300)), float((error.abs() / self.bound).max())


def spmm(adj: CSR, val: Tensor, x: Tensor) -> Oracle:
    """y = A x: all rows, or the longest and random others."""
    degree, feat = adj.degree(), x.shape[1]
    rows = torch.arange(adj.shape[0], device=x.device)
    picked = None
    if adj.nnz * feat > LIMIT:
        order = torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(1)).to(x.device)
        order = torch.cat([degree.argmax()[None], order])
        picked = rows = order[: max(1, int((degree[order].cumsum(0) * feat <= LIMIT).sum()))].unique()
    count = degree[rows]
    owner = torch.repeat_interleave(count)
    entry = torch.arange(owner.numel(), device=x.device) + (adj.ptr[rows] - count.cumsum(0) + count)[owner]
    terms = val[entry, None].double() * x[adj.idx[entry].long()].double()
    zero = terms.new_zeros(rows.numel(), feat)
    exact, size = zero.index_add(0, owner, terms), zero.index_add(0, owner, terms.abs())
    return Oracle.make(picked, exact, size, count[:, None], x.dtype)


def sddmm(adj: CSR, val: Tensor | None, a: Tensor, b: Tensor) -> Oracle:
    """e = val * <a_i, b_j>: all entries, or random ones."""
    row = torch.repeat_interleave(adj.degree(), output_size=adj.nnz)
    picked, entry = None, torch.arange(adj.nnz, device=a.device)
    if adj.nnz * a.shape[1] > LIMIT:
        draw = torch.randint(adj.nnz, (LIMIT // a.shape[1],), generator=torch.Generator().manual_seed(1))
        picked = entry = draw.to(a.device).unique()
    terms = a[row[entry]].double() * b[adj.idx[entry].long()].double()
    if val is not None:
        terms = terms * val[entry, None].double()
    return Oracle.make(picked, terms.sum(1), terms.abs().sum(1), torch.full_like(entry, a.shape[1]), a.dtype)
