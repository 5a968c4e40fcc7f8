"""The relational graph convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.parameter import Parameter

from fusedmm.matrix.arguments import require_range, require_vector
from fusedmm.matrix.structure import INTEGERS
from fusedmm.nn import inits
from fusedmm.nn.adjacency import adjacency, aggregate, reduction
from fusedmm.nn.checks import require_channels, require_nodes, require_options, require_size, require_sizes
from fusedmm.nn.layer import Layer
from fusedmm.nn.relations import Relations, relations_of
from fusedmm.ops.sage import ONE_STEP

Nodes = Tensor | None | tuple[Tensor | None, Tensor]


class RGCNConv(Layer):
    """``sum_r mean_j W_r x_j + W_root x_i + b``, j by edges of type r, in the place of ``torch_geometric.nn.RGCNConv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets); of nodes without features their number.
        out_channels: F of the result.
        num_relations: R, the number of types.
        num_bases: B, to have each W_r as a sum of B matrices with factors of its own.
        num_blocks: to have each W_r as so many blocks on its diagonal.
        aggr: "mean", "add", "sum", "max" or "min", of the neighbours of one type.
        root_weight: whether to add ``W_root x``.
        is_sorted: as PyG's option; edges may come in any order either way.
        bias: whether to learn b.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``weight``, ``comp``, ``root`` and ``bias``, named, drawn and saved as PyG's, so that its
    ``state_dict`` loads.

    Cost: two SpMMs and R dense products per call, and memory for F and out_channels numbers for each pair of a
    target and a type of its edges. Edges are sorted by type once per graph and tensor of types.

    Source: Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks", 2018.

    Example:
        >>> conv = fusedmm.nn.RGCNConv(3, 2, num_relations=2)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 1, 0])).shape
        torch.Size([4, 2])
        >>> conv
        RGCNConv(3, 2, num_relations=2)
    """

    _linear = False  # whether the aggregation must be a sum or mean

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        aggr: str = "mean",
        root_weight: bool = True,
        is_sorted: bool = False,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(aggr, node_dim=0)
        name = type(self).__name__
        self.reduce = reduction(name, aggr)
        if self._linear and self.reduce not in ONE_STEP:
            raise ValueError(f"{name}: aggr must be one of add, sum, mean, not {aggr!r}")
        require_options(name, kwargs, node_dim=0)
        source, target = require_channels(name, in_channels, out_channels, lazy=False)
        require_size(name, "num_relations", num_relations)
        if num_bases is not None and num_blocks is not None:
            raise ValueError(f"{name}: num_bases and num_blocks cannot both be set")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.num_relations = num_relations
        self.num_bases = num_bases
        self.num_blocks = num_blocks
        self.is_sorted = is_sorted
        self.in_channels_l = source
        shape: tuple[int, ...] = (num_relations, source, out_channels)
        self.comp = self.root = self.bias = None
        if num_bases is not None:
            require_size(name, "num_bases", num_bases)
            shape = (num_bases, source, out_channels)
        elif num_blocks is not None:
            require_size(name, "num_blocks", num_blocks)
            if source % num_blocks or out_channels % num_blocks:
                raise ValueError(f"{name}: num_blocks={num_blocks} must divide {source} and {out_channels} channels")
            shape = (num_relations, num_blocks, source // num_blocks, out_channels // num_blocks)
        self.weight = Parameter(torch.empty(shape))
        if num_bases is not None:
            self.comp = Parameter(torch.empty(num_relations, num_bases))
        if root_weight:
            self.root = Parameter(torch.empty(target, out_channels))
        if bias:
            self.bias = Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        inits.glorot(self.weight)
        inits.glorot(self.comp)
        inits.glorot(self.root)
        inits.zeros(self.bias)

    def forward(self, x: Nodes, edge_index: Any, edge_type: Tensor | None = None) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, F], or a pair of [sources, F] and [targets, F]; or integers [nodes], each the row of
                ``weight[r]`` that stands for ``W_r x``; or None, where node j's is row j.
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. A matrix's values have no part in the result.
            edge_type: integers [edges] in [0, R), in the graph's order.

        Returns:
            [targets, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or types that are outside.

        Gradient: reaches x and the parameters, of any order; equal maxima share it evenly.
        """
        source, target = x if isinstance(x, tuple) else (x, x)
        self._require_nodes(source, target)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_type)
        count = self.in_channels_l if source is None else source.size(0)
        adj = adjacency(edge_index, count, count if target is None else target.size(0)).pattern()
        out = self._of_neighbours(relations_of(type(self).__name__, adj, edge_type, self.num_relations), source)
        if self.root is not None:
            if target is None:
                out = out + self.root
            else:
                out = out + (target @ self.root if target.is_floating_point() else embedding(target, self.root))
        return out if self.bias is None else out + self.bias

    def _of_neighbours(self, related: Relations, x: Tensor | None) -> Tensor:
        """The sum over types of what a target's neighbours give."""
        weight: Tensor = self.weight
        if self.comp is not None:
            weight = (self.comp @ weight.flatten(1)).view(-1, *weight.shape[1:])
        if x is not None and x.is_floating_point():
            parts = aggregate(related.pairs, x, self.reduce).split(related.counts)
            used = [r for r, count in enumerate(related.counts) if count] or [0]
            out = torch.cat([_mapped(parts[r], weight[r]) for r in used])
        else:
            if self.num_blocks is not None:
                raise ValueError(f"{type(self).__name__}: num_blocks needs floating-point x")
            columns = related.looked_up(x, weight.shape[1])
            out = aggregate(columns, weight.flatten(0, 1), self.reduce)
        return aggregate(related.targets, out, "sum")

    def _require_nodes(self, source: Any, target: Any) -> None:
        name, sizes = type(self).__name__, self.in_channels
        sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes, sizes)
        for label, x, size in (("x[0]", source, sizes[0]), ("x[1]", target, sizes[1])):
            label = "x" if target is source else label
            if isinstance(x, Tensor) and x.dtype in INTEGERS:
                require_vector(f"{name}: {label}", x)
                require_range(f"{name}: {label}[{{}}]", x, size)
            elif x is not None:
                require_nodes(name, x)
                require_sizes(name, label, x, size, self.weight)
        if target is None and source is not None:
            raise ValueError(f"{name}: x[1] must be a tensor")

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.in_channels}, {self.out_channels}, num_relations={self.num_relations})"


def _mapped(x: Tensor, weight: Tensor) -> Tensor:
    """x W, or with blocks on W's diagonal [blocks, F / blocks, out / blocks]."""
    if weight.dim() == 2:
        return x @ weight
    return torch.einsum("nbf,bfc->nbc", x.view(-1, *weight.shape[:2]), weight).flatten(1)


class FastRGCNConv(RGCNConv):
    """``RGCNConv`` of a sum or mean, in the place of ``torch_geometric.nn.FastRGCNConv``.

    PyG's takes less time and more memory than its ``RGCNConv``. Here they are one, but for ``aggr``.

    Args:
        in_channels, out_channels, num_relations, num_bases, num_blocks, root_weight, is_sorted, bias, kwargs: as in
            ``RGCNConv``.
        aggr: "mean", "add" or "sum".

    Raises:
        TypeError, ValueError: as ``RGCNConv``.

    Example:
        >>> fusedmm.nn.FastRGCNConv(3, 2, num_relations=2)
        FastRGCNConv(3, 2, num_relations=2)
    """

    _linear = True
