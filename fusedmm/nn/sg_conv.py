"""The simplified graph convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from fusedmm._torch_compat import are_transforms_active
from fusedmm.matrix.structure import is_wrapped, lasting
from fusedmm.nn.adjacency import aggregate
from fusedmm.nn.checks import require_features, require_size, require_steps
from fusedmm.nn.linear import Linear, goes_unseen
from fusedmm.nn.normalized import Normalized
from fusedmm.ops.sage import ONE_STEP


class SGConv(Normalized):
    """``(D^-1/2 (A + I) D^-1/2)^K X W + b``, in the place of ``torch_geometric.nn.SGConv``.

    Args:
        in_channels: F of x, or -1 to take it from the first input.
        out_channels: F of the result.
        K: number of steps, 0 or more.
        cached: keep the features after K steps of the first call and use them from then on, whatever x and
            the graph are. Their gradient reaches x in the first call alone, as in PyG.
        add_self_loops: whether to add a loop to nodes without.
        bias: whether to learn b.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``lin.weight`` and ``lin.bias``, named, drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: a dense product and K SpMMs per call, of in_channels or out_channels features, whichever are fewer;
    of in_channels where ``cached`` is set, in compiled code, or where the aggr is "max" or "min".

    Source: Wu et al., "Simplifying Graph Convolutional Networks", 2019.

    Example:
        >>> conv = fusedmm.nn.SGConv(3, 2, K=2)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        SGConv(3, 2, K=2)
    """

    _cached_x: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        require_size("SGConv", "in_channels", in_channels, lazy=True)
        require_size("SGConv", "out_channels", out_channels)
        require_steps("SGConv", K)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.K = K
        self.cached = cached
        self.add_self_loops = add_self_loops
        self.lin = Linear(in_channels, out_channels, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters and forgets the cached features."""
        self.lin.reset_parameters()
        self._cached_x = None

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
        self._require_one(x, self.lin)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight)
        lin = self.lin
        if self._cached_x is not None:
            return lin(self._cached_x)
        few = lin.out_channels < x.shape[-1] and self.reduce in ONE_STEP and not self.cached
        if few and goes_unseen(x, lin):  # the steps and the map may change places
            out = self._steps(linear(x, lin.weight_for(x)), edge_index, edge_weight)
            return out if lin.bias is None else out + lin.bias.to(out.dtype)
        require_features("SGConv", "x", x)
        if not self.cached:
            return lin(self._steps(x, edge_index, edge_weight))
        out = (lasting(self._steps) if torch.is_inference_mode_enabled() else self._steps)(x, edge_index, edge_weight)
        if not (are_transforms_active() and is_wrapped(out)):
            self._cached_x = out.detach()
        return lin(out)

    def _steps(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None) -> Tensor:
        adj = self._graph(x, edge_index, edge_weight)
        for _ in range(self.K):
            x = aggregate(adj, x, self.reduce)
        return x

    def __repr__(self) -> str:
        return f"SGConv({self.in_channels}, {self.out_channels}, K={self.K})"
