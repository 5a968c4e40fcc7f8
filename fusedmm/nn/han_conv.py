"""The heterogeneous graph attention network's layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.nn import inits
from fusedmm.nn.checks import require_dropout, require_number
from fusedmm.nn.kinds import Kind, Metadata, OfKinds
from fusedmm.nn.linear import Linear
from fusedmm.ops.attention import attention

Weights = dict[str, Tensor | None]


class HANConv(OfKinds):
    """Attention over each kind of edges, and over the kinds, in the place of ``torch_geometric.nn.HANConv``.

    With h a linear map of x for each kind of nodes, and a, b vectors for each kind r of edges, nodes i get of it
    ``z_r = relu(sum_j softmax_j(leaky_relu(a_r h_j + b_r h_i)) h_j)``, and of all ``sum_r w_r z_r``. There w is the
    softmax over the kinds of ``q mean(tanh(K z_r + c))``, the mean being over nodes.

    Args:
        in_channels: F of x, for all kinds of nodes or by kind; -1 takes it from the first input.
        out_channels: F of the results, H times D.
        metadata: the kinds of nodes, and of edges as (source, relation, target).
        heads: number of heads H.
        negative_slope: of leaky_relu.
        dropout: probability that a weight of an edge becomes 0 in training; the others grow by 1 / (1 - dropout).
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``q``, ``k_lin.*``, ``proj.*``, ``lin_src.*`` and ``lin_dst.*``, named, drawn and saved as PyG's, so that
    its ``state_dict`` loads.

    Cost: one fused attention per kind of edges; nothing of the size edges x D.

    Source: Wang et al., "Heterogeneous Graph Attention Network", 2019.

    Example:
        >>> conv = fusedmm.nn.HANConv(3, 4, (["a", "b"], [("a", "to", "b")]), heads=2)
        >>> x = {"a": torch.randn(3, 3), "b": torch.randn(2, 3)}
        >>> conv(x, {("a", "to", "b"): torch.tensor([[0, 1, 2], [1, 1, 0]])})["b"].shape
        torch.Size([2, 4])
        >>> conv
        HANConv(4, heads=2)
    """

    def __init__(
        self,
        in_channels: int | dict[str, int],
        out_channels: int,
        metadata: Metadata,
        heads: int = 1,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        self.in_channels = self._maps(in_channels, out_channels, heads, metadata)
        require_dropout("HANConv", dropout)
        self.heads = heads
        self.out_channels = out_channels
        self.negative_slope = require_number("HANConv", "negative_slope", negative_slope)
        self.metadata = metadata
        self.dropout = dropout
        self.k_lin = torch.nn.Linear(out_channels, out_channels)
        self.q = Parameter(torch.empty(1, out_channels))
        self.proj = torch.nn.ModuleDict({kind: Linear(size, out_channels) for kind, size in self.in_channels.items()})
        self.lin_src, self.lin_dst = torch.nn.ParameterDict(), torch.nn.ParameterDict()
        for kind in metadata[1]:
            for vectors in (self.lin_src, self.lin_dst):
                vectors["__".join(kind)] = Parameter(torch.empty(1, heads, out_channels // heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        inits.reset(torch.nn.ModuleList(self.proj.values()))
        for vectors in (self.lin_src, self.lin_dst):
            for vector in vectors.values():
                inits.glorot(vector)
        self.k_lin.reset_parameters()
        inits.glorot(self.q)

    def forward(
        self,
        x_dict: dict[str, Tensor],
        edge_index_dict: dict[Kind, Any],
        return_semantic_attention_weights: bool = False,
    ) -> Weights | tuple[Weights, Weights]:
        """Attends from the nodes of each kind to their sources.

        Args:
            x_dict: floating, [nodes, F], by kind of nodes.
            edge_index_dict: by kind of edges integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. A matrix's values have no part in the result.
            return_semantic_attention_weights: whether to return w too.

        Returns:
            [nodes, out_channels] by kind of nodes, None where no edges were given that go there; with w behind it
            where it is asked for, [kinds of edges] by kind of nodes.

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or kinds that metadata lacks.

        Gradient: reaches x_dict and the parameters, of any order.
        """
        self._require_nodes(x_dict, self.proj)
        graphs = self._graphs(edge_index_dict, x_dict, self.metadata[1])
        if any(adj._is_shared for adj in graphs.values()):
            raise TypeError("HANConv: weights are means over all nodes, which a rank does not have; take HGTConv")
        h = {kind: self.proj[kind](x).unflatten(1, (self.heads, -1)) for kind, x in x_dict.items()}
        found: dict[str, list[Tensor]] = {kind: [] for kind in x_dict}
        for kind, adj in graphs.items():
            source, target, name = h[kind[0]], h[kind[-1]], "__".join(kind)
            k, q = (source * self.lin_src[name]).sum(-1), (target * self.lin_dst[name]).sum(-1)
            out: Any = attention(
                adj, q, k, source, score="additive", slope=self.negative_slope, dropout=self.dropout,
                training=self.training,
            )  # fmt: skip
            found[kind[-1]].append(out.flatten(1).relu())
        outs, weights = {}, {}
        for node, parts in found.items():
            outs[node], weights[node] = self._joined(parts)
        return (outs, weights) if return_semantic_attention_weights else outs

    def _joined(self, parts: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """The kinds' results weighted, and their weights."""
        if not parts:
            return None, None
        out = torch.stack(parts)
        if not out.numel():
            return out[0], None
        weights = (self.q * self.k_lin(out).tanh().mean(1)).sum(-1).softmax(0)
        return (weights[:, None, None] * out).sum(0), weights

    def __repr__(self) -> str:
        return f"HANConv({self.out_channels}, heads={self.heads})"
