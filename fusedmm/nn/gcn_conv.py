"""The graph convolution of Kipf and Welling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm._torch_compat import are_transforms_active
from fusedmm.matrix.adapters import is_edge_index
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.normalize import normalized
from fusedmm.matrix.structure import CONVERTED, is_wrapped, lasting, outside
from fusedmm.nn import inits
from fusedmm.nn.adjacency import adjacency, aggregate, reduction, with_one_loop
from fusedmm.nn.checks import require_edge_weight, require_nodes, require_options, require_size
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear


class GCNConv(Layer):
    """``D^-1/2 (A + I) D^-1/2 X W + b``, in the place of ``torch_geometric.nn.GCNConv``.

    Args:
        in_channels: F of x, or -1 to take it from the first input.
        out_channels: F of the result.
        improved: self loops that are added weigh 2, where edges have weights; without weights they
            weigh 1 all the same, as in PyG's layer. (``adj.gcn_norm(improved=True)`` with
            ``normalize=False`` here is A + 2I in either case.)
        cached: keep the normalised graph of the first call and use it from then on. Weights that want a
            gradient are normalised within the first call's step alone: a second backward fails, as in PyG.
        add_self_loops: whether to add a loop to nodes without; None: where ``normalize`` is set. A loop
            that is there keeps its weight, of a matrix as of an edge_index (PyG gives each node of a torch
            sparse tensor another one).
        normalize: False multiplies by the graph as it is.
        bias: whether to learn b.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is none.

    Parameters ``lin.weight`` [out_channels, in_channels] and ``bias`` [out_channels], named, drawn and
    saved as PyG's, so that its ``state_dict`` loads.

    Cost: a dense product and one SpMM per call. The structure with self loops is made once per graph,
    as are the coefficients of a graph without weights. Compiled code takes a ``CSR`` that the layer, or
    ``adj.gcn_norm()``, has seen before.

    Source: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017.

    Example:
        >>> conv = fusedmm.nn.GCNConv(3, 2)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        GCNConv(3, 2)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs.get("aggr", "add"))
        self.reduce = reduction("GCNConv", kwargs.pop("aggr", "add"))
        require_options("GCNConv", kwargs)
        require_size("GCNConv", "in_channels", in_channels, lazy=True)
        require_size("GCNConv", "out_channels", out_channels)
        if add_self_loops and not normalize:
            raise ValueError("GCNConv: add_self_loops=True needs normalize=True; add them to the graph beforehand")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.improved = improved
        self.cached = cached
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.normalize = normalize
        self._kept: CSR | None = None
        self.lin = Linear(in_channels, out_channels, bias=False, weight_initializer="glorot")
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters and forgets the cached graph."""
        self.lin.reset_parameters()
        inits.zeros(self.bias)
        self._kept = None

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels], or [batch, nodes, in_channels] over one graph.
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [nodes, nodes]. A matrix's values [nnz] are its edge
                weights, as in PyG's layer.
            edge_weight: [edges] or [edges, 1], in the graph's order; stands in the place of a matrix's values.

        Returns:
            [nodes, out_channels], or [batch, nodes, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or a pair of node features.

        Gradient: reaches x, the parameters, and the edge weights, of any order.
        """
        if isinstance(x, (tuple, list)):
            raise ValueError("GCNConv: x must be one tensor; for sources and targets of their own use SAGEConv")
        require_nodes("GCNConv", x, self.lin, batch=True)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight)
        adj = self._kept
        if adj is None:
            keep = self.cached and self.normalize
            make = lasting(self._graph) if keep and torch.is_inference_mode_enabled() else self._graph
            adj = make(x, edge_index, edge_weight)
            if keep and not (are_transforms_active() and is_wrapped(adj.val)):
                self._kept = adj
        out = aggregate(adj, self.lin(x), self.reduce)
        return out if self.bias is None else out + self.bias

    def _graph(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None) -> CSR:
        if torch.compiler.is_dynamo_compiling() and isinstance(edge_index, Tensor):
            return outside(CONVERTED, self._with_transpose, x, edge_index, edge_weight)  # at one place, not at several
        if self.normalize and edge_weight is None and self.add_self_loops and is_edge_index(edge_index):
            return normalized(with_one_loop(edge_index, x.size(-2), x.size(-2)).pattern, None, None, x.dtype)
        adj = adjacency(edge_index, x.size(-2), x.size(-2))
        if edge_weight is not None:
            edge_weight = require_edge_weight("GCNConv", edge_weight, adj)
        if not self.normalize:
            return adj if edge_weight is None else adj.with_values(edge_weight)
        val = adj.val if edge_weight is None else edge_weight
        loop = 2.0 if self.improved and val is not None else 1.0
        return normalized(adj, val, loop if self.add_self_loops else None, x.dtype)

    @property
    def _cached_edge_index(self) -> CSR | None:
        """The cached graph by PyG's names, which are set to None to forget it."""
        return self._kept

    @_cached_edge_index.setter
    def _cached_edge_index(self, graph: None) -> None:
        if graph is not None:
            raise ValueError(f"GCNConv: a cached graph can be set to None only, not to a {type(graph).__name__}")
        self._kept = None

    _cached_adj_t = _cached_edge_index

    def _with_transpose(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None) -> CSR:
        """The graph with its transpose, which gradients in compiled code need beforehand."""
        adj = self._graph(x, edge_index, edge_weight)
        return adj.cache_transpose() if torch.is_grad_enabled() else adj

    def __repr__(self) -> str:
        return f"GCNConv({self.in_channels}, {self.out_channels})"
