"""The convolution by Chebyshev polynomials of the Laplacian."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.matrix.arguments import require_integers
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import CONVERTED, outside
from fusedmm.nn import inits
from fusedmm.nn.adjacency import adjacency, aggregate
from fusedmm.nn.checks import require_edge_weight, require_number, require_size
from fusedmm.nn.laplacian import NORMALIZATIONS, scaled_laplacian
from fusedmm.nn.linear import Linear, maps_of
from fusedmm.nn.normalized import Normalized
from fusedmm.ops.sage import ONE_STEP


class ChebConv(Normalized):
    """``sum_k T_k(2 L / lambda - I) X W_k + b`` for k below K, in the place of ``torch_geometric.nn.ChebConv``.

    T_k are the Chebyshev polynomials: 1, z, and ``2 z T_(k-1) - T_(k-2)``. L is the Laplacian without self loops.

    Args:
        in_channels: F of x, or -1 to take it from the first input.
        out_channels: F of the result.
        K: number of polynomials, 1 or more.
        normalization: of L: None is ``D - A``, "sym" ``I - D^-1/2 A D^-1/2``, "rw" ``I - D^-1 A``.
        bias: whether to learn b.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``bias`` and ``lins.0.weight`` to ``lins.(K - 1).weight``, named, drawn and saved as PyG's, so that its
    ``state_dict`` loads.

    Cost: K dense products and K - 1 SpMMs of out_channels features per call, by Clenshaw's rule; of in_channels
    where the aggr is "max" or "min". The Laplacian of a graph without weights is made once per graph.

    Source: Defferrard, Bresson and Vandergheynst, "Convolutional Neural Networks on Graphs with Fast Localized
    Spectral Filtering", 2016.

    Example:
        >>> conv = fusedmm.nn.ChebConv(3, 2, K=2)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        ChebConv(3, 2, K=2, normalization=sym)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int,
        normalization: str | None = "sym",
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        require_size("ChebConv", "in_channels", in_channels, lazy=True)
        require_size("ChebConv", "out_channels", out_channels)
        require_size("ChebConv", "K", K)
        if normalization not in NORMALIZATIONS:
            raise ValueError(f"ChebConv: normalization must be None, 'sym' or 'rw', not {normalization!r}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.normalization = normalization
        maps = [Linear(in_channels, out_channels, bias=False, weight_initializer="glorot") for _ in range(K)]
        self.lins = torch.nn.ModuleList(maps)
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for lin in self.lins:
            lin.reset_parameters()  # type: ignore[operator]
        inits.zeros(self.bias)

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        lambda_max: Tensor | float | None = None,
    ) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x, edge_index, edge_weight: as in ``GCNConv``.
            batch: integers [nodes], the graph of each node, where each has a lambda of its own.
            lambda_max: lambda, the largest eigenvalue of L: a number, a tensor of one, or with ``batch`` [graphs].
                None is twice the largest entry of L, as in PyG.

        Returns:
            [nodes, out_channels], or [batch, nodes, out_channels].

        Raises:
            TypeError, ValueError: as ``GCNConv``.

        Gradient: reaches x, the parameters, the edge weights and lambda_max, of any order.
        """
        self._require_one(x, self.lins[0])
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight, batch, lambda_max)
        adj = self._graph(x, edge_index, edge_weight, batch, lambda_max)
        out = self._downwards(adj, x) if self.reduce in ONE_STEP else self._upwards(adj, x)
        return out if self.bias is None else out + self.bias

    def _downwards(self, adj: CSR, x: Tensor) -> Tensor:
        """By Clenshaw's rule: b_k = x W_k + 2 A b_(k+1) - b_(k+2), in whose last step A stands once."""
        *parts, out = maps_of(x, *self.lins)
        before = None
        for k in reversed(range(len(parts))):
            step = torch.add(parts[k], aggregate(adj, out, self.reduce), alpha=2 if k else 1)
            out, before = step if before is None else step - before, out
        return out

    def _upwards(self, adj: CSR, x: Tensor) -> Tensor:
        """By the definition, for aggregations that are not linear."""
        out, before = self.lins[0](x), None
        for lin in self.lins[1:]:
            step = aggregate(adj, x, self.reduce)
            x, before = step if before is None else 2 * step - before, x
            out = out + lin(x)
        return out

    def _graph(  # type: ignore[override]  # of PyG's arguments
        self, x: Tensor, edge_index: Any, edge_weight: Tensor | None, batch: Tensor | None, lambda_max: Any
    ) -> CSR:
        if torch.compiler.is_dynamo_compiling() and isinstance(edge_index, Tensor):
            return outside(CONVERTED, self._with_transpose, x, edge_index, edge_weight, batch, lambda_max)
        nodes = x.size(-2)
        adj = adjacency(edge_index, nodes, nodes)
        val = adj.val if edge_weight is None else edge_weight
        if val is not None:
            val = require_edge_weight("ChebConv", val, adj)
        return scaled_laplacian(adj, val, self.normalization, _of_nodes(lambda_max, batch, x), x.dtype)

    def __repr__(self) -> str:
        name, sizes = type(self).__name__, f"{self.in_channels}, {self.out_channels}, K={len(self.lins)}"
        return f"{name}({sizes}, normalization={self.normalization})"


def _of_nodes(lambda_max: Any, batch: Tensor | None, x: Tensor) -> Tensor | None:
    """Lambda as one number or one for each node."""
    if lambda_max is None:
        return None
    if not isinstance(lambda_max, Tensor):
        return x.new_tensor(require_number("ChebConv", "lambda_max", lambda_max))
    if lambda_max.numel() == 1:
        return lambda_max.reshape(())
    if batch is None or lambda_max.dim() != 1:
        raise ValueError(f"ChebConv: lambda_max {list(lambda_max.shape)} must be one number, or with batch [graphs]")
    require_integers("ChebConv: batch", batch)
    if batch.shape != (x.size(-2),):
        raise ValueError(f"ChebConv: batch must be [{x.size(-2)}], not {list(batch.shape)}")
    return lambda_max.index_select(0, batch.long())
