"""The heterogeneous graph transformer's layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu
from torch.nn.parameter import Parameter

from fusedmm.nn.kinds import EdgeMaps, Kind, KindsLinear, Metadata, OfKinds
from fusedmm.ops.attention import attention


class HGTConv(OfKinds):
    """Attention over the edges of all kinds, in the place of ``torch_geometric.nn.HGTConv``.

    With q, k and v linear maps of x for each kind of nodes, W and V maps and p a number for each kind r of edges and
    head, nodes i get ``sum_j softmax_j(p_r <q_i, k_j W_r> / sqrt(D)) v_j V_r`` over all their edges; its gelu is
    mapped, and mixed with x by a learned share where F is out_channels.

    Args:
        in_channels: F of x, for all kinds of nodes or by kind; -1 takes it from the first input.
        out_channels: F of the results, H times D.
        metadata: the kinds of nodes, and of edges as (source, relation, target).
        heads: number of heads H.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``kqv_lin.lins.*``, ``out_lin.lins.*``, ``k_rel.weight``, ``v_rel.weight``, ``skip.*`` and ``p_rel.*``,
    named, drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: one fused attention per kind of edges. What they find of one node is put together by the logarithms of their
    sums, so that no graph of all kinds is made, and nothing is of the size edges x D.

    Source: Hu, Dong, Wang and Sun, "Heterogeneous Graph Transformer", 2020.

    Example:
        >>> conv = fusedmm.nn.HGTConv(3, 4, (["a", "b"], [("a", "to", "b")]), heads=2)
        >>> x = {"a": torch.randn(3, 3), "b": torch.randn(2, 3)}
        >>> conv(x, {("a", "to", "b"): torch.tensor([[0, 1, 2], [1, 1, 0]])})["b"].shape
        torch.Size([2, 4])
        >>> conv
        HGTConv(-1, 4, heads=2)
    """

    def __init__(
        self, in_channels: int | dict[str, int], out_channels: int, metadata: Metadata, heads: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(kwargs)
        self.in_channels = self._maps(in_channels, out_channels, heads, metadata)
        self.out_channels = out_channels
        self.heads = heads
        self.node_types, self.edge_types = metadata
        self.edge_types_map = {kind: k for k, kind in enumerate(metadata[1])}
        self.dst_node_types = {kind[-1] for kind in metadata[1]}
        self.kqv_lin = KindsLinear(self.in_channels, 3 * out_channels)
        self.out_lin = KindsLinear(dict.fromkeys(metadata[0], out_channels), out_channels)
        self.k_rel = EdgeMaps(heads, len(metadata[1]), out_channels // heads)
        self.v_rel = EdgeMaps(heads, len(metadata[1]), out_channels // heads)
        self.skip = torch.nn.ParameterDict({kind: Parameter(torch.empty(1)) for kind in metadata[0]})
        self.p_rel = torch.nn.ParameterDict()  # in the order of the kinds, where one of a dictionary would be sorted
        for kind in metadata[1]:
            self.p_rel[_key(kind)] = Parameter(torch.empty(1, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for part in (self.kqv_lin, self.out_lin, self.k_rel, self.v_rel):
            part.reset_parameters()
        with torch.no_grad():
            for number in (*self.skip.values(), *self.p_rel.values()):
                number.fill_(1)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Kind, Any]) -> dict[str, Tensor]:
        """Attends from the nodes of each kind to their sources.

        Args:
            x_dict: floating, [nodes, F], by kind of nodes.
            edge_index_dict: by kind of edges integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. A matrix's values have no part in the result.

        Returns:
            [nodes, out_channels] by kind of nodes, of those that edges of some kind go to.

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or kinds that metadata lacks.

        Gradient: reaches x_dict and the parameters, of any order.
        """
        self._require_nodes(x_dict, self.kqv_lin.lins)
        graphs = self._graphs(edge_index_dict, x_dict, self.edge_types_map)
        heads = {kind: y.unflatten(1, (3, self.heads, -1)).unbind(1) for kind, y in self.kqv_lin(x_dict).items()}
        found: dict[str, list[Any]] = {kind: [] for kind in heads if kind in self.dst_node_types}
        for kind, adj in graphs.items():
            (k, _, v), (_, q, _) = heads[kind[0]], heads[kind[-1]]
            number = self.edge_types_map[kind]
            k = self.k_rel(k, number) * self.p_rel[_key(kind)].view(-1, 1)
            found[kind[-1]].append(attention(adj, q, k, self.v_rel(v, number), return_lse=True))
        outs = {}
        for node, parts in found.items():
            out = torch.zeros_like(heads[node][1]) if not parts else _joined(parts)
            outs[node] = gelu(out.flatten(1))
        outs = self.out_lin(outs)
        for node, out in outs.items():
            if out.shape[-1] == x_dict[node].shape[-1]:
                share = self.skip[node].sigmoid()
                outs[node] = share * out + (1 - share) * x_dict[node]
        return outs

    def __repr__(self) -> str:
        return f"HGTConv(-1, {self.out_channels}, heads={self.heads})"


def _key(kind: Kind) -> str:
    """What the parameters of a kind of edges are called; a name of a parameter has no dot."""
    return "__".join(kind).replace(".", "#")


def _joined(parts: list[Any]) -> Tensor:
    """Attention over the entries of several graphs, of what it finds over each and of the logarithms of their sums."""
    if len(parts) == 1:
        return parts[0][0]
    outs, lses = (torch.stack(found) for found in zip(*parts, strict=True))
    largest = lses.detach().amax(0).nan_to_num(neginf=0.0)  # of a node without edges of any kind it is -inf
    weights = (lses - largest).exp()
    weights = weights / weights.sum(0).clamp(min=1e-16)
    return (outs * weights[..., None].to(outs.dtype)).sum(0)
