"""How layers read a graph in any form, check it against the features, and sum over neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import REDUCTIONS
from fusedmm.matrix.adapters import as_csr, looped
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.normalize import Looped
from fusedmm.ops.spmm import spmm

OptPair = tuple[Tensor, Tensor | None]
Size = tuple[int | None, int | None] | None


def adjacency(graph: Any, sources: int, targets: int, check: int = True) -> CSR:
    """The graph as a CSR of shape (targets, sources); check: see ``bipartite``."""
    adj = as_csr(graph, size=(sources, targets), check=check)  # type: ignore[arg-type]
    require_shape(adj, sources, targets)
    return adj


def require_shape(adj: CSR, sources: int, targets: int) -> None:
    """Requires that a graph has a source and a target for each row of features."""
    if adj.shape != (targets, sources):
        raise ValueError(f"the graph has shape {adj.shape} for {targets} targets and {sources} sources")


def with_one_loop(graph: Any, sources: int, targets: int) -> Looped[CSR]:
    """The structure of an edge_index with one self loop per node."""
    made = looped(graph, (sources, targets))
    require_shape(made.pattern, sources, targets)
    return made


def bipartite(graph: Any, x: Tensor | OptPair | CSR, size: Size, check: int = True) -> tuple[CSR, OptPair]:
    """The graph as a CSR, and the features of sources and of targets (None where there are none).

    check: DEFERRED is for callers who ``settle`` it before they return.
    """
    adj, pair = with_edge_values(graph, x, size, check)
    keeps = adj is graph or isinstance(graph, Tensor) or not hasattr(graph, "sparse_sizes")
    return adj if keeps else adj.pattern(), pair


def with_edge_values(graph: Any, x: Tensor | OptPair | CSR, size: Size, check: int = True) -> tuple[CSR, OptPair]:
    """``bipartite`` which keeps the values of a torch_sparse ``SparseTensor`` too."""
    pair, sources, targets = nodes_of(graph, x, size)
    return adjacency(graph, sources, targets, check), pair


def features_of(adj: CSR) -> Tensor | None:
    """A graph's values if they are rows [nnz, D], which PyG's layers take for edge features, and not numbers."""
    return None if adj.val is None or adj.val.dim() == 1 else adj.val


def nodes_of(graph: Any, x: Any, size: Size) -> tuple[OptPair, int, int]:
    """The features of sources and of targets, and how many there are of either."""
    pair: OptPair = (x[0], x[1]) if isinstance(x, (tuple, list)) else (x, x)
    sources = pair[0].size(-2)
    targets = sources if pair[1] is None else pair[1].size(-2)
    if size is not None:
        if not isinstance(size, (tuple, list)) or len(size) != 2:
            raise TypeError(f"size must be (sources, targets), not {size!r}")
        if size[0] is not None and size[0] != sources:
            raise ValueError(f"size[0] is {size[0]}, but there are {sources} source nodes in x")
        if size[1] is not None:
            if pair[1] is not None and size[1] != targets:
                raise ValueError(f"size[1] is {size[1]}, but there are {targets} target nodes in x")
            targets = size[1]
    if pair[1] is None and (size is None or size[1] is None):
        own = _own_targets(graph)
        targets = targets if own is None else own
    return pair, sources, targets


def _own_targets(graph: Any) -> int | None:
    """How many targets a graph has by itself; a plain edge_index does not say."""
    if isinstance(graph, CSR):
        return graph.shape[0]
    if isinstance(graph, Tensor) and graph.layout is torch.strided:
        return graph.sparse_size(1) if hasattr(graph, "sparse_size") else None  # PyG's EdgeIndex
    return as_csr(graph).shape[0]


def aggregate(adj: CSR, x: Tensor, reduce: str) -> Tensor:
    """The reduction of each node's neighbours, x [nodes, F] or [batch, nodes, F]."""
    if x.dim() == 3:
        return spmm(adj, x.transpose(0, 1), reduce=reduce).transpose(0, 1)
    return spmm(adj, x, reduce=reduce)


def aggregate_as_given(adj: CSR, x: Tensor, reduce: str) -> Tensor:
    """``aggregate`` in x's dtype under autocast too, for layers without a product that autocast knows."""
    if not torch.is_autocast_enabled(x.device.type):
        return aggregate(adj, x, reduce)
    with torch.autocast(x.device.type, enabled=False):
        return aggregate(adj, x, reduce)


def reduction(layer: str, aggr: Any, name: str = "aggr") -> str:
    """The name that ``spmm`` has for PyG's ``aggr``."""
    reduce = "sum" if aggr == "add" else aggr
    if not isinstance(reduce, str) or reduce not in REDUCTIONS:
        raise ValueError(f"{layer}: {name} must be one of add, {', '.join(REDUCTIONS)}, not {aggr!r}")
    return reduce
