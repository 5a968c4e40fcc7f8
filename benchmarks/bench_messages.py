"""Messages reduced to nodes: ``gspmm`` beside torch's index_add and scatter_reduce, and segment_reduce on sorted edges.

Edges stand in the order of rows, or in a random order. e has as many features as x. What peers gather for ``mul`` is a
part of their time, as nothing reduces it on the way. The wall copies as many bytes as a message reads and writes: each
row of e once, x, the indices, and the result. ``forward + backward`` has the gradients of x and e too, whose peers' are
autograd's; ``gsddmm`` adds features of sources and targets beside torch's gathers. Alone: ``python -m benchmarks
messages``.
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
LEARNING = [("copy_rhs", "sum"), ("mul", "sum"), ("add", "max")]
LIMIT = 68 * 2.0**-24  # of a norm, as for layers
WIDE = 32  # features of the calls with gradients, and of those that stay at edges
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
        for op, reduce in LEARNING:
            label = f"{op} {reduce} forward + backward, {WIDE} features, {'shuffled' if shuffled else 'sorted'} edges"
            if options.wants(label):
                made = partial(learning, graph, ends, op, reduce, options)
                yield Job(label, made, host=small(adj), seconds=min(options.seconds, 0.1))
        label = f"gsddmm add, {WIDE} features, {'shuffled' if shuffled else 'sorted'} edges"
        if options.wants(label):
            made = partial(at_edges, graph, ends, options)
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


def learning(adj: fusedmm.CSR, ends: tuple[Tensor, Tensor], op: str, reduce: str, options: Options) -> list[Trial]:
    """The result and the gradients of x and e, ours and by autograd through the peers."""
    new = partial(random, dtype=options.dtype, device=options.device)
    (row, col), rows = ends, adj.shape[0]
    x, e = new(adj.n_cols, WIDE, seed=3).requires_grad_(), new(adj.nnz, WIDE, seed=2).requires_grad_()
    gout, wanted = new(rows, WIDE, seed=4), [e] if op == "copy_rhs" else [x, e]
    adj.cache_transpose()

    def with_gradients(out: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
        return (out, *torch.autograd.grad(out, of, gout.to(out.dtype)))

    def messages() -> Tensor:
        return e if op == "copy_rhs" else torch.mul(x[col], e) if op == "mul" else torch.add(x[col], e)

    def scattered() -> tuple[Tensor, ...]:
        to = row[:, None].expand(adj.nnz, WIDE)
        empty = e.new_zeros(rows, WIDE)
        return with_gradients(empty.scatter_reduce(0, to, messages(), PEERS[reduce], include_self=False), wanted)

    def added() -> tuple[Tensor, ...]:
        return with_gradients(e.new_zeros(rows, WIDE).index_add(0, row, messages()), wanted)

    def ours() -> tuple[Tensor, ...]:
        return with_gradients(fusedmm.gspmm(adj, op, reduce, x, e), wanted)

    def check() -> tuple[float, float]:
        like = {id(t): t.detach().double().requires_grad_() for t in (x, e)}
        out = fusedmm.gspmm(adj, op, reduce, like[id(x)], like[id(e)], algorithm="reference")
        exact = with_gradients(out, [like[id(t)] for t in wanted])
        found = zip(ours(), exact, strict=True)
        return max(float(((a.double() - b).norm() / b.norm()).detach()) for a, b in found), LIMIT

    peers: dict[str, Any] = {"scatter_reduce": scattered} | ({"index_add": added} if reduce == "sum" else {})
    return [
        Trial("auto", lambda: ours, "ours", check=check),
        *(Trial(name, lambda call=call: call, "peer") for name, call in peers.items()),  # type: ignore[misc]
    ]


def at_edges(adj: fusedmm.CSR, ends: tuple[Tensor, Tensor], options: Options) -> list[Trial]:
    """Sums of sources' and targets' features at each edge, beside torch's two gathers and their sum."""
    new = partial(random, dtype=options.dtype, device=options.device)
    u, v = new(adj.n_cols, WIDE, seed=3), new(adj.shape[0], WIDE, seed=2)
    (row, col) = ends

    def exact() -> Tensor:
        return fusedmm.gsddmm(adj, "add", u.double(), v.double(), algorithm="reference")

    return [
        trial("auto", partial(fusedmm.gsddmm, adj, "add", u, v), exact=exact),
        trial("x[col] + y[row]", lambda: u[col] + v[row], "peer", exact=exact),
    ]
