"""The graph transformer's layer: scaled dot products, keys and values that edge features add to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import into_rows
from fusedmm.nn.adjacency import OptPair
from fusedmm.nn.checks import require_attention, require_channels, require_nodes
from fusedmm.nn.heads import Weights, edges, merged, require_sum, with_weights, writable
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear, is_plain, joined, maps_of
from fusedmm.ops.attention import attention
from fusedmm.ops.edge_attention import attend_edges, expanded
from fusedmm.ops.projected_attention import Call, attend_maps
from fusedmm.ops.sddmm import sddmm
from fusedmm.ops.spmm import spmm


class TransformerConv(Layer):
    """``W x_i + sum_j softmax_j(<q_i, k_j + e_ij> / sqrt(C)) (v_j + e_ij)``, as ``torch_geometric.nn.TransformerConv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets); -1 takes it from the first input.
        out_channels: C, features per head of the result.
        heads: number of heads H.
        concat: True puts the heads side by side, [nodes, H * C]; False takes their mean, [nodes, C].
        beta: whether a learned gate weighs the skip against the attention, instead of their sum.
        dropout: probability that a normalised weight becomes 0 in training; the others grow by 1 / (1 - dropout).
        edge_dim: D of the edge features, from which a linear map makes e; None takes none.
        bias: whether the linear maps of nodes have biases.
        root_weight: whether to add W x_i; without it beta is off.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``lin_key.*``, ``lin_query.*``, ``lin_value.*``, ``lin_skip.*``, ``lin_edge.weight`` and
    ``lin_beta.weight``, named, drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: the dense products and one fused attention per call; nothing of the size edges x C. Of edge
    features <q_i, W e> = <W^T q_i, e> needs D numbers per node and head, and so does the sum of their
    values; what is stored per edge then are two numbers per head, unless the features want a gradient.

    Source: Shi et al., "Masked Label Prediction: Unified Message Passing Model for Semi-Supervised
    Classification", 2021.

    Example:
        >>> conv = fusedmm.nn.TransformerConv(3, 2, heads=4)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 8])
        >>> conv
        TransformerConv(3, 2, heads=4)
    """

    _alpha = None  # as PyG's attribute, for those who read it

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(node_dim=0)
        require_sum("TransformerConv", kwargs)
        source, target = require_channels("TransformerConv", in_channels, out_channels)
        require_attention("TransformerConv", out_channels, heads, dropout, edge_dim)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.beta = beta and root_weight
        self.dropout = dropout
        self.edge_dim = edge_dim
        self.root_weight = root_weight
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_key = Linear(source, width, bias)
        self.lin_query = Linear(target, width, bias)
        self.lin_value = Linear(source, width, bias)
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False)
        self.lin_skip = Linear(target, total, bias)
        self.lin_beta = Linear(3 * total, 1, bias=False) if self.beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for lin in (self.lin_key, self.lin_query, self.lin_value, self.lin_edge, self.lin_skip, self.lin_beta):
            if lin is not None:
                lin.reset_parameters()

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
            edge_attr: [edges, D], in the graph's order; needed where ``edge_dim`` is set, and only there.
            return_attention_weights: True or False, as in PyG, also returns ``(edges, alpha)``.

        Returns:
            [targets, H * C], or [targets, C] without concat. With weights behind it where they are asked
            for: alpha [edges, H], before dropout, and the edges they belong to: the edge_index; of a
            torch sparse tensor one of its layout, [targets, sources, H]; of a graph in another form a ``CSR``. The last
            two have alpha as their values.

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or edge features and ``edge_dim`` one without the other.

        Gradient: reaches x, edge_attr (or a matrix's values) and the parameters, of any order.
        """
        require_nodes("TransformerConv", x, self.lin_key, self.lin_query, sparse=True)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_attr, return_attention_weights)
        (adj, attr), (x_src, x_dst) = edges(
            "TransformerConv", edge_index, x, None, edge_attr, self.lin_edge, needs_map=True
        )
        if x_dst is None:
            raise ValueError("TransformerConv: the targets need features too, x = (x_src, x_dst)")
        if self.lin_edge is not None and attr is None:
            raise ValueError(f"TransformerConv: edge_dim={self.edge_dim} needs edge_attr")
        dropout, scale = self.dropout if self.training else 0.0, self.out_channels**-0.5
        of_targets, of_sources = [self.lin_query, self.lin_skip][: 1 + self.root_weight], [self.lin_key, self.lin_value]
        if getattr(of_targets[0], "in_channels", 1) <= 0:  # open sizes are drawn in PyG's order
            maps = (self.lin_query, x_dst), (self.lin_key, x_src), (self.lin_value, x_src), (self.lin_edge, attr)
            for lin, given in maps:
                if isinstance(lin, Linear) and given is not None:
                    lin.weight_for(given)
        alone = x_src is x_dst and attr is None and return_attention_weights is None
        every = None
        if alone and self.concat and self.lin_beta is None:
            every = joined(x_src, *of_sources, *of_targets)
        if every is not None:
            call = Call(adj, scale, 0.0, dropout, self.heads, 3 + self.root_weight)
            return writable(attend_maps(call, x_src, *every, None, None), self.root_weight)
        shape, projected, bias = (-1, self.heads, self.out_channels), None, None
        if x_src is x_dst:
            key, value, query, *skip = maps_of(x_src, *of_sources, *of_targets)
        else:
            key, value = maps_of(x_src, *of_sources)
            query, *skip = maps_of(x_dst, *of_targets)
        query, key, value = query.view(shape), key.view(shape), value.view(shape)
        if attr is None or self.lin_edge is None:
            out: Any = attention(adj, query, key, value, scale=scale, dropout=dropout)
        elif not is_plain(self.lin_edge):
            edge, rows = self.lin_edge(attr).view(shape), into_rows(adj)
            bias = scale * sddmm(rows, query, edge)
            options: Any = {"scale": scale, "bias": bias, "dropout": dropout}
            out, alpha = attention(adj, query, key, value, **options, return_weights=True)
            out = out + spmm(rows.with_values(alpha), edge)
        else:
            weight = self.lin_edge.weight_for(attr).view(*shape[1:], -1)
            projected = torch.bmm(query.transpose(0, 1), scale * weight).transpose(0, 1)
            out, summed = attend_edges(adj, query, key, value, projected, attr, scale, dropout)
            out = out + torch.bmm(summed.transpose(0, 1), weight.mT).transpose(0, 1)
        out = merged(out, self.concat)
        if self.root_weight:
            out = self._skipped(out, skip[0])
        out = writable(out, self.root_weight or not self.concat or attr is not None)
        if not isinstance(return_attention_weights, bool):
            return out
        if attr is not None and projected is not None:
            bias = sddmm(into_rows(adj), projected, expanded(attr, query))
        alpha = attention(adj, query, key, value, scale=scale, bias=bias, return_weights=True)[1]
        return with_weights(out, edge_index, adj, alpha, True)

    def _skipped(self, out: Tensor, skip: Tensor) -> Tensor:
        if self.lin_beta is None:
            return out + skip
        gate = self.lin_beta(torch.cat([out, skip, out - skip], dim=-1)).sigmoid()
        return torch.lerp(out, skip, gate)

    def __repr__(self) -> str:
        return f"TransformerConv({self.in_channels}, {self.out_channels}, heads={self.heads})"
