"""What the attention layers have in common: their graph with self loops, edge features, and what they return."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedmm.matrix import arguments
from fusedmm.matrix.adapters import is_edge_index
from fusedmm.matrix.arguments import FLOATS, require_data
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.normalize import with_loops, without_loops
from fusedmm.matrix.structure import CONVERTED, INTEGERS, outside
from fusedmm.nn.adjacency import (
    OptPair,
    Size,
    features_of,
    nodes_of,
    reduction,
    require_shape,
    with_edge_values,
    with_one_loop,
)
from fusedmm.nn.checks import require_edge_attr, require_number, require_options
from fusedmm.nn.linear import Linear
from fusedmm.ops.checks import require_pattern
from fusedmm.ops.spmm import spmm

Fill = float | Tensor | str | None
Weights = tuple[Any, Tensor]


class Edges(NamedTuple):
    """A structure without values, and what its edges carry, in the order of its edges."""

    adj: CSR
    attr: Tensor | None  # [nnz, D]


def glorot_linear(in_channels: int, out_channels: int, bias: bool = False) -> Linear:
    """A linear map as PyG's GATConv and GATv2Conv draw theirs: weights by glorot, biases uniform; TransformerConv's
    maps are plain ones, whose weights are uniform too."""
    return Linear(in_channels, out_channels, bias, weight_initializer="glorot")


def require_sum(layer: str, options: dict[str, Any]) -> None:
    """Refuses an aggr other than the sum, and options of PyG's base class with other values than PyG's defaults."""
    aggr = options.pop("aggr", "add")
    if reduction(layer, aggr) != "sum":
        raise ValueError(f"{layer}: aggr must be 'add' or 'sum', not {aggr!r}")
    require_options(layer, options, node_dim=0)  # of [nodes, F] the first is the last but one


MEAN = "".join(("me", "an"))  # the default of fill_value; another object than a "mean" that is given


def require_fill(layer: str, fill: Any, edge_dim: int | None) -> None:
    """Checks that features of self loops can be made of ``fill``."""
    if isinstance(fill, str):
        reduction(layer, fill, "fill_value")
    elif fill is not None and not isinstance(fill, (int, float, Tensor)):
        raise ValueError(f"{layer}: fill_value must be a number, a tensor or a reduction, not {fill!r}")
    elif isinstance(fill, (int, float)):
        require_number(layer, "fill_value", fill)
    elif isinstance(fill, Tensor):
        require_data(f"{layer}: fill_value", fill)
        if fill.dtype not in (*FLOATS, *INTEGERS):
            raise TypeError(f"{layer}: fill_value must hold real numbers, not {fill.dtype}")
        if edge_dim is not None and edge_dim > 0:
            require_width(fill, edge_dim, f"{layer}: ")


def require_width(fill: Tensor, edge_dim: int, layer: str = "") -> None:
    """Requires that features given for self loops are [D], [1, D] or one number."""
    if fill.numel() != 1 and tuple(fill.shape) not in ((edge_dim,), (1, edge_dim)):
        raise ValueError(f"{layer}fill_value must be [{edge_dim}], as edge_attr's features, not {list(fill.shape)}")


def edges(
    layer: str,
    graph: Any,
    x: Tensor | OptPair | CSR,
    size: Size,
    edge_attr: Tensor | None,
    lin_edge: Any,
    loops: bool = False,
    fill: Fill = None,
    needs_map: bool = False,
) -> tuple[Edges, OptPair]:
    """The graph and its edge features, which are those of its values where none are given; none without their
    map, or refused where they need one.

    With ``loops`` each node has exactly one self loop, behind the other edges; its features are ``fill``, or a
    reduction over the other edges into the node.
    """
    if torch.compiler.is_dynamo_compiling() and isinstance(graph, Tensor):
        return outside(CONVERTED, _with_transpose, layer, graph, x, size, edge_attr, lin_edge, loops, fill, needs_map)
    needs_map = needs_map and lin_edge is None
    if needs_map and edge_attr is not None:
        raise ValueError(f"{layer}: edge_attr needs edge_dim")
    if loops and lin_edge is None and is_edge_index(graph):
        pair, sources, targets = nodes_of(graph, x, size)
        return Edges(with_one_loop(graph, sources, targets).pattern, None), pair
    if lin_edge is None and type(graph) is CSR:
        pair, sources, targets = nodes_of(graph, x, size)
        require_shape(graph, sources, targets)
        if needs_map and features_of(graph) is not None:
            _refuse_features(layer, graph, graph)
        return Edges(with_loops(graph).pattern if loops else graph.pattern(), None), pair
    adj, pair = with_edge_values(graph, x, size)
    attr = features_of(adj) if edge_attr is None else edge_attr
    if needs_map and attr is not None:
        _refuse_features(layer, adj, graph)
    if lin_edge is None or attr is None:
        given = Edges(adj.pattern(), None)
    else:
        given = Edges(adj.pattern(), require_edge_attr(layer, attr, adj.nnz, lin_edge))
    return _add_loops(given, fill) if loops else given, pair


def _refuse_features(layer: str, adj: CSR, graph: Any) -> None:
    require_pattern(layer, "edge features need edge_dim", adj, graph, "edge_index")


def _with_transpose(*args: Any) -> tuple[Edges, OptPair]:
    """``edges`` for compiled code, with the transpose that its gradients need beforehand."""
    found = edges(*args)
    if torch.is_grad_enabled():
        found[0].adj.cache_transpose()
    return found


def _add_loops(given: Edges, fill: Fill) -> Edges:
    adj, attr = given
    looped = with_loops(adj)
    if attr is None:
        return Edges(looped.pattern, None)
    nodes = min(adj.shape)
    if isinstance(fill, str):
        reduce = "sum" if fill == "add" else fill
        loops = spmm(without_loops(adj), attr, reduce=reduce)[:nodes].to(attr.dtype)
    elif isinstance(fill, Tensor):
        require_width(fill, attr.size(1))
        loops = fill.to(attr).expand(nodes, attr.size(1))
    else:
        number = 1.0 if fill is None else arguments.require_number("fill_value", fill, attr.dtype)
        loops = attr.new_full((nodes, attr.size(1)), number)
    others = attr if looped.others is None else attr.index_select(0, looped.others)
    return Edges(looped.pattern, torch.cat([others, loops]))


def merged(out: Tensor, concat: bool) -> Tensor:
    """[nodes, heads, C] with the heads side by side, or their mean."""
    return out.flatten(1) if concat else out.mean(dim=1)


def writable(out: Tensor, added: bool) -> Tensor:
    """What a layer returns may be written to, as PyG's: it is a copy where nothing was added to what the
    gradient needs as it is."""
    return out if added or not out.requires_grad else out.clone()


def with_weights(out: Tensor, graph: Any, adj: CSR, alpha: Tensor, same: bool) -> tuple[Tensor, Weights]:
    """What PyG returns with attention weights: the edges they belong to, in the form of the graph given."""
    if not isinstance(graph, Tensor):
        return out, (adj.with_values(alpha), alpha)
    if graph.layout != torch.strided:
        return out, (_in_layout(adj, alpha, graph.layout), alpha)
    if same:
        return out, (graph, alpha)
    row, col, _ = adj.coo()
    return out, (torch.stack([col, row]).to(graph.dtype), alpha)


def _in_layout(adj: CSR, alpha: Tensor, layout: torch.layout) -> Tensor:
    """A torch sparse tensor [targets, sources, H] of weights [nnz, H]; those of repeated edges are added up."""
    row, col, _ = adj.coo()
    made = torch.sparse_coo_tensor(torch.stack([row, col]), alpha, (*adj.shape, alpha.shape[1])).coalesce()
    return made if layout == torch.sparse_coo else made.to_sparse(layout=layout)
