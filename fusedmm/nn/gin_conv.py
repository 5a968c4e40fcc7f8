"""The graph isomorphism convolution, and its form with edge features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.incidence import from_columns, into_rows
from fusedmm.nn.adjacency import OptPair, Size, aggregate, bipartite, features_of, reduction, with_edge_values
from fusedmm.nn.checks import require_edge_attr, require_nodes, require_number, require_options, require_size
from fusedmm.nn.inits import reset
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear


class GINConv(Layer):
    """``nn((1 + eps) x + sum of the neighbours' x)``, in the place of ``torch_geometric.nn.GINConv``.

    Args:
        nn: a module, often a ``torch.nn.Sequential``, from [*, in] to [*, out]; its parameters are drawn anew.
        eps: first value of eps.
        train_eps: whether eps is a parameter; a buffer otherwise.
        kwargs: ``aggr``, one of "add", "sum", "mean", "max", "min"; other options of PyG's base class
            only with their defaults.

    Raises:
        TypeError: an nn that is no function, or an eps that is no number.
        ValueError: an option that is not supported.

    The names in ``state_dict``, ``eps`` and ``nn.*``, are PyG's.

    Cost: one SpMM per call and what nn costs.

    Source: Xu, Hu, Leskovec and Jegelka, "How Powerful are Graph Neural Networks?", 2019.

    Example:
        >>> conv = fusedmm.nn.GINConv(torch.nn.Identity(), eps=1.)
        >>> conv(torch.tensor([[1.], [10.]]), torch.tensor([[0], [1]]))
        tensor([[ 2.],
                [21.]])
    """

    eps: Tensor

    def __init__(
        self, nn: Callable[[Tensor], Tensor], eps: float = 0.0, train_eps: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(kwargs.get("aggr", "add"))
        self._set_up(nn, eps, train_eps, kwargs)
        self.reset_parameters()

    def _set_up(self, nn: Callable[[Tensor], Tensor], eps: float, train_eps: bool, options: dict[str, Any]) -> None:
        self.reduce = reduction(type(self).__name__, options.pop("aggr", "add"))
        require_options(type(self).__name__, options)
        if not callable(nn) or isinstance(nn, type):
            raise TypeError(f"{type(self).__name__}: nn must be a module, or a function of a tensor, not {nn!r}")
        self.nn = nn
        self.initial_eps = require_number(type(self).__name__, "eps", eps)
        if train_eps:
            self.eps = torch.nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("eps", torch.empty(1))

    def reset_parameters(self) -> None:
        """Draws nn's parameters anew, and sets eps to its first value."""
        reset(self.nn)
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Tensor | OptPair, edge_index: Any, size: Size = None) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in], or a pair of [sources, in] and [targets, in] or None; a leading batch
                dimension is allowed.
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. As in PyG's layer, a matrix's
                values [nnz] multiply x, but those of a torch_sparse ``SparseTensor`` have no part in
                the result.
            size: (sources, targets), for targets without features.

        Returns:
            [targets, out].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, eps, nn's parameters, and a matrix's values.
        """
        require_nodes("GINConv", x, batch=True)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, size)
        adj, (source, target) = bipartite(edge_index, x, size)
        self._require_one_size(source, target)
        return self._combine(aggregate(adj, source, self.reduce), target)

    def _require_one_size(self, source: Tensor, target: Tensor | None) -> None:
        if target is not None and target.shape[-1] != source.shape[-1]:
            raise ValueError(
                f"{type(self).__name__}: x[0] has {source.shape[-1]} features and x[1] {target.shape[-1]}, "
                "which are added"
            )

    def _combine(self, out: Tensor, target: Tensor | None) -> Tensor:
        return self.nn(out if target is None else out + (1 + self.eps) * target)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nn={self.nn})"


class GINEConv(GINConv):
    """``nn((1 + eps) x + sum of relu(x of a neighbour + e of its edge))``, as ``torch_geometric.nn.GINEConv``.

    Args:
        nn, eps, train_eps, kwargs: as in ``GINConv``.
        edge_dim: D of the edge features, which a linear map takes to the ``in_features`` (or
            ``in_channels``) of nn or, where nn is a Sequential, of its first module; without it D is in.

    Raises:
        TypeError: as ``GINConv``.
        ValueError: an option that is not supported, or an nn whose input size cannot be seen.

    The names in ``state_dict`` are PyG's: ``eps``, ``nn.*`` and, with ``edge_dim``, ``lin.*``.

    Cost: two SpMMs per call, over matrices with one entry per edge; [edges, in] is stored, as the
    nonlinearity on each edge demands.

    Source: Hu et al., "Strategies for Pre-training Graph Neural Networks", 2020.

    Example:
        >>> conv = fusedmm.nn.GINEConv(torch.nn.Identity())
        >>> conv(torch.tensor([[1.], [10.]]), torch.tensor([[0], [1]]), torch.tensor([[-3.]]))
        tensor([[ 1.],
                [10.]])
    """

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        Layer.__init__(self, kwargs.get("aggr", "add"))
        self._set_up(nn, eps, train_eps, kwargs)
        if edge_dim is not None:
            require_size("GINEConv", "edge_dim", edge_dim, lazy=True)
        self.lin = None if edge_dim is None else Linear(edge_dim, _input_size(nn))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew, and sets eps to its first value."""
        super().reset_parameters()
        if self.lin is not None:
            self.lin.reset_parameters()

    def forward(  # type: ignore[override]  # PyG's order of arguments
        self, x: Tensor | OptPair, edge_index: Any, edge_attr: Tensor | None = None, size: Size = None
    ) -> Tensor:
        """Convolves node and edge features over a graph.

        Args:
            x: floating, [nodes, in], or a pair of [sources, in] and [targets, in] or None; a leading batch
                dimension is allowed.
            edge_index: as in ``GINConv``, but as in PyG's layer a matrix's values [nnz, D] are its edge
                features where no edge_attr is given; values [nnz] have no part in the result.
            edge_attr: [edges, D], in the graph's order; needed where the graph has no edge features.
            size: (sources, targets), for targets without features.

        Returns:
            [targets, out].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, edge_attr (or a matrix's values), eps and the parameters.
        """
        require_nodes("GINEConv", x, batch=True)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, edge_attr, size)
        adj, (source, target) = with_edge_values(edge_index, x, size)
        self._require_one_size(source, target)
        edge_attr = features_of(adj) if edge_attr is None else edge_attr
        edge_attr = require_edge_attr("GINEConv", edge_attr, adj.nnz, self.lin, flat=False)
        edge = edge_attr if self.lin is None else self.lin(edge_attr)
        if edge.size(1) != source.size(-1):
            raise ValueError(
                f"GINEConv: edge_attr gives edges {edge.size(1)} features and x nodes {source.size(-1)}; "
                "edge_dim maps edges"
            )
        message = (aggregate(from_columns(adj), source, "sum") + edge).relu_()  # in place, for its size
        return self._combine(aggregate(into_rows(adj), message, self.reduce), target)


def _input_size(nn: torch.nn.Module) -> int:
    first = nn[0] if isinstance(nn, torch.nn.Sequential) else nn
    size = getattr(first, "in_features", getattr(first, "in_channels", None))
    if size is None:
        raise ValueError(f"GINEConv: edge_dim needs an nn that begins with in_features or in_channels, not {first}")
    return size
