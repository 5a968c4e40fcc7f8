"""The base of layers whose matrix is the graph's, normalised as that of a graph convolution where they ask for it.

A layer reads ``normalize``, ``add_self_loops`` and ``improved`` when it is called. Those that it does not take have the
values that the class has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._torch_compat import are_transforms_active
from fusedmm.matrix.adapters import is_edge_index
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.normalize import normalized
from fusedmm.matrix.structure import CONVERTED, is_wrapped, lasting, outside
from fusedmm.nn.adjacency import adjacency, reduction, with_one_loop
from fusedmm.nn.checks import require_edge_weight, require_nodes, require_options
from fusedmm.nn.layer import Layer


class Normalized(Layer):
    """A layer that multiplies by ``D^-1/2 A D^-1/2``, with or without self loops, or by the graph as it is.

    Args:
        options: what the layer was given for PyG's base class: ``aggr``, one of "add", "sum", "mean", "max",
            "min"; others only with their defaults.
    """

    normalize = True
    add_self_loops = improved = False

    def __init__(self, options: dict[str, Any]) -> None:
        name, aggr = type(self).__name__, options.pop("aggr", "add")
        super().__init__(aggr)
        self.reduce = reduction(name, aggr)
        require_options(name, options)

    def reset_parameters(self) -> None:
        """Draws new parameters; here there are none."""

    def _require_one(self, x: Any, lin: Any = None, sparse: bool = False) -> None:
        """Requires one tensor of node features, [nodes, F] or [batch, nodes, F], or where sparse says so a CSR."""
        name = type(self).__name__
        if isinstance(x, (tuple, list)):
            raise ValueError(f"{name}: x must be one tensor; for sources and targets of their own use SAGEConv")
        require_nodes(name, x, lin, batch=True, sparse=sparse)

    def _graph(self, x: Any, edge_index: Any, edge_weight: Tensor | None) -> CSR:
        """The matrix of a call."""
        if torch.compiler.is_dynamo_compiling() and isinstance(edge_index, Tensor):
            return outside(CONVERTED, self._with_transpose, x, edge_index, edge_weight)  # at one place, not at several
        nodes = x.size(-2)
        if self.normalize and edge_weight is None and self.add_self_loops and is_edge_index(edge_index):
            return normalized(with_one_loop(edge_index, nodes, nodes).pattern, None, None, x.dtype)
        adj = adjacency(edge_index, nodes, nodes)
        if edge_weight is not None:
            edge_weight = require_edge_weight(type(self).__name__, edge_weight, adj)
        if not self.normalize:
            return adj if edge_weight is None else adj.with_values(edge_weight)
        val = adj.val if edge_weight is None else edge_weight
        loop = 2.0 if self.improved and val is not None else 1.0
        return normalized(adj, val, loop if self.add_self_loops else None, x.dtype)

    def _with_transpose(self, *given: Any) -> CSR:
        """The matrix with its transpose, which gradients in compiled code need beforehand."""
        adj = self._graph(*given)
        return adj.cache_transpose() if torch.is_grad_enabled() else adj


class KeepsMatrix(Normalized):
    """A layer that keeps the normalised matrix of its first call, where ``cached`` is set."""

    cached: bool
    _kept: CSR | None = None

    def reset_parameters(self) -> None:
        """Forgets the matrix."""
        self._kept = None

    def _matrix(self, x: Tensor | CSR, edge_index: Any, edge_weight: Tensor | None) -> CSR:
        """The matrix that is kept, or that of this call."""
        if self._kept is not None:
            return self._kept
        if not (self.cached and self.normalize):
            return self._graph(x, edge_index, edge_weight)
        make = lasting(self._graph) if torch.is_inference_mode_enabled() else self._graph
        adj = make(x, edge_index, edge_weight)
        if not (are_transforms_active() and is_wrapped(adj.val)):
            self._kept = adj
        return adj

    @property
    def _cached_edge_index(self) -> CSR | None:
        """The cached graph by PyG's names, which are set to None to forget it."""
        return self._kept

    @_cached_edge_index.setter
    def _cached_edge_index(self, graph: None) -> None:
        if graph is not None:
            name = type(self).__name__
            raise ValueError(f"{name}: a cached graph can be set to None only, not to a {type(graph).__name__}")
        self._kept = None

    _cached_adj_t = _cached_edge_index
