"""Attention written in plain torch and in torch.sparse, and its float64 results at a sample of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from benchmarks.case import random
from benchmarks.check import UNIT
from fusedmm import CSR

LIMIT = 2**22  # channels of entries computed in float64
Formula = Callable[..., Tensor]  # of the operands


@dataclass(frozen=True)
class Entries:
    """Rows and columns as torch indexes them."""

    row: Tensor
    col: Tensor
    rows: int


def operands(score: str, n: int, heads: int, feat: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """What a score learns from: q, k, v; one number per head for additive; k is v, and att, for gatv2."""
    sizes = {
        "dot": [(n, heads, feat)] * 3,
        "additive": [(n, heads), (n, heads), (n, heads, feat)],
        "gatv2": [(n, heads, feat), (n, heads, feat), (heads, feat)],
    }[score]
    made = (random(*size, dtype=dtype, device=device, seed=3 + k) for k, size in enumerate(sizes))
    return [t.requires_grad_() for t in made]


def logits(score: str, at: Entries, q: Tensor, k: Tensor, third: Tensor) -> Tensor:
    """[nnz, heads], everything gathered."""
    if score == "additive":
        return leaky_relu(q[at.row] + k[at.col], 0.2)
    if score == "gatv2":
        return (leaky_relu(q[at.row] + k[at.col], 0.2) * third).sum(-1)
    return (q[at.row] * k[at.col]).sum(-1) * q.shape[-1] ** -0.5


def softmax(at: Entries, logit: Tensor) -> Tensor:
    """Over the entries of each row."""
    index = at.row[:, None].expand_as(logit)
    top = logit.new_full((at.rows, logit.shape[1]), -torch.inf).scatter_reduce(0, index, logit.detach(), "amax")
    power = (logit - top[at.row]).exp()
    total = power.new_zeros(at.rows, logit.shape[1]).index_add(0, at.row, power)
    return power / total[at.row]


def gathered(score: str, at: Entries, *x: Tensor) -> Tensor:
    """Gather, softmax, scatter: [rows, heads, feat]."""
    weight = softmax(at, logits(score, at, *x))
    value = x[1] if score == "gatv2" else x[2]
    terms = weight[..., None] * value[at.col]
    return terms.new_zeros(at.rows, *value.shape[1:]).index_add(0, at.row, terms)


def by_torch_sparse(score: str, adj: CSR, at: Entries, *x: Tensor) -> Tensor:
    """sampled_addmm (where the score is a product), softmax on the values and CSR @ dense, head by head."""
    q, k, third = x
    value = k if score == "gatv2" else third
    ptr, idx = adj.ptr.to(torch.int32), adj.idx
    if score == "dot":
        zero = torch.sparse_csr_tensor(ptr, idx, q.new_zeros(adj.nnz), adj.shape)
        products = [
            torch.sparse.sampled_addmm(zero, q[:, h].contiguous(), k[:, h].t(), beta=0.0).values()
            for h in range(q.shape[1])
        ]
        logit = torch.stack(products, 1) * q.shape[-1] ** -0.5
    else:
        logit = logits(score, at, *x)
    weight = softmax(at, logit)
    parts = [
        torch.sparse_csr_tensor(ptr, idx, weight[:, h].contiguous(), adj.shape) @ value[:, h].contiguous()
        for h in range(value.shape[1])
    ]
    return torch.stack(parts, 1)


class Exact:
    """Results and gradients in float64 for a loss that sees a sample of rows alone, the longest among them."""

    def __init__(self, score: str, adj: CSR, x: list[Tensor]) -> None:
        value = x[1] if score == "gatv2" else x[2]
        degree = adj.degree()
        order = torch.randperm(adj.shape[0], generator=torch.Generator().manual_seed(1)).to(adj.device)[:4096]
        order = torch.cat([degree.argmax()[None], order])
        taken = (degree[order].cumsum(0) * value.shape[1:].numel() <= LIMIT).sum().clamp(min=1)
        self.rows = order[: int(taken)].unique()
        count = degree[self.rows]
        owner = torch.repeat_interleave(count)
        entry = torch.arange(owner.numel(), device=adj.device) + (adj.ptr[self.rows] - count.cumsum(0) + count)[owner]
        self.cols, col = adj.idx[entry].long().unique(return_inverse=True)
        whole = slice(None)
        self.picked = [self.rows, self.cols, whole if score == "gatv2" else self.cols]
        small = [t.detach()[p].double().requires_grad_() for t, p in zip(x, self.picked, strict=True)]
        result = gathered(score, Entries(owner, col, self.rows.numel()), *small)
        self.gout = torch.zeros(adj.shape[0], *result.shape[1:], dtype=value.dtype, device=adj.device)
        self.gout[self.rows] = random(*result.shape, dtype=value.dtype, device=str(adj.device.type), seed=9)
        self.exact = [result.detach(), *torch.autograd.grad(result, small, self.gout[self.rows].double())]
        # Weights, sums and delta are differences of rounded numbers: 64 units of theirs, 4 of the result's.
        accumulator = min(UNIT[value.dtype], UNIT[torch.float32])
        self.limit = 4 * UNIT[value.dtype] + 64 * accumulator

    def error(self, found: tuple[Tensor, ...]) -> tuple[float, float]:
        """The largest norm of an error over the norm of the exact, of results and gradients; and the limit."""
        worst = 0.0
        for exact, result, picked in zip(self.exact, found, [self.rows, *self.picked], strict=False):
            if not bool(torch.isfinite(result).all()):
                return float("inf"), self.limit
            error = result.detach()[picked].double() - exact
            worst = max(worst, float(error.norm() / exact.norm().clamp(min=1e-300)))
        return worst, self.limit
