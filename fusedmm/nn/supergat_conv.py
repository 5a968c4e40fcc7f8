"""The self-supervised graph attention layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch.nn.parameter import Parameter

from fusedmm.matrix.csr import CSR
from fusedmm.nn import inits
from fusedmm.nn.checks import require_attention, require_nodes, require_number, require_size
from fusedmm.nn.heads import edges, glorot_linear, merged, require_sum, writable
from fusedmm.nn.layer import Layer
from fusedmm.ops.attention import attention
from fusedmm.ops.sddmm import sddmm

TYPES = ("MX", "SD")


class SuperGATConv(Layer):
    """``sum_j softmax_j(leaky_relu(e_ij)) W x_j``, in the place of ``torch_geometric.nn.SuperGATConv``.

    With h = W x, e_ij is ``(att_l h_j + att_r h_i) sigmoid(<h_i, h_j>)`` for "MX", and for "SD"
    ``<h_i, h_j> / sqrt(C)``. The loss of sampled edges, by which the layer supervises itself, is not computed.

    Args:
        in_channels: F of x, or -1 to take it from the first input.
        out_channels: C, features per head of the result.
        heads: number of heads H.
        concat: True puts the heads side by side, [nodes, H * C]; False takes their mean, [nodes, C].
        negative_slope: of leaky_relu.
        dropout: probability that a normalised weight becomes 0 in training; the others grow by 1 / (1 - dropout).
        add_self_loops: replace the self loops by one per node.
        bias: whether to learn b.
        attention_type: "MX" or "SD".
        neg_sample_ratio, edge_sample_ratio, is_undirected: of the loss; kept as attributes, for code that computes it.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``att_l`` and ``att_r`` [1, H, C] for "MX", ``bias`` and ``lin.weight``, named, drawn and saved as PyG's,
    so that its ``state_dict`` loads.

    Cost: one dense product, an SDDMM and one fused attention per call; a few numbers per edge and head, and nothing of
    the size edges x C.

    Source: Kim and Oh, "How to Find Your Friendly Neighborhood: Graph Attention Design with Self-Supervision", 2021.

    Example:
        >>> conv = fusedmm.nn.SuperGATConv(3, 2, heads=4)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 8])
        >>> conv
        SuperGATConv(3, 2, heads=4, type=MX)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        attention_type: str = "MX",
        neg_sample_ratio: float = 0.5,
        edge_sample_ratio: float = 1.0,
        is_undirected: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(node_dim=0)
        require_sum("SuperGATConv", kwargs)
        require_size("SuperGATConv", "in_channels", in_channels, lazy=True)
        require_size("SuperGATConv", "out_channels", out_channels)
        require_attention("SuperGATConv", out_channels, heads, dropout, None)
        if attention_type not in TYPES:
            raise ValueError(f"SuperGATConv: attention_type must be 'MX' or 'SD', not {attention_type!r}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = require_number("SuperGATConv", "negative_slope", negative_slope)
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.attention_type = attention_type
        self.neg_sample_ratio = require_number("SuperGATConv", "neg_sample_ratio", neg_sample_ratio)
        self.edge_sample_ratio = require_number("SuperGATConv", "edge_sample_ratio", edge_sample_ratio)
        self.is_undirected = is_undirected
        self.lin = glorot_linear(in_channels, heads * out_channels)
        mixed = attention_type == "MX"
        self.att_l = Parameter(torch.empty(1, heads, out_channels)) if mixed else None
        self.att_r = Parameter(torch.empty(1, heads, out_channels)) if mixed else None
        self.bias = Parameter(torch.empty(out_channels * (heads if concat else 1))) if bias else None
        self.att_x = self.att_y = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        self.lin.reset_parameters()
        inits.glorot(self.att_l)
        inits.glorot(self.att_r)
        inits.zeros(self.bias)

    def forward(
        self, x: Tensor, edge_index: Any, neg_edge_index: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        """Attends from each node to its neighbours.

        Args:
            x: floating, [nodes, F].
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [nodes, nodes]. A matrix's values have no part in the result.
            neg_edge_index, batch: of the loss; they have no part in the result.

        Returns:
            [nodes, H * C], or [nodes, C] without concat.

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or a pair of node features.

        Gradient: reaches x and the parameters, of any order.
        """
        if isinstance(x, (tuple, list)):
            raise ValueError("SuperGATConv: x must be one tensor, since each node is compared with its neighbours")
        require_nodes("SuperGATConv", x, self.lin)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, neg_edge_index, batch)
        (adj, _), _ = edges("SuperGATConv", edge_index, x, None, None, None, self.add_self_loops)
        h = self.lin(x).view(-1, self.heads, self.out_channels)
        logits, none = self._logits(adj, h), h.new_zeros(1, 1).expand(h.shape[0], self.heads)
        out: Any = attention(
            adj, none, none, h, score="additive", slope=1.0, bias=logits, dropout=self.dropout, training=self.training
        )
        out = merged(out, self.concat)
        return writable(out, not self.concat) if self.bias is None else out + self.bias

    def _logits(self, adj: CSR, h: Tensor) -> Tensor:
        """[edges, H]."""
        e = sddmm(adj, h, h)
        if self.att_l is None or self.att_r is None:
            e = e / math.sqrt(self.out_channels)
        else:
            of_target, of_source = (h * self.att_r).sum(-1), (h * self.att_l).sum(-1)
            e = sddmm(adj, of_target, of_source, op="add") * e.sigmoid()
        return leaky_relu(e, self.negative_slope)

    def get_attention_loss(self) -> Tensor:
        """The loss of sampled edges, which is 0 outside of training.

        Raises:
            RuntimeError: in training, where it is not computed.
        """
        if self.training:
            raise RuntimeError(
                "SuperGATConv: the loss of sampled edges is not computed; torch_geometric's layer has it"
            )
        return torch.tensor([0], device=self.lin.weight.device)

    def __repr__(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
        return f"SuperGATConv({sizes}, type={self.attention_type})"
