"""What a form of SpMM costs beside the plain sum: reductions, heads, values of each head, values in the order of the
edges, the gradient, the plan. On the CPU torch.sparse reduces too, in every width it is asked for.

The wall is what does the same work in the plain form: the sum over as many bytes (for values of each head, rows of x
that are wider by as much); SDDMM and the SpMM of the transpose for the gradient; for the plan an SpMM of 32 columns.
Errors are against the reference algorithm in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import fusedmm
from benchmarks.case import random
from benchmarks.check import UNIT
from benchmarks.jobs import Job, Options, small
from benchmarks.trial import Trial
from fusedmm._lib import ops

FEAT = 64
WIDTHS = (8, 32, FEAT, 256)  # of the reductions, where there is a peer
PEERS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}
HEADS = [(heads, feat) for heads in (4, 8) for feat in (8, 16, 64)]
PLAN = 32  # columns of the SpMM that a plan may not take longer than


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """Every form."""
    new = partial(random, dtype=options.dtype, device=options.device)
    made: dict[str, Callable[[], list[Trial]]] = {}
    peers = options.device == "cpu"
    for reduce, feat in itertools.product(PEERS if peers else list(PEERS)[1:], WIDTHS if peers else [FEAT]):
        made[f"{reduce}, {feat} columns"] = partial(reductions, adj, reduce, feat, peers, new)
    for heads, feat in HEADS:
        made[f"{heads} heads of {feat}, values [nnz]"] = partial(headed, adj, heads, feat, False, new)
        made[f"{heads} heads of {feat}, values [nnz, heads]"] = partial(headed, adj, heads, feat, True, new)
    made[f"values in the order of edges, {FEAT} columns"] = partial(ordered, adj, new)
    for feat in (32, 128):
        made[f"gradient of both, {feat} columns"] = partial(gradients, adj, feat, new)
    if adj.plan.numel():  # a CPU wants none
        made["plan"] = partial(plans, adj, new)
    for label, trials in made.items():
        if options.wants(label):
            facts = {"plan_bytes_per_entry": round(adj.plan.numel() * adj.plan.element_size() / adj.nnz, 2)}
            yield Job(label, trials, replay=small(adj), facts=facts if label == "plan" else {})


def limit(dtype: torch.dtype) -> float:
    """Of an error's norm over the norm of the exact: that of sums, and of one rounding."""
    return 68 * min(UNIT[dtype], UNIT[torch.float32]) + UNIT[dtype]


def trial(name: str, run: Callable[[], Tensor], kind: str = "ours", exact: Callable[[], Tensor] | None = None) -> Trial:
    """A forward, with the error of what it gives."""

    @torch.no_grad()
    def step() -> tuple[Tensor, ...]:
        return (run(),)

    def check() -> tuple[float, float]:
        assert exact is not None
        found, right = run(), exact()
        return float((found - right).norm() / right.norm()), limit(found.dtype)

    return Trial(name, lambda: step, kind, check=None if exact is None else check)


def reductions(adj: fusedmm.CSR, reduce: str, feat: int, peers: bool, new: Callable[..., Tensor]) -> list[Trial]:
    x, weighted = new(adj.shape[1], feat, seed=3), adj.with_values(new(adj.nnz, seed=2))
    exact = partial(exactly, weighted, x, reduce)
    found = [trial("auto", partial(fusedmm.spmm, weighted, x, reduce=reduce), exact=exact)]
    if reduce != "sum":
        found.append(trial("sum", partial(fusedmm.spmm, weighted, x), "wall"))
    for index in (torch.int64, torch.int32) if peers else ():  # the narrow one has MKL behind it
        matrix = torch.sparse_csr_tensor(adj.ptr.to(index), adj.idx.to(index), weighted.val, adj.shape)
        by_torch = partial(torch.sparse.mm, matrix, x, PEERS[reduce])
        found.append(trial(f"torch.sparse.mm, {str(index)[6:]}", by_torch, "peer", exact=exact))
        if reduce == "sum":
            found.append(
                trial(f"torch.matmul, {str(index)[6:]}", partial(torch.matmul, matrix, x), "peer", exact=exact)
            )
    return found


def headed(adj: fusedmm.CSR, heads: int, feat: int, each: bool, new: Callable[..., Tensor]) -> list[Trial]:
    x = new(adj.shape[1], heads, feat, seed=3)
    weighted = adj.with_values(new(adj.nnz, heads, seed=2) if each else new(adj.nnz, seed=2))
    plain, wide = adj.with_values(new(adj.nnz, seed=2)), new(adj.shape[1], heads * (feat + each), seed=4)
    return [
        trial("auto", partial(fusedmm.spmm, weighted, x), exact=partial(exactly, weighted, x, "sum")),
        trial("sum of as many bytes", partial(fusedmm.spmm, plain, wide), "wall"),
    ]


def ordered(adj: fusedmm.CSR, new: Callable[..., Tensor]) -> list[Trial]:
    generator = torch.Generator(adj.device).manual_seed(1)
    row, col, _ = adj.coo()
    order = torch.randperm(adj.nnz, generator=generator, device=adj.device)
    shuffled = fusedmm.CSR.from_coo(row[order], col[order], shape=adj.shape).with_values(new(adj.nnz, seed=2))
    x, sorted_ = new(adj.shape[1], FEAT, seed=3), adj.with_values(new(adj.nnz, seed=2))
    return [
        trial("auto", partial(fusedmm.spmm, shuffled, x), exact=partial(exactly, shuffled, x, "sum")),
        trial("values in the order of rows", partial(fusedmm.spmm, sorted_, x), "wall"),
    ]


def gradients(adj: fusedmm.CSR, feat: int, new: Callable[..., Tensor]) -> list[Trial]:
    x, val = (t.requires_grad_() for t in (new(adj.shape[1], feat, seed=3), new(adj.nnz, seed=2)))
    gout = new(adj.shape[0], feat, seed=4)
    adj.cache_transpose()
    out = fusedmm.spmm(adj.with_values(val), x)
    weighted = adj.with_values(val.detach())

    def ours() -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, (val, x), gout, retain_graph=True)

    @torch.no_grad()
    def halves() -> tuple[Tensor, ...]:
        return fusedmm.sddmm(adj, gout, x), fusedmm.spmm(weighted.t(), gout)

    def check() -> tuple[float, float]:
        wide, t, g = weighted.with_values(weighted.val.double()), x.detach().double(), gout.double()  # type: ignore[union-attr]
        right = fusedmm.sddmm(adj, g, t, algorithm="reference"), fusedmm.spmm(wide.t(), g, algorithm="reference")
        return max(float((a - b).norm() / b.norm()) for a, b in zip(ours(), right, strict=True)), limit(x.dtype)

    return [
        Trial("auto", lambda: ours, "ours", results=2, check=check),
        Trial("sddmm, and spmm of the transpose", lambda: halves, "wall", results=2),
    ]


def plans(adj: fusedmm.CSR, new: Callable[..., Tensor]) -> list[Trial]:
    x = new(adj.shape[1], PLAN, seed=3)
    return [
        trial("auto", partial(ops._plan.default, adj.ptr, adj.idx)),
        trial(f"spmm of {PLAN} columns", partial(fusedmm.spmm, adj, x), "wall"),
    ]


def exactly(adj: fusedmm.CSR, x: Tensor, reduce: str) -> Tensor:
    """SpMM by the reference algorithm, in float64."""
    assert adj.val is not None
    return fusedmm.spmm(adj.with_values(adj.val.double()), x.double(), reduce=reduce, algorithm="reference")
