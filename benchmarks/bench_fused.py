"""fusedmm.fused, one pass, beside its two halves one after the other: ours, the vendors' and torch's.

Both make ``out[i] = sum_p w(<x[i], x[j]>, a[p]) x[j]``. The wall is SpMM alone at the same width, and for the
backward also its row pass's and its column pass's gathers.

Real graphs are measured in all forms; the large twins with one edge function and two widths; pruned layers and
sweeps over sizes, which are published for the forward alone, in that, with every size of block of the lessons.
A contender that takes longer than ``PATIENCE`` for one step is left out with that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import fusedmm
from benchmarks import graphs
from benchmarks.attend import Entries, Exact
from benchmarks.case import FIRST_PLUGIN, random
from benchmarks.jobs import Job, Options, small
from benchmarks.trial import Trial
from fusedmm.edge.parse import parse

WIDTHS = (32, 128, 256)
PATIENCE = {"cuda": 0.25, "cpu": 1.0}  # seconds of a step
BRIEFLY = 0.05  # of a contender's repetitions
BLOCK = "128"  # of the lessons' sizes of blocks, the one that stands for all outside of the sweeps
TWO_CALLS = ("back_to_back", "cusparse", "cublas")
EDGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "s*a": lambda s, a: s * a,
    "sigmoid(s)": lambda s, a: torch.sigmoid(s),
}


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """Every edge function and width, forward and with backward; fewer of matrices that come in dozens."""
    layer = name.endswith("%")
    sized = layer or name in graphs.TWINS or name in graphs.SYMMETRIC
    patience = PATIENCE[options.device]
    seconds = min(options.seconds, BRIEFLY) if sized else options.seconds
    for edge in list(EDGES)[: 1 if sized else None]:
        for feat in WIDTHS[: 2 if sized else None]:
            for backward in (False, True)[: 1 if layer else None]:
                label = f"{edge} K={feat} {'forward + backward' if backward else 'forward'}"
                if options.wants(label):
                    make = partial(trials, adj, edge, feat, options.dtype, backward, name in graphs.SWEEPS)
                    facts = {} if backward else {"feat": feat, "flops": 4 * adj.nnz * feat}
                    replay = small(adj) and not sized
                    yield Job(label, make, replay=replay, seconds=seconds, patience=patience, facts=facts)


def listed(device: str, backward: bool, blocks: bool) -> Iterator[tuple[str, bool]]:
    """Algorithms and whether they are ours; in the backward, which is the same for all, none but auto."""
    for a in () if backward else fusedmm.algorithms("fused", device):
        plugin = a.number >= FIRST_PLUGIN
        if not a.name.startswith("reference") and (not plugin or blocks or a.name.partition(":")[2] in ("", BLOCK)):
            yield a.name, not plugin and a.name not in TWO_CALLS


def trials(
    adj: fusedmm.CSR, edge: str, feat: int, dtype: torch.dtype, backward: bool, blocks: bool = False
) -> list[Trial]:
    """Every algorithm of ours, the vendors' and plug-ins', back to back, and the wall."""
    device, square, weigh = adj.device.type, adj.shape[0] == adj.shape[1], EDGES[edge]
    x = [random(n, feat, dtype=dtype, device=device, seed=3 + k) for k, n in enumerate(adj.shape)]
    x = [t.mul_(feat**-0.5).requires_grad_() for t in (x[:1] if square else x)]
    val = random(adj.nnz, dtype=dtype, device=device, seed=2)
    weighted, ptr = adj.with_values(val if parse(edge).uses("a") else None), adj.ptr.to(torch.int32)
    gout = random(adj.shape[0], feat, dtype=dtype, device=device, seed=8)
    zero = torch.sparse_csr_tensor(ptr, adj.idx, torch.zeros_like(val), adj.shape)

    def ours(algorithm: str, *x: Tensor) -> Tensor:
        return fusedmm.fused(weighted, x[0], x[-1], edge=edge, algorithm=algorithm)

    def two_calls(*x: Tensor) -> Tensor:
        w = weigh(fusedmm.sddmm(adj, x[0], x[-1]), val)
        return fusedmm.spmm(adj.with_values(w), x[-1])

    def two_of_torch(*x: Tensor) -> Tensor:
        s = torch.sparse.sampled_addmm(zero, x[0], x[-1].t(), beta=0.0).values()
        return torch.sparse_csr_tensor(ptr, adj.idx, weigh(s, val), adj.shape) @ x[-1]

    def formula(at: Entries, *x: Tensor) -> Tensor:
        w = weigh((x[0][at.row] * x[-1][at.col]).sum(-1), val[at.entry].double())
        return x[0].new_zeros(at.rows, feat).index_add(0, at.row, w[:, None] * x[-1][at.col])

    exact = Exact(formula, adj, x, ["node"] if square else ["row", "col"], feat)

    def call(compute: Callable[..., Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
        if not backward:
            with torch.no_grad():
                return (compute(*x),)
        out = compute(*x)
        return (out, *torch.autograd.grad(out, x, upstream))

    def trial(name: str, compute: Callable[..., Tensor], kind: str) -> Trial:
        step = partial(call, compute, gout)
        return Trial(name, lambda: step, kind, check=lambda: exact.error(call(compute, exact.gout)))

    if backward:
        adj.cache_transpose()
    found = [trial("auto", partial(ours, "auto"), "ours")]
    for name, own in listed(device, backward, blocks):
        found.append(trial(name, partial(ours, name), "ours" if own else "peer"))
    found.append(trial("sddmm, then spmm", two_calls, "peer"))
    found.append(trial("sampled_addmm, then CSR @ dense", two_of_torch, "peer"))
    wide = random(adj.shape[0], 2 * feat, dtype=dtype, device=device, seed=10)
    column = x[-1].detach()

    def gather() -> tuple[Tensor, ...]:
        if not backward:
            return (fusedmm.spmm(adj, column),)
        return fusedmm.spmm(adj, column), fusedmm.spmm(adj, column), fusedmm.spmm(adj.t(), wide)

    return [*found, Trial("spmm alone", lambda: gather, "wall", results=3)]
