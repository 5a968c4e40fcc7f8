"""Attention written in plain torch and in torch.sparse, and its float64 results at a sample of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from benchmarks.case import random
from benchmarks.check import UNIT, finite
from fusedmm import CSR

LIMIT = 2**22  # channels of entries computed in float64
Formula = Callable[..., Tensor]  # of the operands


@dataclass(frozen=True)
class Entries:
    """Rows and columns as torch indexes them."""

    row: Tensor
    col: Tensor
    rows: int
    entry: Tensor | None = None  # which entries of the whole matrix, where they are a sample


def operands(score: str, n: int, heads: int, feat: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """What a score learns from: q, k, v; one number per head for additive; k is v, and att, for gatv2."""
    sizes: dict[str, list[tuple[int, ...]]] = {
        "dot": [(n, heads, feat)] * 3,
        "additive": [(n, heads), (n, heads), (n, heads, feat)],
        "gatv2": [(n, heads, feat), (n, heads, feat), (heads, feat)],
    }
    made = (random(*size, dtype=dtype, device=device, seed=3 + k) for k, size in enumerate(sizes[score]))
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


def stepped(formula: Formula, x: list[Tensor], upstream: Tensor, backward: bool) -> tuple[Tensor, ...]:
    """What a step computes: the result, and with ``backward`` the gradients of the operands."""
    if not backward:
        with torch.no_grad():
            return (formula(*x),)
    out = formula(*x)
    return (out, *torch.autograd.grad(out, x, upstream))


class _Sampled(torch.autograd.Function):
    """<q_i, k_j> at the entries of one head, [nnz]; its gradients are products with the matrix of its gradient."""

    @staticmethod
    def forward(ctx: Any, adj: CSR, q: Tensor, k: Tensor) -> Tensor:
        ctx.adj = adj
        ctx.save_for_backward(q, k)
        return _sampled(adj, q, k)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        q, k = ctx.saved_tensors
        return None, _matrix(ctx.adj, grads[0]) @ k, _matrix(ctx.adj.t(), grads[0]) @ q


class _Product(torch.autograd.Function):
    """The matrix of ``val`` times x of one head. What autograd does with a CSR of torch's is as large as n x n."""

    @staticmethod
    def forward(ctx: Any, adj: CSR, val: Tensor, x: Tensor) -> Tensor:
        ctx.adj = adj
        ctx.save_for_backward(val, x)
        return _matrix(adj, val) @ x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        val, x = ctx.saved_tensors
        upstream = grads[0].contiguous()
        return None, _sampled(ctx.adj, upstream, x), _matrix(ctx.adj.t(), val) @ upstream


def _matrix(adj: CSR, val: Tensor) -> Tensor:
    """torch's CSR of the values, which stand in the order of the entries before ``adj`` was transposed."""
    ordered = val[adj.eid] if adj.eid.numel() else val.contiguous()
    return torch.sparse_csr_tensor(adj.ptr.to(adj.idx.dtype), adj.idx, ordered, adj.shape)


def _sampled(adj: CSR, q: Tensor, k: Tensor) -> Tensor:
    zero = _matrix(adj, q.new_zeros(adj.nnz))
    return torch.sparse.sampled_addmm(zero, q, k.t(), beta=0.0).values()


def by_torch_sparse(score: str, adj: CSR, at: Entries, *x: Tensor) -> Tensor:
    """sampled_addmm (where the score is a product), softmax on the values and CSR @ dense, head by head."""
    q, k, third = x
    value = k if score == "gatv2" else third
    heads = range(value.shape[1])
    pattern = adj.pattern()
    assert not adj.eid.numel()  # what sampled_addmm gives stands in the order of the rows
    if score == "dot":
        products = [_Sampled.apply(pattern, q[:, h].contiguous(), k[:, h].contiguous()) for h in heads]
        logit = torch.stack(products, 1) * q.shape[-1] ** -0.5
    else:
        logit = logits(score, at, *x)
    weight = softmax(at, logit)
    return torch.stack([_Product.apply(pattern, weight[:, h], value[:, h].contiguous()) for h in heads], 1)


class Exact:
    """Results and gradients in float64 for a loss that sees a sample of rows alone, the longest among them.

    Each operand has a role: "row" and "col" have one item per row or column of the matrix, "node" is both, of
    a square matrix, and "whole" is neither.
    """

    def __init__(self, formula: Callable[..., Tensor], adj: CSR, x: list[Tensor], roles: list[str], width: int) -> None:
        degree = adj.degree()
        order = torch.randperm(adj.shape[0], generator=torch.Generator().manual_seed(1)).to(adj.device)[:4096]
        order = torch.cat([degree.argmax()[None], order])
        taken = (degree[order].cumsum(0) * width <= LIMIT).sum().clamp(min=1)
        self.rows = order[: int(taken)].unique()
        count = degree[self.rows]
        owner = torch.repeat_interleave(count)
        entry = torch.arange(owner.numel(), device=adj.device) + (adj.ptr[self.rows] - count.cumsum(0) + count)[owner]
        rows, cols, columns = self.rows, adj.idx[entry].long().unique(), adj.idx[entry].long()
        if "node" in roles:
            rows = cols = torch.cat([rows, cols]).unique()
        at = Entries(torch.searchsorted(rows, self.rows)[owner], torch.searchsorted(cols, columns), rows.numel(), entry)
        picks = {"row": rows, "col": cols, "node": rows, "whole": slice(None)}
        self.picked = [self.rows, *(picks[role] for role in roles)]
        small = [t.detach()[p].double().requires_grad_() for t, p in zip(x, self.picked[1:], strict=True)]
        result = formula(at, *small)
        dtype, seen = x[0].dtype, torch.searchsorted(rows, self.rows)
        upstream = random(rows.numel(), *result.shape[1:], dtype=dtype, device=adj.device.type, seed=9)
        self.gout = upstream.new_zeros(adj.shape[0], *result.shape[1:])
        self.gout[self.rows] = upstream[seen]
        gradients = torch.autograd.grad(result[seen], small, self.gout[self.rows].double())
        self.exact = [result.detach()[seen], *gradients]
        # Weights, sums and delta are differences of rounded numbers: 64 units of theirs, 4 of the result's. A gradient
        # of scores sums terms of a row that cancel: of n only a share like 1 / sqrt(n) is left.
        units = [64.0] + [64 + 4 * float(count.max()) ** 0.5] * len(gradients)
        self.limits = [4 * UNIT[dtype] + n * min(UNIT[dtype], UNIT[torch.float32]) for n in units]

    def error(self, found: tuple[Tensor, ...]) -> tuple[float, float]:
        """The norm of an error over the norm of the exact, of the result or gradient nearest to its limit; and that."""
        worst = 0.0, self.limits[0]
        for exact, result, picked, limit in zip(self.exact, found, self.picked, self.limits, strict=False):
            if not finite(result):
                return float("inf"), limit
            error = result.detach()[picked].double() - exact
            ratio = float(error.norm() / exact.norm().clamp(min=1e-300))
            if ratio / limit > worst[0] / worst[1]:
                worst = ratio, limit
        return worst
