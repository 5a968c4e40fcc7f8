"""The graph convolution of Kipf and Welling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.matrix.csr import CSR
from fusedmm.nn import inits
from fusedmm.nn.adjacency import aggregate
from fusedmm.nn.checks import fit, require_size
from fusedmm.nn.linear import Linear, goes_unseen, parameter_of
from fusedmm.nn.normalized import KeepsMatrix
from fusedmm.ops.gcn import propagate
from fusedmm.ops.sage import ONE_STEP


class GCNConv(KeepsMatrix):
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
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``lin.weight`` [out_channels, in_channels] and ``bias`` [out_channels], named, drawn and
    saved as PyG's, so that its ``state_dict`` loads.

    Cost: a dense product and one SpMM per call, of the fewer of in_channels and out_channels columns where neighbours
    are added or averaged. The structure with self loops is made once per graph, as are the coefficients of a graph
    without weights. Compiled code takes a ``CSR`` that the layer, or ``adj.gcn_norm()``, has seen before.

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
        super().__init__(kwargs)
        require_size("GCNConv", "in_channels", in_channels, lazy=True)
        require_size("GCNConv", "out_channels", out_channels)
        if add_self_loops and not normalize:
            raise ValueError(
                "GCNConv: normalize=False does not support adding self-loops: add them to the graph beforehand"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.improved = improved
        self.cached = cached
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.normalize = normalize
        self.lin = Linear(in_channels, out_channels, bias=False, weight_initializer="glorot")
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters and forgets the cached graph."""
        super().reset_parameters()
        self.lin.reset_parameters()
        inits.zeros(self.bias)

    def forward(self, x: Tensor | CSR, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels], or [batch, nodes, in_channels] over one graph; or sparse features, a
                ``CSR`` with values [nnz].
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
        lin: Any = self._modules["lin"]  # self.lin would be searched for
        bias = parameter_of(self, "bias")
        if not fit(x, edge_index, lin):
            self._require_one(x, lin, sparse=True)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight)
        adj = self._matrix(x, edge_index, edge_weight)
        linear = isinstance(x, Tensor) and self.reduce in ONE_STEP
        if linear and x.size(-1) < self.out_channels and x.layout == torch.strided:  # type: ignore[union-attr]
            # A map may stand before or behind a sum, and neighbours' features are read where they are the fewer.
            # Only a map takes torch's sparse tensors.
            out = lin(aggregate(adj, x, self.reduce))  # type: ignore[arg-type]
        elif linear and goes_unseen(x, lin) and x.dim() == 2:  # type: ignore[union-attr]
            return propagate(adj, self.reduce, x, lin.parts_for(x)[0], bias)  # type: ignore[arg-type]
        else:
            out = aggregate(adj, lin(x), self.reduce)
        return out if bias is None else out + bias

    def __repr__(self) -> str:
        return f"GCNConv({self.in_channels}, {self.out_channels})"
