"""GraphSAGE's convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.nn.adjacency import OptPair, aggregate, bipartite, reduction, require_options
from fusedmm.nn.linear import Linear


class SAGEConv(torch.nn.Module):
    """``W_l aggr(x of the neighbours) + b + W_r x``, in the place of ``torch_geometric.nn.SAGEConv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets); -1 takes it from the first input.
        out_channels: F of the result.
        aggr: "mean", "sum" or "add", "max", "min"; nodes without neighbours get 0 from each.
        normalize: divide each result row by its 2-norm.
        root_weight: whether to add ``W_r x``.
        project: apply ``relu(W x + b)`` to the sources first.
        bias: whether to learn b.
        kwargs: other options of PyG's base class, only with their defaults.

    Raises:
        ValueError: an option that is not supported.

    Parameters ``lin_l.weight``, ``lin_l.bias``, ``lin_r.weight``, ``lin.weight``, ``lin.bias``, named,
    drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: one SpMM and at most three dense products per call.

    Source: Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", 2017.

    Example:
        >>> conv = fusedmm.nn.SAGEConv((3, 5), 2, aggr="max")
        >>> conv((torch.randn(4, 3), torch.randn(2, 5)), torch.tensor([[0, 1, 3], [1, 0, 0]])).shape
        torch.Size([2, 2])
        >>> conv
        SAGEConv((3, 5), 2, aggr=max)
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.reduce = reduction("SAGEConv", aggr)
        require_options("SAGEConv", kwargs)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.aggr = aggr
        self.normalize = normalize
        self.root_weight = root_weight
        self.project = project
        source, target = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        if project and source <= 0:
            raise ValueError("SAGEConv: project=True needs in_channels, -1 is not enough")
        if project:
            self.lin = Linear(source, source)
        self.lin_l = Linear(source, out_channels, bias=bias)
        if root_weight:
            self.lin_r = Linear(target, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        if self.project:
            self.lin.reset_parameters()
        self.lin_l.reset_parameters()
        if self.root_weight:
            self.lin_r.reset_parameters()

    def forward(
        self, x: Tensor | OptPair, edge_index: Any, size: tuple[int | None, int | None] | None = None
    ) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels], or a pair of [sources, F] and [targets, F] or None; a
                leading batch dimension is allowed.
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. Values of a matrix multiply
                x, but those of a torch_sparse ``SparseTensor`` do not.
            size: (sources, targets), for targets without features.

        Returns:
            [targets, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, the parameters, and a matrix's values; equal maxima share it evenly.
        """
        adj, (source, target) = bipartite(edge_index, x, size)
        if self.project:
            source = self.lin(source).relu()
        out = self.lin_l(aggregate(adj, source, self.reduce))
        if self.root_weight and target is not None:
            out = out + self.lin_r(target)
        return torch.nn.functional.normalize(out, p=2.0, dim=-1) if self.normalize else out

    def __repr__(self) -> str:
        return f"SAGEConv({self.in_channels}, {self.out_channels}, aggr={self.aggr})"
