"""The layers of fusedmm.nn beside PyG's with the same weights, 128 features in, forward + backward.

PyG is measured as shipped; for its convolutions also with a torch.sparse matrix normalised beforehand; and
compiled, self loops added beforehand. Ours are given a CSR. A training epoch of a two-layer GCN stands beside
them on the graphs that have features.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

import fusedmm
from benchmarks.case import random
from benchmarks.jobs import Job, Options, small
from benchmarks.trial import Step, Trial, compiled
from fusedmm.data import find_graph, load_npz

FEAT, HIDDEN = 128, 16
EPOCHS = ("amazon_photo", "coauthor_cs")
CHECKED = 2**21  # entries up to which PyG in float64 says what is right
LIMIT = 68 * 2.0**-24  # of a norm, as for attention; each gradient passes through one more product
KINK = 2.0**-12  # a score that float32 rounds to the other side of leaky_relu's kink changes most of a term
KINDS = 4  # of edges, for RGCNConv
TO = ("n", "to", "n")  # the one kind of edges of HGTConv and HANConv
# label: name, sizes, options, and the channels of an entry that PyG keeps
LAYERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any], int]] = {
    "GATConv 8x8": ("GATConv", (FEAT, 8), {"heads": 8}, 64),
    "GATv2Conv 8x8": ("GATv2Conv", (FEAT, 8), {"heads": 8}, 64),
    "TransformerConv 8x8": ("TransformerConv", (FEAT, 8), {"heads": 8}, 64),
    "AGNNConv 1x128": ("AGNNConv", (), {}, FEAT),
    "GATConv 8x64": ("GATConv", (FEAT, 64), {"heads": 8}, 512),
    "GATv2Conv 8x64": ("GATv2Conv", (FEAT, 64), {"heads": 8}, 512),
    "TransformerConv 8x64": ("TransformerConv", (FEAT, 64), {"heads": 8}, 512),
    "GCNConv 128": ("GCNConv", (FEAT, FEAT), {}, FEAT),
    "SAGEConv 128": ("SAGEConv", (FEAT, FEAT), {}, FEAT),
    "SAGEConv mul 128": ("SAGEConv", (FEAT, FEAT), {"aggr": "mul"}, FEAT),
    "SAGEConv median 128": ("SAGEConv", (FEAT, FEAT), {"aggr": "median"}, FEAT),
    "GraphConv 128": ("GraphConv", (FEAT, FEAT), {}, FEAT),
    "LGConv": ("LGConv", (), {}, FEAT),
    "SGConv 128": ("SGConv", (FEAT, FEAT, 2), {}, FEAT),
    "APPNP": ("APPNP", (4, 0.1), {}, FEAT),
    "TAGConv 128": ("TAGConv", (FEAT, FEAT), {}, FEAT),
    "ChebConv 128": ("ChebConv", (FEAT, FEAT, 3), {}, FEAT),
    "RGCNConv 128": ("RGCNConv", (FEAT, FEAT, KINDS), {}, FEAT),
    "FastRGCNConv 128": ("FastRGCNConv", (FEAT, FEAT, KINDS), {"num_bases": 2}, FEAT),
    "PNAConv 128": ("PNAConv", (FEAT, FEAT, ["mean", "max", "std"], ["identity", "amplification"]), {}, FEAT),
    "ResGatedGraphConv 128": ("ResGatedGraphConv", (FEAT, FEAT), {}, FEAT),
    "GENConv 128": ("GENConv", (FEAT, FEAT), {}, FEAT),
    "SuperGATConv 8x8": ("SuperGATConv", (FEAT, 8), {"heads": 8}, 64),
    "HGTConv 8x8": ("HGTConv", (FEAT, 64, (["n"], [TO])), {"heads": 8}, 64),
    "HANConv 8x8": ("HANConv", (FEAT, 64, (["n"], [TO])), {"heads": 8}, 64),
}
LOOPS = ("GATConv", "GATv2Conv", "AGNNConv", "GCNConv")  # whose default adds self loops


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """Every layer, and the epoch where there are features."""
    for label in LAYERS:
        if options.wants(f"{label} forward + backward"):
            make = partial(trials, adj, label, options.compile)
            yield Job(f"{label} forward + backward", make, host=small(adj), replay=small(adj))
    if name in EPOCHS and options.wants("GCN epoch"):
        yield Job("GCN epoch", partial(epochs, name, options.device), host=True)


def peer_layer(name: str, sizes: tuple[int, ...], options: dict[str, Any], like: Module | None) -> Module:
    """PyG's layer, with the weights of ours if given.

    Raises:
        ImportError: there is no PyG.
    """
    from torch_geometric import nn

    layer: Module = getattr(nn, name)(*sizes, **options)
    if like is not None:
        layer = layer.to(next((p.device for p in like.parameters()), torch.device("cpu")))
        layer.load_state_dict(like.state_dict())
    return layer.train(like is None or like.training)


def gradients(layer: Any, x: Tensor, graph: Any, gout: Tensor) -> tuple[Tensor, ...]:
    """The layer's result, and the gradients of x and the weights."""
    out = _result(layer, x, graph)
    return (out, *torch.autograd.grad(out, [x, *layer.parameters()], gout, materialize_grads=True))


def _result(layer: Any, x: Tensor, graph: Any) -> Tensor:
    kind = type(getattr(layer, "_orig_mod", layer)).__name__
    found: Any
    if kind in ("HGTConv", "HANConv"):
        found = layer({"n": x}, {TO: graph})["n"]
    elif kind in ("RGCNConv", "FastRGCNConv"):
        found = layer(x, graph, _kinds(graph.nnz if isinstance(graph, fusedmm.CSR) else graph.shape[1], x.device))
    else:
        found = layer(x, graph)
    out: Tensor = found
    return out


@cache
def _kinds(edges: int, device: torch.device) -> Tensor:
    """The kind of each edge, one tensor for all steps, as whoever trains has it."""
    return torch.arange(edges, device=device) % KINDS


def _options(label: str, adj: fusedmm.CSR) -> dict[str, Any]:
    """The layer's options, of which PNAConv wants how many nodes have each degree."""
    name, _, options, _ = LAYERS[label]
    return options | {"deg": torch.bincount(adj.degree().cpu())} if name == "PNAConv" else options


def edges_of(adj: fusedmm.CSR) -> Tensor:
    """The edges as PyG has them, [2, E]: sources, then targets."""
    row, col, _ = adj.coo()
    return torch.stack([col.long(), row.long()])


def torch_sparse(adj: fusedmm.CSR) -> Tensor:
    """torch's CSR of the same matrix."""
    val = torch.ones(adj.nnz, device=adj.device) if adj.val is None else adj.val
    if adj.val is not None and adj.eid.numel():
        val = adj.val[adj.eid.long()]
    return torch.sparse_csr_tensor(adj.ptr, adj.idx.long(), val, adj.shape)


def trials(adj: fusedmm.CSR, label: str, compiles: bool) -> list[Trial]:
    """Ours and PyG's."""
    name, sizes, _, channels = LAYERS[label]
    options = _options(label, adj)
    device = adj.device.type
    torch.manual_seed(0)
    x = random(adj.shape[0], FEAT, dtype=torch.float32, device=device, seed=3).requires_grad_()
    ours: Module = getattr(fusedmm.nn, name)(*sizes, **options).to(device)
    ours.train(name != "SuperGATConv")  # which samples edges in training
    with torch.no_grad():
        gout = random(*_result(ours, x, adj).shape, dtype=torch.float32, device=device, seed=4)
    adj.cache_transpose()

    beyond = options.get("aggr") == "median" and not int(adj.degree()[0])

    def look() -> None:
        """Keeps PyG's median from entry -1, which it takes where the first node has no edges: CUDA ends with that."""
        if beyond:
            raise IndexError("takes entry -1 where the first node has no edges")

    def eager() -> Step:
        look()
        return partial(gradients, peer_layer(name, sizes, options, ours), x, edges_of(adj), gout)

    def sparse() -> Step:
        look()
        plain = options | ({"normalize": False} if name == "GCNConv" else {})
        matrix = torch_sparse(adj.gcn_norm() if name == "GCNConv" else adj)
        return partial(gradients, peer_layer(name, sizes, plain, ours), x, matrix, gout)

    def by_compiler() -> Step:
        loops = name in LOOPS
        layer = peer_layer(name, sizes, options | ({"add_self_loops": False} if loops else {}), ours)
        edges = edges_of(adj.add_self_loops().pattern() if loops else adj)
        fast = compiled(layer, lambda form: gradients(form, x, edges, gout), dynamic=True)
        return partial(gradients, fast, x, edges, gout)

    expected = 6 * 4 * adj.nnz * channels
    check = partial(_error, adj, label, ours, x, gout) if adj.nnz <= CHECKED and not beyond else None
    found = [
        Trial("auto", lambda: partial(gradients, ours, x, adj, gout), "ours", check=check),
        Trial("PyG", eager, "peer", expected=expected),
    ]
    if name in ("GCNConv", "SAGEConv"):
        found.append(Trial("PyG with torch.sparse", sparse, "peer"))
    if compiles:
        # It keeps at most a quarter, as seen on the smaller graphs.
        found.append(Trial("PyG compiled", by_compiler, "peer", expected=expected // 4))
    return found


def _error(adj: fusedmm.CSR, label: str, ours: Module, x: Tensor, gout: Tensor) -> tuple[float, float]:
    """The largest norm of a difference from PyG in float64 over the norm: result, x, all weights."""
    name, sizes, _, _ = LAYERS[label]
    options = _options(label, adj)
    layer = peer_layer(name, sizes, options, ours).double()
    exact = gradients(layer, x.detach().double().requires_grad_(), edges_of(adj), gout.double())
    found = gradients(ours, x, adj, gout)
    whole = [torch.cat([t.detach().double().view(-1) for t in g[2:]] or [g[1].new_zeros(1)]) for g in (found, exact)]
    # The weights' gradients together: some of them, as that of a key's bias, are exactly 0.
    pairs = [*zip(found[:2], exact[:2], strict=True), (whole[0], whole[1])]
    errors = [(a.detach().double() - b.detach()).norm() / b.detach().norm().clamp(min=1e-300) for a, b in pairs]
    return max(map(float, errors)), KINK if name in ("GATConv", "GATv2Conv") else LIMIT


class Network(torch.nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self, first: Module, second: Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Scores of the classes."""
        out: Tensor = self.second(self.first(x, graph).relu(), graph)
        return out


def epochs(name: str, device: str) -> list[Trial]:
    """A step of Adam on the whole graph; every node has its label."""
    graph = load_npz(find_graph(name))
    assert graph.x is not None and graph.y is not None
    x, y, adj = graph.x.to(device), graph.y.long().to(device), graph.adj.pattern().to(device)
    x = x.to_dense() if x.layout != torch.strided else x
    sizes = [(x.shape[1], HIDDEN), (HIDDEN, int(y.max()) + 1)]
    norm = adj.gcn_norm().cache_transpose()

    def training(matrix: Any, network: Network) -> Step:
        network = network.to(device)
        adam = torch.optim.Adam(network.parameters(), lr=0.01)

        def step() -> tuple[Tensor, ...]:
            adam.zero_grad()
            loss = cross_entropy(network(x, matrix), y)
            loss.backward()
            adam.step()
            return (loss.detach(),)

        return step

    def ours() -> Step:
        return training(adj, Network(*(fusedmm.nn.GCNConv(*size) for size in sizes)))

    def peer(options: dict[str, Any], matrix: Any) -> Step:
        return training(matrix, Network(*(peer_layer("GCNConv", size, options, None) for size in sizes)))

    return [
        Trial("auto", ours, "ours"),
        Trial("PyG", lambda: peer({"cached": True}, edges_of(adj)), "peer"),
        Trial("PyG with torch.sparse", lambda: peer({"normalize": False}, torch_sparse(norm)), "peer"),
    ]
