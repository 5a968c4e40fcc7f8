"""LightGCN's propagation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fusedmm.nn.adjacency import aggregate_as_given
from fusedmm.nn.normalized import Normalized


class LGConv(Normalized):
    """``D^-1/2 A D^-1/2 X``, in the place of ``torch_geometric.nn.LGConv``.

    Args:
        normalize: False multiplies by the graph as it is.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        ValueError: an option that is not supported.

    There are no parameters.

    Cost: one SpMM per call. The coefficients of a graph without weights are made once per graph.

    Source: He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation", 2020.

    Example:
        >>> fusedmm.nn.LGConv()(torch.tensor([[1.], [10.]]), torch.tensor([[0, 1], [1, 0]]))
        tensor([[10.],
                [ 1.]])
    """

    def __init__(self, normalize: bool = True, **kwargs: Any) -> None:
        super().__init__(kwargs)
        self.normalize = normalize

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Sums the neighbours' features.

        Args:
            x, edge_index, edge_weight: as in ``GCNConv``.

        Returns:
            [nodes, F], or [batch, nodes, F].

        Raises:
            TypeError, ValueError: as ``GCNConv``.

        Gradient: reaches x and the edge weights, of any order.
        """
        self._require_one(x)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight)
        return aggregate_as_given(self._graph(x, edge_index, edge_weight), x, self.reduce)

    def __repr__(self) -> str:
        return "LGConv()"
