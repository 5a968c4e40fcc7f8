"""The residual gated graph convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm._torch_compat import is_hooked
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import from_columns, from_rows, into_rows
from fusedmm.nn import inits
from fusedmm.nn.adjacency import aggregate, reduction
from fusedmm.nn.checks import (
    require_channels,
    require_like,
    require_nodes,
    require_options,
    require_size,
    require_sizes,
)
from fusedmm.nn.edge_maps import map_with_edges
from fusedmm.nn.heads import edges
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear, goes_unseen, maps_of
from fusedmm.ops.checks import is_mixed
from fusedmm.ops.fused import fused
from fusedmm.ops.gspmm import gsddmm, gspmm
from fusedmm.ops.sddmm import sddmm

# Gates that are stored in any case. On a CPU `fused` takes four times as long for a sixth as many, and as long for
# 2^24. On an H100 it takes 1 to 3.6 times as long for up to 2^25, so that there memory decides.
FEW = {"cpu": 2**22, "cuda": 2**28}
EXPRESSIONS = {torch.nn.Sigmoid: "sigmoid(s)", torch.nn.Tanh: "tanh(s)", torch.nn.ReLU: "relu(s)"}  # of an act


class ResGatedGraphConv(Layer):
    """``W_1 x_i + b + sum_j act(W_2 x_i + W_3 x_j) W_4 x_j``, as ``torch_geometric.nn.ResGatedGraphConv``.

    With edge features e each of W_2, W_3 and W_4 maps x and e side by side.

    Args:
        in_channels: F of x, or (F of sources, F of targets); -1 takes it from the first input, where there is
            no ``edge_dim``.
        out_channels: F of the result.
        act: of the gates, a module or function.
        edge_dim: D of the edge features; None is without them.
        root_weight: whether to add ``W_1 x``.
        bias: whether to learn b.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``bias``, ``lin_key.*``, ``lin_query.*``, ``lin_value.*`` (W_2 to W_4) and ``lin_skip.weight``, named,
    drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: four dense products, and for each edge and channel a gate, which is stored.
    Without gradients and edge features, where act is torch's Sigmoid, Tanh or ReLU and there are more than 2^22 gates,
    on CUDA 2^28, the rest is one ``fused``, and nothing of that size is made. (Its gradients take two to twelve times
    as long as those of what is stored.)

    Source: Bresson and Laurent, "Residual Gated Graph ConvNets", 2017.

    Example:
        >>> conv = fusedmm.nn.ResGatedGraphConv(3, 2)
        >>> conv(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([4, 2])
        >>> conv
        ResGatedGraphConv(3, 2)
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        act: Callable[[Tensor], Tensor] | None = torch.nn.Sigmoid(),  # noqa: B008  # PyG's default; it has no state
        edge_dim: int | None = None,
        root_weight: bool = True,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        aggr = kwargs.pop("aggr", "add")
        super().__init__(aggr)
        self.reduce = reduction("ResGatedGraphConv", aggr)
        require_options("ResGatedGraphConv", kwargs)
        source, target = require_channels("ResGatedGraphConv", in_channels, out_channels, lazy=edge_dim is None)
        if edge_dim is not None:
            require_size("ResGatedGraphConv", "edge_dim", edge_dim)
        if not callable(act) or isinstance(act, type):
            raise TypeError(f"ResGatedGraphConv: act must be a module, or a function of a tensor, not {act!r}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.act = act
        self.edge_dim = edge_dim
        self.root_weight = root_weight
        more = 0 if edge_dim is None else edge_dim
        self.lin_key = Linear(target + more, out_channels)
        self.lin_query = Linear(source + more, out_channels)
        self.lin_value = Linear(source + more, out_channels)
        self.lin_skip = Linear(target, out_channels, bias=False) if root_weight else None
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for lin in (self.lin_key, self.lin_query, self.lin_value, self.lin_skip):
            if lin is not None:
                lin.reset_parameters()
        inits.zeros(self.bias)

    def forward(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels], or a pair of [sources, F] and [targets, F].
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. A matrix's values [nnz, D] are its
                edge features where no edge_attr is given; values [nnz] have no part in the result.
            edge_attr: [edges, D], in the graph's order; needed with ``edge_dim``, and refused without.

        Returns:
            [targets, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, edge_attr (or a matrix's values) and the parameters.
        """
        name, lin_key = "ResGatedGraphConv", self.lin_key
        sized = self.edge_dim is None
        require_nodes(name, x, self.lin_query if sized else None, lin_key if sized else None)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_attr)
        (adj, attr), (source, target) = edges(name, edge_index, x, None, edge_attr, self.edge_dim, needs_map=True)
        if target is None:
            raise ValueError(f"{name}: x[1] must be a tensor")
        out = self._gated(adj, source, target) if sized else self._gated_by_edges(adj, source, target, attr)
        skip, bias = self.lin_skip if self.root_weight else None, self.bias
        if skip is not None and bias is not None and goes_unseen(target, skip):
            weight = skip.weight_for(target)
            if not is_mixed(out, target, weight, bias):
                return out + torch.nn.functional.linear(target, weight, bias)  # a sum less, either way
        out = out if skip is None else out + skip(target)
        return out if bias is None else out + bias

    def _gated(self, adj: CSR, source: Tensor, target: Tensor) -> Tensor:
        """Each channel is a head of its own, whose score is the argument of its gate."""
        if source is target and source.is_cuda:  # on a CPU the copies that one product needs outlast its calls
            key, query, value = maps_of(source, self.lin_key, self.lin_query, self.lin_value)
        else:
            key, query, value = self.lin_key(target), self.lin_query(source), self.lin_value(source)
        stored = torch.is_grad_enabled() and any(t.requires_grad for t in (key, query, value))
        if not stored and not adj._is_shared and not torch.compiler.is_compiling():  # whose graphs are of any size
            stored = adj.nnz * key.shape[-1] <= FEW[key.device.type]
        expression = None if stored else self._expression()
        if expression is not None:
            parts = (t[..., None] for t in (key, query, value))
            return fused(adj, *parts, score="additive", edge=expression, reduce=self.reduce)[..., 0]
        if adj._is_shared:  # of whose entries a rank has no messages
            gates = self.act(sddmm(adj, key, query, op="add"))
            return aggregate(into_rows(adj), gates * aggregate(from_columns(adj), value, "sum"), self.reduce)
        return gspmm(adj, "mul", self.reduce, value, self.act(gsddmm(adj, "add", query, key)))

    def _expression(self) -> str | None:
        """The function of edges that ``act`` is; None where ``fused`` has none, or where something sees its calls."""
        act = self.act
        return EXPRESSIONS.get(type(act)) if isinstance(act, torch.nn.Module) and not is_hooked(act) else None

    def _gated_by_edges(self, adj: CSR, source: Tensor, target: Tensor, attr: Tensor | None) -> Tensor:
        if attr is None:
            raise ValueError("ResGatedGraphConv: edge_attr must be given, since edge_dim is set")
        name, sizes, weight = "ResGatedGraphConv", self.in_channels, self.lin_key.weight
        sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes, sizes)
        one = source is target
        require_sizes(name, "x" if one else "x[0]", source, sizes[0], weight)
        require_sizes(name, "x" if one else "x[1]", target, sizes[1], weight)
        if attr.shape[1] != self.edge_dim:
            raise ValueError(f"{name}: edge_attr has {attr.shape[1]} features, edge_dim is {self.edge_dim}")
        require_like(name, "edge_attr", attr, weight)
        rows, cols = from_rows(adj), from_columns(adj)
        key = map_with_edges(self.lin_key, [(rows, target)], attr)
        query, value = (map_with_edges(lin, [(cols, source)], attr) for lin in (self.lin_query, self.lin_value))
        return aggregate(into_rows(adj), self.act(key + query) * value, self.reduce)

    def __repr__(self) -> str:
        return f"ResGatedGraphConv({self.in_channels}, {self.out_channels})"
