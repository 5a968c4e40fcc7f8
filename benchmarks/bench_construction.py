"""What a new graph costs: CSR from edges in any order, beside two sorts of their keys and torch.sparse's own way;
and layers that are given a fresh edge_index every step, all of the graph or as much as neighbour samplers give,
beside PyG's. A step on the edges of a sample waits for calls: its host time is measured too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import fusedmm
from benchmarks.bench_layers import gradients, peer_layer
from benchmarks.case import random
from benchmarks.jobs import Job, Options
from benchmarks.trial import Step, Trial

FEAT = 64
SAMPLES = ((64, 256), (1_000, 5_000), (3_000, 10_000), (20_000, 100_000))  # nodes and edges at most
SAMPLE_FEAT = 32


def jobs(graph: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """The structure, with its transpose, and a step."""
    row, col, _ = adj.coo()
    order = torch.randperm(adj.nnz, generator=torch.Generator(adj.device).manual_seed(1), device=adj.device)
    edge_index = torch.stack([col.long(), row.long()])[:, order]
    for transpose in (False, True):
        label = f"edges to CSR{' and its transpose' if transpose else ''}"
        if options.wants(label):
            yield Job(label, partial(structures, edge_index, adj.shape[0], transpose), waits=True)
    cases = [(name, FEAT, edge_index, adj.shape[0], "") for name in ("GCNConv", "SAGEConv")]
    for n, edges in SAMPLES:
        sample = edge_index[:, :edges] % n
        cases += [(name, SAMPLE_FEAT, sample, n, f" of {n} nodes") for name in ("GCNConv", "SAGEConv", "GATConv")]
    for name, feat, edges_of, n, of in cases:
        label = f"{name} {feat} to {feat}, fresh edges{of}, forward + backward"
        if options.wants(label):
            yield Job(label, partial(layers, name, edges_of, n, feat), host=bool(of), waits=True)


def structures(edge_index: Tensor, n: int, transpose: bool) -> list[Trial]:
    """Ours and two ways of torch."""

    def ours(check: bool) -> tuple[Tensor, ...]:
        made = fusedmm.CSR.from_edge_index(edge_index, size=n, check=check)
        if not transpose:
            return made.ptr, made.idx, made.eid
        other = made.cache_transpose().t()
        return made.ptr, made.idx, made.eid, other.ptr, other.idx, other.eid

    def two_sorts() -> tuple[Tensor, ...]:
        keys = edge_index[1] * n + edge_index[0]
        return torch.sort(keys)[1], torch.sort(keys)[1]

    def torch_sparse() -> tuple[Tensor, ...]:
        ones = torch.ones(edge_index.shape[1], device=edge_index.device)
        made = torch.sparse_coo_tensor(edge_index.flip(0), ones, (n, n)).to_sparse_csr()
        return made.crow_indices(), made.col_indices(), made.values()

    found = [
        Trial("auto", lambda: partial(ours, True), "ours", results=6),
        Trial("unchecked", lambda: partial(ours, False), "ours", results=6),
        Trial("two sorts of the keys", lambda: two_sorts, "peer", results=2),
    ]
    return found if transpose else [*found, Trial("torch.sparse", lambda: torch_sparse, "peer", results=3)]


def layers(name: str, edge_index: Tensor, n: int, feat: int) -> list[Trial]:
    """A layer of ours and of PyG, with edges that neither has seen."""
    device = edge_index.device.type
    x = random(n, feat, dtype=torch.float32, device=device, seed=3).requires_grad_()
    gout = random(n, feat, dtype=torch.float32, device=device, seed=4)
    ours = getattr(fusedmm.nn, name)(feat, feat).to(device)

    def step(layer: torch.nn.Module) -> tuple[Tensor, ...]:
        return gradients(layer, x, edge_index.clone(), gout)

    def peer() -> Step:
        return partial(step, peer_layer(name, (feat, feat), {}, ours))

    return [
        Trial("auto", lambda: partial(step, ours), "ours"),
        Trial("PyG", peer, "peer", expected=4 * edge_index.shape[1] * feat * 4),
    ]
