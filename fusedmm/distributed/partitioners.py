"""Which part each node belongs to: contiguous and random cuts, and those of METIS and KaMinPar.

All of them balance ``weights``: the entries of a row plus the mean of all rows. Entries alone would give a part of
short rows many times the nodes of another one, and with them the memory of their features.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fusedmm.data.graph import extra
from fusedmm.matrix.csr import CSR

IMBALANCE = 0.03  # by which KaMinPar's heaviest part may exceed the mean, METIS's default for many parts


def weights(adj: CSR) -> Tensor:
    """What each node counts in the balance, int64 [nodes]: its entries and the mean of all rows, at least 1."""
    return adj.degree() + max(1, round(adj.nnz / max(adj.shape[0], 1)))


def cut(weight: Tensor, parts: int) -> Tensor:
    """The part of each node if consecutive nodes stay together: that in which the middle of its weight falls."""
    end = weight.cumsum(0)
    return (2 * end - weight) * parts // (2 * end[-1:])


def contiguous(adj: CSR, parts: int, seed: int) -> Tensor:
    """Consecutive nodes, in the order that the graph has."""
    return cut(weights(adj), parts)


def shuffled(adj: CSR, parts: int, seed: int) -> Tensor:
    """Nodes drawn by the seed, so that hubs are spread over all parts."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(adj.shape[0]))
    return torch.empty_like(order).scatter_(0, order, cut(weights(adj)[order], parts))


def metis(adj: CSR, parts: int, seed: int) -> Tensor:
    """The k-way partition of Karypis and Kumar 1998, which cuts few edges."""
    pymetis = extra("pymetis", install="partition")
    if not _is_cuttable(adj, parts):
        return contiguous(adj, parts, seed)
    ptr, idx = _undirected(adj)
    graph = pymetis.CSRAdjacency(ptr.numpy(), idx.numpy())
    found = pymetis.part_graph(
        parts, graph, vweights=weights(adj).numpy(), recursive=False, options=pymetis.Options(seed=seed)
    )
    return torch.as_tensor(np.asarray(found.vertex_part, dtype=np.int64))


def kaminpar(adj: CSR, parts: int, seed: int) -> Tensor:
    """The deep multilevel partition of Gottesbüren et al. 2021, on as many threads as torch has."""
    kmp = extra("kaminpar", install="partition")
    if not kmp.__64bit__:
        raise ImportError("partition: kaminpar must be a build with 64-bit indices")
    if not _is_cuttable(adj, parts):
        return contiguous(adj, parts, seed)
    ptr, idx = _undirected(adj)
    with tempfile.TemporaryDirectory() as folder:  # its Python takes graphs from files only
        path = Path(folder, "graph.parhip")
        with path.open("wb") as file:
            # ParHiP's binary format: version 1 is 64-bit numbers with weights of nodes and none of edges, then the
            # sizes, where in the file each row begins, the columns, the weights.
            for numbers in ([1, ptr.numel() - 1, idx.numel()], 8 * (ptr + 3 + ptr.numel()), idx, weights(adj)):
                np.asarray(numbers, dtype=np.uint64).tofile(file)
        graph = kmp.load_graph(str(path), kmp.GraphFileFormat.PARHIP)
    kmp.reseed(seed)
    solver = kmp.KaMinPar(torch.get_num_threads(), kmp.default_context())
    return torch.tensor(solver.compute_partition(graph, parts, IMBALANCE), dtype=torch.int64)


def _is_cuttable(adj: CSR, parts: int) -> bool:
    """Whether there is anything to choose; METIS complains of graphs with fewer nodes than parts."""
    return 1 < parts < adj.shape[0] and adj.nnz > 0


def _undirected(adj: CSR) -> tuple[Tensor, Tensor]:
    """(ptr, idx), both int64, of the graph with every edge in both directions, once, and without self loops."""
    row, col, _ = adj.coo()
    row, col = row[row != col], col[row != col]
    nodes = adj.shape[0]
    keys = torch.unique(torch.cat([row * nodes + col, col * nodes + row]))
    return torch.searchsorted(keys, torch.arange(nodes + 1) * nodes), keys % nodes


METHODS: dict[str, Callable[[CSR, int, int], Tensor]] = {
    "nnz": contiguous,
    "random": shuffled,
    "metis": metis,
    "kaminpar": kaminpar,
}
