"""Linear maps of what the two ends of an edge and the edge itself have, side by side.

Of ``W [x_i, x_j, e]`` the parts of W that stand for nodes are applied to nodes, which are fewer than edges. The results
are gathered by SpMMs (``fusedmm.matrix.incidence``), whose gradients are SpMMs too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from fusedmm.matrix.csr import CSR
from fusedmm.nn.adjacency import aggregate
from fusedmm.nn.linear import Linear, is_plain


def map_with_edges(lin: Linear, ends: list[tuple[CSR, Tensor]], attr: Tensor) -> Tensor:
    """``lin`` of what the ends of each edge have, and behind it of the edge's own features, [nnz, out].

    Args:
        lin: the map; where somebody sees its calls, it is called with what it is a map of.
        ends: matrices [nnz, nodes] that take rows from nodes to edges, and the features of these nodes.
        attr: [nnz, D].
    """
    if not is_plain(lin):
        return lin(torch.cat([*(aggregate(adj, x, "sum") for adj, x in ends), attr], -1))
    sizes = [x.shape[-1] for _, x in ends]
    *weights, of_edges = lin.weight.split([*sizes, attr.shape[-1]], 1)
    out = linear(attr, of_edges, lin.bias)
    for (adj, x), weight in zip(ends, weights, strict=True):
        out = out + aggregate(adj, linear(x, weight), "sum")
    return out
