"""Graph attention networks' layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.matrix.arguments import one_fill
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.normalize import with_loops
from fusedmm.nn import inits
from fusedmm.nn.adjacency import OptPair, Size
from fusedmm.nn.checks import fit, require_attention, require_channels, require_nodes, require_number
from fusedmm.nn.heads import (
    MEAN,
    Fill,
    Weights,
    edges,
    glorot_linear,
    merged,
    require_fill,
    require_sum,
    with_weights,
    writable,
)
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear, goes_unseen, is_plain, parameter_of
from fusedmm.ops.attention import attention
from fusedmm.ops.node_sums import attend_self, self_scores


class GATConv(Layer):
    """``sum_j softmax_j(leaky_relu(a_dst W x_i + a_src W x_j)) W x_j``, in the place of ``torch_geometric.nn.GATConv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets), which have weights of their own then; -1
            takes it from the first input.
        out_channels: C, features per head of the result.
        heads: number of heads H.
        concat: True puts the heads side by side, [nodes, H * C]; False takes their mean, [nodes, C].
        negative_slope: of leaky_relu.
        dropout: probability that a normalised weight becomes 0 in training; the others grow by 1 / (1 - dropout).
        add_self_loops: replace the self loops by one per node (per node that is source and target).
        edge_dim: D of the edge features; None ignores them.
        fill_value: features of the added self loops: a number, a tensor [D] or [1, D], or the "mean",
            "add", "sum", "max" or "min" over the other edges into the node. ``fill`` is another name of it.
        bias: whether to learn b.
        residual: whether to add a linear map of the targets' x.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``att_src``, ``att_dst``, ``att_edge`` [1, H, C], ``bias``, ``lin.weight`` (or
    ``lin_src.weight`` and ``lin_dst.weight``), ``lin_edge.weight`` and ``res.weight``, named, drawn and
    saved as PyG's, so that its ``state_dict`` loads.

    Cost: one dense product and one fused attention per call; nothing of the size edges x C. Edge features
    cost a product [edges, D] x [D, H]. The structure with self loops is made once per graph.

    Source: Velickovic et al., "Graph Attention Networks", 2018.

    Example:
        >>> conv = fusedmm.nn.GATConv(3, 2, heads=4)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 8])
        >>> conv
        GATConv(3, 2, heads=4)
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Fill = MEAN,
        bias: bool = True,
        residual: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(node_dim=0)
        fill_value = one_fill("GATConv", fill_value, kwargs.pop("fill", None), MEAN)
        require_sum("GATConv", kwargs)
        source, target = require_channels("GATConv", in_channels, out_channels)
        require_attention("GATConv", out_channels, heads, dropout, edge_dim)
        require_fill("GATConv", fill_value, edge_dim)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = require_number("GATConv", "negative_slope", negative_slope)
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.edge_dim = edge_dim
        self.fill_value = fill_value
        self.residual = residual
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin = self.lin_src = self.lin_dst = self.lin_edge = self.res = None
        if isinstance(in_channels, (tuple, list)):
            self.lin_src, self.lin_dst = glorot_linear(source, width), glorot_linear(target, width)
        else:
            self.lin = glorot_linear(source, width)
        self.att_src = Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = Parameter(torch.empty(1, heads, out_channels))
        self.att_edge = None if edge_dim is None else Parameter(torch.empty(1, heads, out_channels))
        if edge_dim is not None:
            self.lin_edge = glorot_linear(edge_dim, width)
        if residual:
            self.res = glorot_linear(target, total)
        self.bias = Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for lin in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if lin is not None:
                lin.reset_parameters()
        inits.glorot(self.att_src)
        inits.glorot(self.att_dst)
        inits.glorot(self.att_edge)
        inits.zeros(self.bias)

    def forward(
        self,
        x: Tensor | OptPair | CSR,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: Size = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, Weights]:
        """Attends from each target to its sources.

        Args:
            x: floating, [nodes, F], or a pair of [sources, F] and [targets, F] or None (then the
                targets have no part in the scores); or sparse features, a ``CSR`` with values [nnz].
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. As in PyG's layer, a matrix's
                values [nnz, D] are its edge features where ``edge_dim`` is set and no edge_attr is
                given; others have no part in the result.
            edge_attr: [edges, D], or [edges] for D = 1, in the graph's order; used where ``edge_dim`` is set.
            size: (sources, targets), for targets without features.
            return_attention_weights: True also returns ``(edges, alpha)``.

        Returns:
            [targets, H * C], or [targets, C] without concat. With weights behind it where they are asked
            for: alpha [edges, H], after dropout, and the edges they belong to, self loops last: an
            edge_index; of a torch sparse tensor one of its layout, [targets, sources, H]; of a graph in another
            form a ``CSR``. The last two have alpha as their values.

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, edge_attr (or a matrix's values) and the parameters, of any order.
        """
        lin: Any = self._modules.get("lin")  # self.lin would be searched for
        bias = parameter_of(self, "bias")
        plain = self.lin_edge is None and fit(x, edge_index, lin)
        if not plain:
            require_nodes("GATConv", x, lin or self.lin_src, lin or self.lin_dst, sparse=lin is not None)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_attr, size, return_attention_weights)
        loops, fill = self.add_self_loops, self.fill_value
        if plain and loops and size is None:
            adj, attr = with_loops(edge_index).pattern, None  # as edges() finds them
        else:
            (adj, attr), _ = edges("GATConv", edge_index, x, size, edge_attr, self.lin_edge, loops, fill)
        x_src, x_dst = x if isinstance(x, (tuple, list)) else (x, x)
        residual = None if self.res is None or x_dst is None else self.res(x_dst)
        alpha, added = None, not self.concat or bias is not None or residual is not None
        if lin is not None and x_dst is x_src and attr is None and not return_attention_weights:
            inside, bias = (bias, None) if self.concat else (None, bias)
            out = self._attend_self(adj, x_src, lin, inside)
        else:
            source, target = self._projected(x_src, x_dst)
            out, alpha = self._attend(adj, attr, source, target, bool(return_attention_weights))
            out = merged(out, self.concat)
        out = out if residual is None else out + residual
        out = out if bias is None else out + bias
        out = writable(out, added)
        return out if alpha is None else with_weights(out, edge_index, adj, alpha, not self.add_self_loops)

    def _attend_self(self, adj: CSR, x: Any, lin: Linear, bias: Tensor | None) -> Tensor:
        """Attends among nodes that are sources and targets; returns [nodes, H * C], or without concat [nodes, C]."""
        x, weight = (x, lin.weight_for(x)) if goes_unseen(x, lin) else (lin(x), None)
        dropout = self.dropout if self.training else 0.0
        k, q = parameter_of(self, "att_src"), parameter_of(self, "att_dst")
        out = attend_self(adj, x, weight, k, q, bias, self.negative_slope, dropout)
        return out if self.concat else merged(self._by_head(out), False)

    def _projected(self, x_src: Any, x_dst: Any) -> tuple[Tensor, Tensor | None]:
        """Maps the features of sources and of targets to [n, H * C]."""
        if self.lin is not None and x_dst is x_src:
            source = self.lin(x_src)
            return source, source
        of_source, of_target = (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)
        assert of_source is not None and of_target is not None
        return of_source(x_src), None if x_dst is None else of_target(x_dst)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(-1, self.heads, self.out_channels)

    def _attend(
        self, adj: CSR, attr: Tensor | None, source: Tensor, target: Tensor | None, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Returns [targets, H, C], and the weights where they are asked for."""
        same, source = target is source, self._by_head(source)
        q: Tensor | None
        if same:
            k, q = self_scores(source, self.att_src, self.att_dst)
        else:
            k = (source * self.att_src).sum(-1)
            q = None if target is None else (self._by_head(target) * self.att_dst).sum(-1)
        if q is None:
            q = k.new_zeros(1, 1).expand(adj.shape[0], self.heads)
        found = attention(
            adj, q, k, source, score="additive", slope=self.negative_slope, bias=self._edge_scores(attr),
            dropout=self.dropout, training=self.training, return_weights=return_weights,
        )  # fmt: skip
        return (found[0], found[1]) if isinstance(found, tuple) else (found, None)

    def _edge_scores(self, attr: Tensor | None) -> Tensor | None:
        """Scores the edges, [edges, H]; the product with att_edge comes first, so that edges have no C features."""
        if attr is None or self.lin_edge is None or self.att_edge is None:
            return None
        if not is_plain(self.lin_edge):
            return (self._by_head(self.lin_edge(attr)) * self.att_edge).sum(-1)
        weight = self.lin_edge.weight_for(attr).view(self.heads, self.out_channels, -1)
        return torch.nn.functional.linear(attr, torch.bmm(self.att_edge.transpose(0, 1), weight).squeeze(1))

    def __repr__(self) -> str:
        return f"GATConv({self.in_channels}, {self.out_channels}, heads={self.heads})"
