"""What a form of SpMM costs beside the plain sum: reductions, heads, values of each head, values in the order of the
edges, the gradient, the plan. On the CPU torch.sparse reduces too, in every width it is asked for, and has the
gradients of a maximum; there ``edge_softmax`` stands beside PyG's softmax, and 16 bits beside our own float32.

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
SOFTMAX_HEADS = (1, 8)
BESIDE = (64, 128, 256)  # columns of 16 bits beside float32


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
    if peers:
        for feat in WIDTHS[1:]:
            made[f"trained max, {feat} columns"] = partial(trained, adj, feat, new)
        for heads, backward in itertools.product(SOFTMAX_HEADS, (False, True)):
            way = "forward + backward" if backward else "forward"
            made[f"edge_softmax {way}, {heads} head{'s' * (heads > 1)}"] = partial(softmaxes, adj, heads, backward, new)
        for feat in BESIDE if options.dtype.itemsize == 2 else ():
            made[f"beside float32, {feat} columns"] = partial(beside, adj, feat, new)
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


def stepwise(
    ours: Callable[[], tuple[Tensor, ...]], peers: dict[str, Callable[[], tuple[Tensor, ...]]], exact: list[Tensor]
) -> list[Trial]:
    """Steps of which each gives its result and then gradients, in the order of ``exact``."""

    def check(step: Callable[[], tuple[Tensor, ...]]) -> tuple[float, float]:
        found = zip(step(), exact, strict=True)
        return max(float((a.detach() - b).norm() / b.norm()) for a, b in found), limit(step()[0].dtype)

    return [
        Trial("auto", lambda: ours, "ours", check=partial(check, ours)),
        *(Trial(name, lambda step=step: step, check=partial(check, step)) for name, step in peers.items()),  # type: ignore[misc]
    ]


def trained(adj: fusedmm.CSR, feat: int, new: Callable[..., Tensor]) -> list[Trial]:
    """A maximum with the gradients of values and x, beside torch's, which are of the matrix and x."""
    x, val = (t.requires_grad_() for t in (new(adj.shape[1], feat, seed=3), new(adj.nnz, seed=2)))
    gout = new(adj.shape[0], feat, seed=4)
    adj.cache_transpose()

    def maximum(x: Tensor, val: Tensor, algorithm: str) -> tuple[Tensor, ...]:
        out = fusedmm.spmm(adj.with_values(val), x, reduce="max", algorithm=algorithm)
        return (out, *torch.autograd.grad(out, (val, x), gout.to(out.dtype)))

    def by_torch(matrix: Tensor) -> tuple[Tensor, ...]:
        out = torch.sparse.mm(matrix, x, "amax")
        grad, grad_x = torch.autograd.grad(out, (matrix, x), gout)
        return out, grad.values(), grad_x

    peers = {}
    for index in (torch.int64, torch.int32):
        matrix = torch.sparse_csr_tensor(adj.ptr.to(index), adj.idx.to(index), val.detach(), adj.shape).requires_grad_()
        peers[f"torch.sparse.mm, {str(index)[6:]}"] = partial(by_torch, matrix)
    exact = maximum(*(t.detach().double().requires_grad_() for t in (x, val)), "reference")
    return stepwise(partial(maximum, x, val, "auto"), peers, [t.detach() for t in exact])


def softmaxes(adj: fusedmm.CSR, heads: int, backward: bool, new: Callable[..., Tensor]) -> list[Trial]:
    """``edge_softmax``, beside PyG's softmax of edges in the order of rows, by their rows or by where rows begin."""
    logits, gout = new(adj.nnz, heads, seed=2).requires_grad_(backward), new(adj.nnz, heads, seed=4)
    row = adj.coo()[0].long()

    def step(softmax: Callable[[Tensor], Tensor], logits: Tensor = logits) -> tuple[Tensor, ...]:
        out = softmax(logits)
        return (out, *torch.autograd.grad(out, logits, gout.to(out.dtype))) if backward else (out,)

    def by_pyg(logits: Tensor, **by: Tensor) -> Tensor:
        from torch_geometric.utils import softmax

        out: Tensor = softmax(logits, num_nodes=adj.shape[0], **by)
        return out

    ours = partial(fusedmm.edge_softmax, adj)
    exact = step(ours, logits.detach().double().requires_grad_(backward))
    peers = {
        "PyG by rows": partial(step, partial(by_pyg, index=row)),
        "PyG by ptr": partial(step, partial(by_pyg, ptr=adj.ptr)),
    }
    return stepwise(partial(step, ours), peers, [t.detach() for t in exact])


def beside(adj: fusedmm.CSR, feat: int, new: Callable[..., Tensor]) -> list[Trial]:
    """The sum in 16 bits, beside our own in float32 of the same numbers."""
    x, weighted = new(adj.shape[1], feat, seed=3), adj.with_values(new(adj.nnz, seed=2))
    assert weighted.val is not None
    wide, wide_x = adj.with_values(weighted.val.float()), x.float()
    return [
        trial("auto", partial(fusedmm.spmm, weighted, x), exact=partial(exactly, weighted, x, "sum")),
        trial("in float32", partial(fusedmm.spmm, wide, wide_x), "peer", exact=partial(exactly, weighted, x, "sum")),
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
