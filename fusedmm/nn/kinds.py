"""What layers of graphs with several kinds of nodes and edges have in common: their options, graphs and maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.matrix.csr import CSR
from fusedmm.nn import inits
from fusedmm.nn.adjacency import adjacency
from fusedmm.nn.checks import require_channels, require_nodes, require_options, require_size
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear

Kind = tuple[str, str, str]  # of edges: source, relation, target
Metadata = tuple[list[str], list[Kind]]


class OfKinds(Layer):
    """A layer of a graph with several kinds of nodes and edges.

    Nothing may watch its messages, since there is no one graph that they would be of.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(node_dim=0)
        require_options(type(self).__name__, options, node_dim=0)

    def _watch(self, what: str) -> None:
        raise ValueError(f"{type(self).__name__}: {what} is not supported where there are several kinds of nodes")

    def _maps(self, in_channels: Any, out_channels: int, heads: int, metadata: Metadata) -> dict[str, int]:
        """Checks the sizes; returns F of each kind of nodes."""
        name = type(self).__name__
        if not isinstance(metadata, (tuple, list)) or len(metadata) != 2:
            raise TypeError(f"{name}: metadata must be (kinds of nodes, kinds of edges), not {metadata!r}")
        sizes = in_channels if isinstance(in_channels, dict) else dict.fromkeys(metadata[0], in_channels)
        for size in sizes.values():
            require_channels(name, size, out_channels)
        require_size(name, "heads", heads)
        if out_channels % heads:
            raise ValueError(f"{name}: out_channels={out_channels} must be a multiple of heads={heads}")
        return sizes

    def _require_nodes(self, x_dict: Any, maps: Any) -> None:
        name = type(self).__name__
        if not isinstance(x_dict, dict):
            raise TypeError(f"{name}: x_dict must be a dictionary by kinds of nodes, not {type(x_dict).__name__}")
        for kind, x in x_dict.items():
            if kind not in maps:
                raise ValueError(f"{name}: x_dict has nodes {kind!r}, which metadata lacks")
            try:
                require_nodes(name, x, maps[kind])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error}, of nodes {kind!r}") from None

    def _graphs(self, edge_index_dict: dict[Kind, Any], x_dict: dict[str, Tensor], known: Any) -> dict[Kind, CSR]:
        """The graph of each kind of edges, without values."""
        name, found = type(self).__name__, {}
        if not isinstance(edge_index_dict, dict):
            form = type(edge_index_dict).__name__
            raise TypeError(f"{name}: edge_index_dict must be a dictionary by kinds of edges, not {form}")
        for kind, graph in edge_index_dict.items():
            if kind not in known:
                raise ValueError(f"{name}: edge_index_dict has edges {kind!r}, which metadata lacks")
            for end in (kind[0], kind[-1]):
                if end not in x_dict:
                    raise ValueError(f"{name}: x_dict lacks nodes {end!r}, which edges {kind!r} have")
            adj = adjacency(graph, x_dict[kind[0]].size(0), x_dict[kind[-1]].size(0))
            if torch.compiler.is_compiling() and torch.is_grad_enabled():
                adj.cache_transpose()
            found[kind] = adj.pattern()
        return found


class KindsLinear(torch.nn.Module):
    """A linear map for each kind of nodes."""

    def __init__(self, in_channels: dict[str, int], out_channels: int) -> None:
        super().__init__()
        maps = {kind: Linear(size, out_channels) for kind, size in in_channels.items()}
        self.lins = torch.nn.ModuleDict(maps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        inits.reset(torch.nn.ModuleList(self.lins.values()))

    def forward(self, x_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """The map of each, in the order of the kinds."""
        return {kind: lin(x_dict[kind]) for kind, lin in self.lins.items() if kind in x_dict}


class EdgeMaps(torch.nn.Module):
    """A square matrix [D, D] for each head and kind of edges, heads first."""

    def __init__(self, heads: int, kinds: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.weight = Parameter(torch.empty(heads * kinds, width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        with torch.no_grad():
            inits.kaiming_uniform(self.weight, self.weight.shape[1], 5**0.5)

    def forward(self, x: Tensor, kind: int) -> Tensor:
        """The map of x [nodes, heads, D] for one kind of edges, with heads side by side: attention has other loops, and
        so other last bits, where they are not, and a rank that fetches rows of others lays them side by side."""
        weight = self.weight.unflatten(0, (self.heads, -1))[:, kind]
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1).contiguous()
