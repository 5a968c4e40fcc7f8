"""The personalised propagation of neural predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from fusedmm.matrix.csr import CSR
from fusedmm.nn.adjacency import aggregate_as_given
from fusedmm.nn.checks import require_dropout, require_number, require_steps
from fusedmm.nn.normalized import KeepsMatrix


class APPNP(KeepsMatrix):
    """K steps of ``X <- (1 - alpha) D^-1/2 (A + I) D^-1/2 X + alpha H`` from X = H, as ``torch_geometric.nn.APPNP``.

    Args:
        K: number of steps, 0 or more.
        alpha: share of the first features H in each step.
        dropout: probability that a coefficient of the matrix becomes 0 in training, drawn anew in each step
            on top of the steps before; the others grow by 1 / (1 - dropout).
        cached: keep the normalised graph of the first call and use it from then on.
        add_self_loops: whether to add a loop to nodes without.
        normalize: False multiplies by the graph as it is.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a number that is no number or out of its range.

    There are no parameters.

    Cost: K SpMMs per call. The coefficients of a graph without weights are made once per graph.

    Source: Gasteiger, Bojchevski and Guennemann, "Predict then Propagate: Graph Neural Networks meet Personalized
    PageRank", 2019.

    Example:
        >>> conv = fusedmm.nn.APPNP(K=1, alpha=0.5, add_self_loops=False)
        >>> conv(torch.tensor([[1.], [10.]]), torch.tensor([[0, 1], [1, 0]]))
        tensor([[5.5000],
                [5.5000]])
    """

    def __init__(
        self,
        K: int,
        alpha: float,
        dropout: float = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        require_steps("APPNP", K)
        require_dropout("APPNP", dropout)
        self.K = K
        self.alpha = require_number("APPNP", "alpha", alpha)
        self.dropout = dropout
        self.cached = cached
        self.add_self_loops = add_self_loops
        self.normalize = normalize

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Propagates node features over a graph.

        Args:
            x, edge_index, edge_weight: as in ``GCNConv``.

        Returns:
            [nodes, F], or [batch, nodes, F].

        Raises:
            TypeError: as ``GCNConv``.
            ValueError: as ``GCNConv``, and dropout without normalisation of a graph that has no weights.

        Gradient: reaches x and the edge weights, of any order.
        """
        self._require_one(x)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight)
        adj, first = self._matrix(x, edge_index, edge_weight), self.alpha * x
        for _ in range(self.K):
            if self.dropout > 0 and self.training:
                adj = self._thinned(adj)
            x = torch.add(first, aggregate_as_given(adj, x, self.reduce), alpha=1 - self.alpha)
        return x

    def _thinned(self, adj: CSR) -> CSR:
        if adj.val is None:
            raise ValueError("APPNP: dropout without normalize needs edge weights, to some of which it gives 0")
        return adj.with_values(dropout(adj.val, self.dropout))

    def __repr__(self) -> str:
        return f"APPNP(K={self.K}, alpha={self.alpha})"
