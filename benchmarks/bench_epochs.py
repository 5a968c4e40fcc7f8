"""Training on a whole graph: an epoch of GAT, GCN and SAGE, which is a step of Adam with every node in the loss.

Two layers with a ReLU between them, 128 features in, 40 classes. PyG's layers are measured as shipped, compiled with
self loops added beforehand and, but for GAT, with a torch.sparse matrix that was normalised beforehand. Peak memory is
that of a step beyond the features, the weights and the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

import fusedmm
from benchmarks.bench_layers import FEAT, Network, edges_of, peer_layer, torch_sparse
from benchmarks.case import random
from benchmarks.jobs import Job, Options
from benchmarks.trial import Step, Trial, compiled

CLASSES, HIDDEN = 40, 64
PATIENCE = 5.0  # seconds of a peer's step: what takes longer is left out with that time
MODELS: dict[str, list[tuple[tuple[int, ...], dict[str, Any]]]] = {  # of each layer, sizes and options
    "GATConv": [((FEAT, HIDDEN // 8), {"heads": 8}), ((HIDDEN, CLASSES), {})],
    "GCNConv": [((FEAT, HIDDEN), {}), ((HIDDEN, CLASSES), {})],
    "SAGEConv": [((FEAT, HIDDEN), {}), ((HIDDEN, CLASSES), {})],
}


def jobs(_: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """Every model."""
    for model in MODELS:
        if options.wants(f"{model} epoch"):
            yield Job(f"{model} epoch", partial(trials, adj, model, options.compile), patience=PATIENCE)


def trials(adj: fusedmm.CSR, model: str, compiles: bool) -> list[Trial]:
    """Ours and PyG's, all with the same first weights."""
    device, n = adj.device.type, adj.shape[0]
    x = random(n, FEAT, dtype=torch.float32, device=device, seed=3)
    y = torch.randint(CLASSES, (n,), generator=torch.Generator().manual_seed(5)).to(device)
    adj.cache_transpose()
    loops, layers = model != "SAGEConv", MODELS[model]

    def training(network: Any, graph: Any, form: Any = None) -> Step:
        adam = torch.optim.Adam(network.parameters(), lr=0.01)

        def step() -> tuple[Tensor, ...]:
            adam.zero_grad()
            loss = cross_entropy((network if form is None else form)(x, graph), y)
            loss.backward()
            adam.step()
            return (loss.detach(),)

        return step

    def network(make: Any, **more: Any) -> Network:
        torch.manual_seed(0)
        made: list[Module] = [make(*sizes, **options, **more) for sizes, options in layers]
        return Network(made[0], made[1]).to(device)

    def ours() -> Step:
        return training(network(getattr(fusedmm.nn, model)), adj)

    def peer(graph: Any, compiles: bool = False, **more: Any) -> Step:
        theirs = network(lambda *sizes, **options: peer_layer(model, sizes, options, None), **more)
        if not compiles:
            return training(theirs, graph)

        def run(form: Any) -> None:
            training(theirs, graph, form)()

        return training(theirs, graph, compiled(theirs, run, dynamic=True))

    def sparse() -> Step:
        more = {"normalize": False} if model == "GCNConv" else {}
        return peer(torch_sparse(adj.gcn_norm() if more else adj), **more)

    def by_compiler() -> Step:
        looped = adj.add_self_loops().pattern() if loops else adj
        return peer(edges_of(looped), True, **({"add_self_loops": False} if loops else {}))

    expected, cached = 6 * 4 * adj.nnz * HIDDEN, {"cached": True} if model == "GCNConv" else {}
    found = [
        Trial("auto", ours, "ours"),
        Trial("PyG", lambda: peer(edges_of(adj), **cached), expected=expected),
    ]
    if model != "GATConv":
        found.append(Trial("PyG with torch.sparse", sparse))
    if compiles:
        found.append(Trial("PyG compiled", by_compiler, expected=expected // 4))
    return found
