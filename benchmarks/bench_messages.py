"""Messages reduced to nodes: ``gspmm`` beside torch's index_add and scatter_reduce, and segment_reduce on sorted edges.

Edges stand in the order of rows, or in a random order. e has as many features as x. What peers gather for ``mul`` is a
part of their time, as nothing reduces it on the way. The wall copies as many bytes as a message reads and writes: each
row of e once, x, the indices, and the result. Alone: ``python -m benchmarks messages``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fusedmm
from benchmarks.bench_forms import trial
from benchmarks.case import random
from benchmarks.jobs import Job, Options, small
from benchmarks.trial import Trial

WIDTHS = (1, 8, 32, 128)
CALLS = [("copy_rhs", "sum"), ("copy_rhs", "max"), ("mul", "sum"), ("add", "max")]
PEERS = {"sum": "sum", "max": "amax"}  # of scatter_reduce


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """Every call, in every width, on edges in both orders."""
    row, col, _ = adj.coo()
    order = torch.randperm(adj.nnz, generator=torch.Generator(adj.device).manual_seed(1), device=adj.device)
    for shuffled in (False, True):
        ends = (row[order], col[order]) if shuffled else (row, col)
        graph = fusedmm.CSR.from_coo(*ends, shape=adj.shape)
        for (op, reduce), feat in itertools.product(CALLS, WIDTHS):
            label = f"{op} {reduce}, {feat} features, {'shuffled' if shuffled else 'sorted'} edges"
            if options.wants(label):
                made = partial(trials, graph, ends, op, reduce, feat, not shuffled, options)
                yield Job(label, made, host=small(adj), seconds=min(options.seconds, 0.1))


def trials(
    adj: fusedmm.CSR, ends: tuple[Tensor, Tensor], op: str, reduce: str, feat: int, ordered: bool, options: Options
) -> list[Trial]:
    """Ours, the peers, and the copy."""
    new = partial(random, dtype=options.dtype, device=options.device)
    (row, col), rows = ends, adj.shape[0]
    x, e = new(adj.n_cols, feat, seed=3), new(adj.nnz, feat, seed=2)

    def messages() -> Tensor:
        return e if op == "copy_rhs" else torch.mul(x[col], e) if op == "mul" else torch.add(x[col], e)

    def scattered() -> Tensor:
        to = row[:, None].expand(adj.nnz, feat)
        return e.new_zeros(rows, feat).scatter_reduce(0, to, messages(), PEERS[reduce], include_self=False)

    def segments() -> Tensor:
        return torch.segment_reduce(messages(), reduce, offsets=adj.ptr, initial=0)

    def exact() -> Tensor:
        return fusedmm.gspmm(adj, op, reduce, x.double(), e.double(), algorithm="reference")

    peers: dict[str, Any] = {"scatter_reduce": scattered}
    if reduce == "sum":
        peers["index_add"] = lambda: e.new_zeros(rows, feat).index_add(0, row, messages())
        if ordered:  # a maximum of it starts at its initial value, so that all below 0 would be lost
            peers["segment_reduce"] = segments
    moved = (e.numel() + (0 if op == "copy_rhs" else x.numel()) + rows * feat) * e.element_size()
    half = torch.zeros((moved + 4 * adj.nnz) // 8, device=options.device)
    to = torch.empty_like(half)
    return [
        trial("auto", partial(fusedmm.gspmm, adj, op, reduce, x, e), exact=exact),
        *(trial(name, call, "peer", exact=exact) for name, call in peers.items()),
        Trial("a copy of as many bytes", lambda: lambda: (to.copy_(half),), "wall"),
    ]
