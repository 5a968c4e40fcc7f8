"""The graph attention layer whose ranking of neighbours depends on the node that asks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch.nn.parameter import Parameter

from fusedmm.matrix.arguments import one_fill
from fusedmm.matrix.csr import CSR
from fusedmm.nn import inits
from fusedmm.nn.adjacency import OptPair
from fusedmm.nn.checks import require_attention, require_channels, require_nodes, require_number
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
from fusedmm.nn.linear import joined, maps_of
from fusedmm.ops.attention import attention
from fusedmm.ops.projected_attention import Call, attend_maps
from fusedmm.ops.sddmm import sddmm


class GATv2Conv(Layer):
    """``sum_j softmax_j(<att, leaky_relu(W_r x_i + W_l x_j)>) W_l x_j``, as ``torch_geometric.nn.GATv2Conv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets); -1 takes it from the first input.
        out_channels: C, features per head of the result.
        heads: number of heads H.
        concat: True puts the heads side by side, [nodes, H * C]; False takes their mean, [nodes, C].
        negative_slope: of leaky_relu.
        dropout: probability that a normalised weight becomes 0 in training; the others grow by 1 / (1 - dropout).
        add_self_loops: replace the self loops by one per node (per node that is source and target).
        edge_dim: D of the edge features, which a linear map adds within leaky_relu; None takes none.
        fill_value: features of the added self loops: a number, a tensor [D] or [1, D], or the "mean",
            "add", "sum", "max" or "min" over the other edges into the node. ``fill`` is another name of it.
        bias: whether to learn b, and biases of W_l and W_r.
        share_weights: whether W_l and W_r are one.
        residual: whether to add a linear map of the targets' x.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``lin_l.*``, ``lin_r.*``, ``att`` [1, H, C], ``bias``, ``lin_edge.weight`` and
    ``res.weight``, named, drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: two dense products and one fused attention per call; nothing of the size edges x C, but with
    edge features, whose sum with both ends is stored. The structure with self loops is made once per graph.

    Source: Brody, Alon and Yahav, "How Attentive are Graph Attention Networks?", 2022.

    Example:
        >>> conv = fusedmm.nn.GATv2Conv(3, 2, heads=4, concat=False)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        GATv2Conv(3, 2, heads=4)
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
        share_weights: bool = False,
        residual: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__("sum", node_dim=0)  # as PyG's
        fill_value = one_fill("GATv2Conv", fill_value, kwargs.pop("fill", None), MEAN)
        require_sum("GATv2Conv", kwargs)
        source, target = require_channels("GATv2Conv", in_channels, out_channels)
        require_attention("GATv2Conv", out_channels, heads, dropout, edge_dim)
        require_fill("GATv2Conv", fill_value, edge_dim)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = require_number("GATv2Conv", "negative_slope", negative_slope)
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.edge_dim = edge_dim
        self.fill_value = fill_value
        self.share_weights = share_weights
        self.residual = residual
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_l = glorot_linear(source, width, bias)
        self.lin_r = self.lin_l if share_weights else glorot_linear(target, width, bias)
        self.att = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else glorot_linear(edge_dim, width)
        self.res = glorot_linear(target, total) if residual else None
        self.bias = Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for lin in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if lin is not None:
                lin.reset_parameters()
        inits.glorot(self.att)
        inits.zeros(self.bias)

    def forward(
        self,
        x: Tensor | OptPair | CSR,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, Weights]:
        """Attends from each target to its sources.

        Args:
            x: floating, [nodes, F], or a pair of [sources, F] and [targets, F]; or sparse features, a ``CSR`` with
                values [nnz].
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. As in PyG's layer, a matrix's
                values [nnz, D] are its edge features where no edge_attr is given, and need ``edge_dim``;
                values [nnz] have no part in the result.
            edge_attr: [edges, D], or [edges] for D = 1, in the graph's order; only where ``edge_dim`` is set.
            return_attention_weights: True also returns ``(edges, alpha)``.

        Returns:
            [targets, H * C], or [targets, C] without concat. With weights behind it where they are asked
            for: alpha [edges, H], after dropout, and the edges they belong to, self loops last: an
            edge_index; of a torch sparse tensor one of its layout, [targets, sources, H]; of a graph in another
            form a ``CSR``. The last two have alpha as their values.

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, targets without features, or edge features without ``edge_dim``.

        Gradient: reaches x, edge_attr (or a matrix's values) and the parameters, of any order.
        """
        require_nodes("GATv2Conv", x, self.lin_l, self.lin_r, sparse=True)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_attr, return_attention_weights)
        loops, fill = self.add_self_loops, self.fill_value
        (adj, attr), (x_src, x_dst) = edges(
            "GATv2Conv", edge_index, x, None, edge_attr, self.lin_edge, loops, fill, needs_map=True
        )
        if x_dst is None:
            raise ValueError("GATv2Conv: the targets need features too, x = (x_src, x_dst)")
        residual = None if self.res is None else self.res(x_dst)
        bias, alpha = self.bias, None
        added = not self.concat or bias is not None or residual is not None
        alone = attr is None and x_dst is x_src and not (self.share_weights or return_attention_weights)
        both = joined(x_src, self.lin_l, self.lin_r) if alone else None
        if both is not None:
            inside, bias = (bias, None) if self.concat else (None, bias)
            dropout = self.dropout if self.training else 0.0
            call = Call(adj, 1.0, self.negative_slope, dropout, self.heads, 2)
            out = attend_maps(call, x_src, *both, self.att, inside)
            out = out if self.concat else merged(self._by_head(out), False)
        else:
            out, alpha = self._attend(adj, attr, x_src, x_dst, bool(return_attention_weights))
            out = merged(out, self.concat)
        out = out if residual is None else out + residual
        out = out if bias is None else out + bias
        out = writable(out, added)
        return out if alpha is None else with_weights(out, edge_index, adj, alpha, not self.add_self_loops)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(-1, self.heads, self.out_channels)

    def _attend(
        self, adj: CSR, attr: Tensor | None, x_src: Tensor, x_dst: Tensor, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Returns [targets, H, C], and the weights where they are asked for."""
        if x_dst is not x_src:
            source, target = self._by_head(self.lin_l(x_src)), self._by_head(self.lin_r(x_dst))
        elif self.share_weights:
            source = target = self._by_head(self.lin_l(x_src))
        else:
            source, target = map(self._by_head, maps_of(x_src, self.lin_l, self.lin_r))
        options: dict[str, Any] = {
            "dropout": self.dropout, "training": self.training, "return_weights": return_weights
        }  # fmt: skip
        if attr is None or self.lin_edge is None:
            found = attention(
                adj, target, source, source, score="gatv2", att=self.att, slope=self.negative_slope, **options
            )
        else:
            logits = self._logits(adj, target, source, self._by_head(self.lin_edge(attr)))
            zero = logits.new_zeros(1, 1)  # takes no memory: the logits are all that scores consist of
            q, k = zero.expand(adj.shape[0], self.heads), zero.expand(adj.shape[1], self.heads)
            found = attention(adj, q, k, source, score="additive", slope=1.0, bias=logits, **options)
        return (found[0], found[1]) if isinstance(found, tuple) else (found, None)

    def _logits(self, adj: CSR, target: Tensor, source: Tensor, edge: Tensor) -> Tensor:
        """Computes logits [edges, H] of features [edges, H, C] that enter within the nonlinearity."""
        total = sddmm(adj, target, source, op="add") + edge
        return (leaky_relu(total, self.negative_slope) * self.att).sum(-1)

    def __repr__(self) -> str:
        return f"GATv2Conv({self.in_channels}, {self.out_channels}, heads={self.heads})"
