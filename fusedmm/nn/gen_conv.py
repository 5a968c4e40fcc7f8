"""The generalised graph convolution of deep networks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.parameter import Parameter

from fusedmm.matrix.incidence import from_columns, into_rows
from fusedmm.nn.adjacency import OptPair, Size, aggregate, features_of, with_edge_values
from fusedmm.nn.aggr import Aggregation, Aggregations, Neighbours, resolve
from fusedmm.nn.checks import (
    require_channels,
    require_edge_attr,
    require_nodes,
    require_number,
    require_options,
    require_size,
)
from fusedmm.nn.inits import reset
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear

NORMS: dict[Any, Any] = {
    "batch": torch.nn.BatchNorm1d,
    "layer": torch.nn.LayerNorm,
    "instance": torch.nn.InstanceNorm1d,
}


class GENConv(Layer):
    """``mlp(x_i + aggr_j(relu(x_j + e_ij) + eps))``, in the place of ``torch_geometric.nn.GENConv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets), mapped where it is not out_channels; -1 takes it from
            the first input.
        out_channels: F of the result.
        aggr: "softmax", "powermean" (or "power"), "softmax_sg", or what ``SAGEConv`` takes.
        t, learn_t: of "softmax", and whether it is learned.
        p, learn_p: of "powermean", and whether it is learned.
        msg_norm: whether to scale the aggregation to the length of x.
        learn_msg_scale: whether to learn the factor of that.
        norm: within the mlp: "batch", "layer", "instance" or None.
        num_layers: maps of the mlp.
        expansion: F between these over out_channels.
        eps: is added to the messages.
        bias: whether maps have one.
        edge_dim: D of the edge features, mapped where it is not out_channels; without it D is out_channels.
        kwargs: ``aggr_kwargs``, options of aggr as in PyG; other options of PyG's base class only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``lin_src.*``, ``lin_edge.*``, ``lin_aggr_out.*``, ``lin_dst.*``, ``mlp.*``, ``msg_norm.scale``, and what
    aggr learns, named, drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: one fused attention per call for "softmax". Without edge features a message is that of its source, and
    nothing is of the size edges x out_channels; with them the messages are stored.

    Source: Li, Xiong, Thabet and Ghanem, "DeeperGCN: All You Need to Train Deeper GCNs", 2020.

    Example:
        >>> conv = fusedmm.nn.GENConv(3, 2)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        GENConv(3, 2, aggr=softmax)
    """

    aggr_module: Aggregation | Aggregations

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: Any = "softmax",
        t: float = 1.0,
        learn_t: bool = False,
        p: float = 1.0,
        learn_p: bool = False,
        msg_norm: bool = False,
        learn_msg_scale: bool = False,
        norm: str = "batch",
        num_layers: int = 2,
        expansion: int = 2,
        eps: float = 1e-7,
        bias: bool = False,
        edge_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = {"softmax": {"t": t, "learn": learn_t}, "softmax_sg": {"t": t, "learn": learn_t, "semi_grad": True}}
        options |= {name: {"p": p, "learn": learn_p} for name in ("powermean", "power")}
        given = kwargs.pop("aggr_kwargs", options.get(aggr, {}) if isinstance(aggr, str) else None)
        if isinstance(aggr, str):
            aggr = {"softmax_sg": "softmax", "power": "powermean"}.get(aggr, aggr)
        names = [str(a) for a in aggr] if isinstance(aggr, (tuple, list)) else str(aggr)
        super().__init__(names, resolve("GENConv", aggr, given))
        require_options("GENConv", kwargs)
        source, target = require_channels("GENConv", in_channels, out_channels)
        for size, value in (("num_layers", num_layers), ("expansion", expansion)):
            require_size("GENConv", size, value)
        if edge_dim is not None:
            require_size("GENConv", "edge_dim", edge_dim, lazy=True)
        if norm and norm not in NORMS:
            raise ValueError(f"GENConv: norm must be None or one of {', '.join(NORMS)}, not {norm!r}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.eps = require_number("GENConv", "eps", eps)
        if source != out_channels:
            self.lin_src = Linear(source, out_channels, bias=bias)
        if edge_dim is not None and edge_dim != out_channels:
            self.lin_edge = Linear(edge_dim, out_channels, bias=bias)
        if self.aggr_module.times != 1:
            self.lin_aggr_out = Linear(self.aggr_module.times * out_channels, out_channels, bias=bias)
        if target != out_channels:
            self.lin_dst = Linear(target, out_channels, bias=bias)
        self.mlp = _mlp([out_channels, *[out_channels * expansion] * (num_layers - 1), out_channels], norm, bias)
        if msg_norm:
            self.msg_norm = MessageNorm(learn_msg_scale)

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for name in ("aggr_module", "mlp", "msg_norm", "lin_src", "lin_edge", "lin_aggr_out", "lin_dst"):
            reset(self._modules.get(name))

    def forward(
        self, x: Tensor | OptPair, edge_index: Any, edge_attr: Tensor | None = None, size: Size = None
    ) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels], or a pair of [sources, F] and [targets, F] or None.
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. A matrix's values [nnz, D] are its
                edge features where no edge_attr is given; values [nnz] have no part in the result.
            edge_attr: [edges, D], in the graph's order.
            size: (sources, targets), for targets without features.

        Returns:
            [targets, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, edge_attr (or a matrix's values) and the parameters.
        """
        maps = self._modules
        lin_src, lin_edge, lin_dst = maps.get("lin_src"), maps.get("lin_edge"), maps.get("lin_dst")
        require_nodes("GENConv", x, lin_src, lin_dst)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_attr, size)
        adj, (source, target) = with_edge_values(edge_index, x, size)
        if self.training and adj._is_shared and any(isinstance(m, torch.nn.BatchNorm1d) for m in self.mlp):
            raise TypeError("GENConv: norm='batch' needs all nodes, which a rank does not have; take norm='layer'")
        for t, lin in ((source, lin_src), (target, lin_dst)):
            if t is not None and lin is None and t.shape[1] != self.out_channels:
                raise ValueError(f"GENConv: x has {t.shape[1]} features, in_channels is {self.in_channels}")
        source = source if lin_src is None else lin_src(source)
        attr = features_of(adj) if edge_attr is None else edge_attr
        if attr is None:
            adj, message = adj.pattern(), source.relu() + self.eps
        else:
            attr = require_edge_attr("GENConv", attr, adj.nnz, lin_edge, flat=False)
            attr = attr if lin_edge is None else lin_edge(attr)
            if attr.shape[1] != source.shape[1]:
                raise ValueError(
                    f"GENConv: edge_attr has {attr.shape[1]} features, nodes {source.shape[1]}: set edge_dim"
                )
            message = (aggregate(from_columns(adj), source, "sum") + attr).relu() + self.eps
            adj = into_rows(adj)
        out = self.aggr_module(Neighbours(adj, message, self.aggr_module.kinds, attr is not None))
        if "lin_aggr_out" in maps:
            out = self.lin_aggr_out(out)
        if "msg_norm" in maps:
            out = self.msg_norm(source if target is None else target, out)
        if target is not None:
            out = out + (target if lin_dst is None else lin_dst(target))
        return self.mlp(out)

    def __repr__(self) -> str:
        return f"GENConv({self.in_channels}, {self.out_channels}, aggr={self.aggr})"


def _mlp(sizes: list[int], norm: str | None, bias: bool) -> torch.nn.Sequential:
    """Maps from size to size, and between them a norm, a ReLU and a dropout of nothing, as PyG's has it."""
    parts: list[torch.nn.Module] = []
    for first, second in pairwise(sizes):
        if parts:
            parts += [NORMS[norm](first)] if norm else []
            parts += [torch.nn.ReLU(), torch.nn.Dropout(0.0)]
        parts.append(Linear(first, second, bias=bias))
    return torch.nn.Sequential(*parts)


class MessageNorm(torch.nn.Module):
    """``s |x| m / |m|``: messages m that get the length of their target's features x.

    Args:
        learn_scale: whether to learn s, which begins at 1.
    """

    def __init__(self, learn_scale: bool) -> None:
        super().__init__()
        self.scale = Parameter(torch.empty(1), requires_grad=learn_scale)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets s to 1."""
        with torch.no_grad():
            self.scale.fill_(1)

    def forward(self, x: Tensor, msg: Tensor) -> Tensor:
        """[nodes, F] of x [nodes, any] and msg [nodes, F]."""
        return normalize(msg, dim=-1) * x.norm(dim=-1, keepdim=True) * self.scale
