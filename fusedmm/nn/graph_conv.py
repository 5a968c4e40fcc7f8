"""The graph convolution of the Weisfeiler-Leman networks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fusedmm.matrix.adapters import settle
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import DEFERRED
from fusedmm.nn.adjacency import OptPair, Size, aggregate, reduction, with_edge_values
from fusedmm.nn.checks import require_channels, require_edge_weight, require_nodes, require_options
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear
from fusedmm.nn.sage_conv import in_one_step, mapped, of_sparse, takes_sparse
from fusedmm.ops.sage import ONE_STEP


class GraphConv(Layer):
    """``W_rel sum_j w_ij x_j + b + W_root x_i``, in the place of ``torch_geometric.nn.GraphConv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets); -1 takes it from the first input.
        out_channels: F of the result.
        aggr: "add", "sum", "mean", "max" or "min".
        bias: whether to learn b.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``lin_rel.weight``, ``lin_rel.bias`` and ``lin_root.weight``, named, drawn and saved as PyG's, so that
    its ``state_dict`` loads.

    Cost: an SpMM and two dense products per call.

    Source: Morris et al., "Weisfeiler and Leman Go Neural: Higher-order Graph Neural Networks", 2019.

    Example:
        >>> conv = fusedmm.nn.GraphConv((3, 5), 2)
        >>> conv((torch.randn(4, 3), torch.randn(2, 5)), torch.tensor([[0, 1, 3], [1, 0, 0]])).shape
        torch.Size([2, 2])
        >>> conv
        GraphConv((3, 5), 2)
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "add",
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(aggr)
        self.reduce = reduction("GraphConv", aggr)
        require_options("GraphConv", kwargs)
        source, target = require_channels("GraphConv", in_channels, out_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.lin_rel = Linear(source, out_channels, bias=bias)
        self.lin_root = Linear(target, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        self.lin_rel.reset_parameters()
        self.lin_root.reset_parameters()

    def forward(
        self, x: Tensor | OptPair | CSR, edge_index: Any, edge_weight: Tensor | None = None, size: Size = None
    ) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels], or a pair of [sources, F] and [targets, F] or None; a
                leading batch dimension is allowed. Or sparse features, a ``CSR`` with values [nnz], where aggr is
                "add", "sum" or "mean".
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. A matrix's values [nnz] are its edge
                weights, as in PyG's layer.
            edge_weight: [edges] or [edges, 1], in the graph's order; stands in the place of a matrix's values.
            size: (sources, targets), for targets without features.

        Returns:
            [targets, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, the parameters, and the edge weights; equal maxima share it evenly.
        """
        lin_rel, lin_root = self.lin_rel, self.lin_root
        require_nodes("GraphConv", x, lin_rel, lin_root, batch=True, sparse=self.reduce in ONE_STEP)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_weight, size)
        # The product that follows checks each index by itself, so that the host need not wait for an answer first.
        adj, (source, target) = with_edge_values(edge_index, x, size, DEFERRED)
        if edge_weight is not None:
            adj = adj.with_values(require_edge_weight("GraphConv", edge_weight, adj))
        out = in_one_step(adj, self.reduce, source, target, lin_rel, lin_root)
        if out is None and takes_sparse("GraphConv", source, self.reduce, lin_rel):
            out = of_sparse(adj, self.reduce, source, target, lin_rel, lin_root)
        elif out is None:
            out = mapped(aggregate(adj, source, self.reduce), target, lin_rel, lin_root)
        settle(adj, edge_index)
        return out

    def __repr__(self) -> str:
        return f"GraphConv({self.in_channels}, {self.out_channels})"
