"""The topology adaptive graph convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.nn import inits
from fusedmm.nn.adjacency import aggregate
from fusedmm.nn.checks import require_size, require_steps
from fusedmm.nn.linear import Linear, maps_of
from fusedmm.nn.normalized import Normalized
from fusedmm.ops.sage import ONE_STEP


class TAGConv(Normalized):
    """``sum_k (D^-1/2 A D^-1/2)^k X W_k + b`` for k from 0 to K, in the place of ``torch_geometric.nn.TAGConv``.

    Args:
        in_channels: F of x, or -1 to take it from the first input.
        out_channels: F of the result.
        K: number of steps, 0 or more.
        bias: whether to learn b.
        normalize: False multiplies by the graph as it is.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``bias`` and ``lins.0.weight`` to ``lins.K.weight``, named, drawn and saved as PyG's, so that its
    ``state_dict`` loads.

    Cost: K + 1 dense products and K SpMMs of out_channels features per call, by Horner's rule; of in_channels
    where the aggr is "max" or "min".

    Source: Du et al., "Topology Adaptive Graph Convolutional Networks", 2017.

    Example:
        >>> conv = fusedmm.nn.TAGConv(3, 2, K=2)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        TAGConv(3, 2, K=2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, K: int = 3, bias: bool = True, normalize: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(kwargs)
        require_size("TAGConv", "in_channels", in_channels, lazy=True)
        require_size("TAGConv", "out_channels", out_channels)
        require_steps("TAGConv", K)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.K = K
        self.normalize = normalize
        self.lins = torch.nn.ModuleList([Linear(in_channels, out_channels, bias=False) for _ in range(K + 1)])
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for lin in self.lins:
            lin.reset_parameters()  # type: ignore[operator]
        inits.zeros(self.bias)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x, edge_index, edge_weight: as in ``GCNConv``.

        Returns:
            [nodes, out_channels], or [batch, nodes, out_channels].

        Raises:
            TypeError, ValueError: as ``GCNConv``.

        Gradient: reaches x, the parameters, and the edge weights, of any order.
        """
        self._require_one(x, self.lins[0])
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight)
        adj = self._graph(x, edge_index, edge_weight)
        if self.reduce in ONE_STEP:
            *parts, out = maps_of(x, *self.lins)
            for part in reversed(parts):
                out = part + aggregate(adj, out, self.reduce)
        else:
            out = self.lins[0](x)
            for lin in self.lins[1:]:
                x = aggregate(adj, x, self.reduce)
                out = out + lin(x)
        return out if self.bias is None else out + self.bias

    def __repr__(self) -> str:
        return f"TAGConv({self.in_channels}, {self.out_channels}, K={self.K})"
