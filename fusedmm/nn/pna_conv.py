"""The principal neighbourhood aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from fusedmm._torch_compat import is_hooked
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import from_columns, from_rows, into_rows
from fusedmm.nn.adjacency import aggregate
from fusedmm.nn.aggr import Neighbours
from fusedmm.nn.checks import require_nodes, require_options, require_size, require_sizes
from fusedmm.nn.heads import edges
from fusedmm.nn.inits import reset
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear, is_plain
from fusedmm.nn.scalers import ScaledAggregations

SHIFTED = ("sum", "mean", "max", "min", "var", "std")  # what is known of ``a + b_j`` once it is of b_j


class PNAConv(Layer):
    """``W [post(x_i, scaled aggregations_j of pre(x_i, x_j, e_ij))]``, as ``torch_geometric.nn.PNAConv``.

    Args:
        in_channels: F of x.
        out_channels: F of the result.
        aggregators: names of what ``SAGEConv`` aggregates by, such as "mean", "max", "min", "std".
        scalers: of "identity", "amplification", "attenuation", "linear" and "inverse_linear".
        deg: integers [largest degree + 1], how many nodes of the training data have each degree.
        edge_dim: D of the edge features; None is without them.
        towers: number of towers, each with maps of its own, whose results stand side by side.
        pre_layers, post_layers: maps within ``pre`` and ``post``.
        divide_input: whether each tower gets its share of x instead of all.
        act: between the maps: the name of a class of ``torch.nn``, a module, or a function.
        act_kwargs: options of act, where it is a name.
        train_norm: whether to learn the scalers' means of degrees.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``edge_encoder.*``, ``pre_nns.*``, ``post_nns.*``, ``lin.*``, and ``aggr_module.avg_deg_lin`` and
    ``avg_deg_log``, which are buffers unless they are learned, named, drawn and saved as PyG's, so that its
    ``state_dict`` loads.

    Cost: an SpMM for each of the aggregators, two for "var" and "std" together. With one map in ``pre``, no edge
    features, and of the aggregators sum, mean, max, min, var and std alone, nothing is of the size edges x F; else the
    messages are stored.

    Source: Corso et al., "Principal Neighbourhood Aggregation for Graph Nets", 2020.

    Example:
        >>> conv = fusedmm.nn.PNAConv(3, 2, ["mean", "max"], ["identity", "linear"], deg=torch.tensor([0, 3]))
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        PNAConv(3, 2, towers=1, edge_dim=None)
    """

    aggr_module: ScaledAggregations

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggregators: list[str],
        scalers: list[str],
        deg: Tensor,
        edge_dim: int | None = None,
        towers: int = 1,
        pre_layers: int = 1,
        post_layers: int = 1,
        divide_input: bool = False,
        act: str | Callable[[Tensor], Tensor] | None = "relu",
        act_kwargs: dict[str, Any] | None = None,
        train_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        aggr = ScaledAggregations("PNAConv", aggregators, scalers, deg, train_norm)
        super().__init__("DegreeScalerAggregation()", aggr, node_dim=0)
        require_options("PNAConv", kwargs, node_dim=0)
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "towers": towers}
        for name, size in (sizes | {"pre_layers": pre_layers, "post_layers": post_layers}).items():
            require_size("PNAConv", name, size)
        if edge_dim is not None:
            require_size("PNAConv", "edge_dim", edge_dim)
        for name in ("in_channels", "out_channels") if divide_input else ("out_channels",):
            if sizes[name] % towers:
                raise ValueError(f"PNAConv: {name}={sizes[name]} must be a multiple of towers={towers}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.edge_dim = edge_dim
        self.towers = towers
        self.divide_input = divide_input
        self.F_in = in_channels // towers if divide_input else in_channels
        self.F_out = out_channels // towers
        if edge_dim is not None:
            self.edge_encoder = Linear(edge_dim, self.F_in)
        self.pre_nns, self.post_nns = torch.nn.ModuleList(), torch.nn.ModuleList()
        for _ in range(towers):
            ends = 2 if edge_dim is None else 3
            self.pre_nns.append(_maps(ends * self.F_in, self.F_in, pre_layers, act, act_kwargs))
            width = (aggr.times + 1) * self.F_in
            self.post_nns.append(_maps(width, self.F_out, post_layers, act, act_kwargs))
        self.lin = Linear(out_channels, out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        reset(self.aggr_module)
        reset(self._modules.get("edge_encoder"))
        for nn in (*self.pre_nns, *self.post_nns):
            reset(nn)
        self.lin.reset_parameters()

    def forward(self, x: Tensor, edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels].
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [nodes, nodes]. A matrix's values [nnz, D] are its
                edge features where no edge_attr is given; values [nnz] have no part in the result.
            edge_attr: [edges, D], in the graph's order; needed with ``edge_dim``, and refused without.

        Returns:
            [nodes, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or a pair of node features.

        Gradient: reaches x, edge_attr (or a matrix's values) and the parameters.
        """
        if isinstance(x, (tuple, list)):
            raise ValueError("PNAConv: x must be one tensor; for sources and targets of their own use SAGEConv")
        require_nodes("PNAConv", x)
        require_sizes("PNAConv", "x", x, self.in_channels, self.lin.weight)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_attr)
        encoder = self._modules.get("edge_encoder")
        (adj, attr), _ = edges("PNAConv", edge_index, x, None, edge_attr, encoder, needs_map=True)
        if encoder is not None and attr is None:
            raise ValueError("PNAConv: edge_attr must be given, since edge_dim is set")
        attr = attr if encoder is None else encoder(attr)
        shares = list(x.split(self.F_in, 1)) if self.divide_input else [x] * self.towers
        found = self._aggregated(adj, shares, attr)
        both = (torch.cat([share, out], 1) for share, out in zip(shares, found.unbind(1), strict=True))
        return self.lin(torch.cat([nn(out) for nn, out in zip(self.post_nns, both, strict=True)], 1))

    def _aggregated(self, adj: CSR, shares: list[Tensor], attr: Tensor | None) -> Tensor:
        """The scaled aggregations of the messages, [nodes, towers, aggregators * scalers * F]."""
        pre: Any = self.pre_nns
        kinds = self.aggr_module.aggr.kinds
        if attr is None and all(kind in SHIFTED for kind in kinds) and all(_is_one_map(nn) for nn in pre):
            # The targets' part of a message is added when the sources' parts are aggregated.
            parts = [(x, *nn[0].weight.split(self.F_in, 1), nn[0].bias) for nn, x in zip(pre, shares, strict=True)]
            shift = torch.stack([linear(x, own, bias) for x, own, _, bias in parts], 1)
            source = torch.cat([linear(x, far) for x, _, far, _ in parts], 1)
            return self.aggr_module(Neighbours(adj, source, kinds), adj, self.towers, shift)
        rows, cols = from_rows(adj), from_columns(adj)
        messages = []
        for nn, x in zip(pre, shares, strict=True):
            ends = [aggregate(rows, x, "sum"), aggregate(cols, x, "sum")]
            messages.append(nn(torch.cat(ends if attr is None else [*ends, attr], 1)))
        return self.aggr_module(Neighbours(into_rows(adj), torch.cat(messages, 1), kinds), adj, self.towers, None)

    @staticmethod
    def get_degree_histogram(loader: Iterable[Any]) -> Tensor:
        """How many nodes have each degree, [largest degree + 1], over all batches of a loader."""
        found = torch.zeros(1, dtype=torch.long)
        for data in loader:
            degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
            count = torch.bincount(degree, minlength=found.numel())
            found = pad(found.to(count.device), (0, count.numel() - found.numel())) + count
        return found

    def __repr__(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, towers={self.towers}"
        return f"PNAConv({sizes}, edge_dim={self.edge_dim})"


def _maps(first: int, width: int, layers: int, act: Any, options: dict[str, Any] | None) -> torch.nn.Sequential:
    """Maps from first to width to width, and an act between two of them."""
    parts: list[Any] = [Linear(first, width)]
    for _ in range(layers - 1):
        parts += [_activation(act, options or {}), Linear(width, width)]
    return torch.nn.Sequential(*parts)


def _is_one_map(nn: Any) -> bool:
    return len(nn) == 1 and is_plain(nn[0]) and not is_hooked(nn)


def _activation(act: Any, options: dict[str, Any]) -> Any:
    if not isinstance(act, str):
        return act
    wanted = act.lower().translate({ord(c): None for c in "-_ "})
    for name, kind in vars(torch.nn.modules.activation).items():
        if name.lower() == wanted and isinstance(kind, type) and issubclass(kind, torch.nn.Module):
            return kind(**options)
    raise ValueError(f"PNAConv: torch.nn has no activation {act!r}")
