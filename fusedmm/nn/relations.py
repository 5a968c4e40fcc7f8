"""Edges of several types as two matrices: from sources to pairs of a type and a target, and from pairs to targets.

A pair stands for the edges of one type into one target, and pairs are in the order of the types. So a reduction over
each target's edges of each type is an SpMM with the first matrix, what is done with the pairs of a type goes over
consecutive rows, and a sum over the types is an SpMM with the second. There are no more pairs than edges.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedmm._torch_compat import writes_to
from fusedmm.matrix.arguments import require_range, require_vector
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import from_rows
from fusedmm.matrix.structure import derived, lasting, outside, shared_by

SORTED = "edges are sorted by their types outside of compiled code, which a layer of relations cannot do in one graph"


class Relations(NamedTuple):
    """What is made of a graph and the types of its edges."""

    pairs: CSR  # [pairs, sources], an entry per edge
    targets: CSR  # [targets, pairs], an entry per pair
    counts: list[int]  # of the pairs of each type
    types: Tensor  # the type of each entry of ``pairs``

    def looked_up(self, number: Tensor | None, numbers: int) -> CSR:
        """``pairs`` for sources that have a number below ``numbers`` each (their own without one) in place of features.

        [pairs, types * numbers]: its entry for an edge from j is in column ``type * numbers + number[j]``.
        """
        if number is None:
            return derived(self.pairs, ("looked up", numbers), SORTED, _looked_up, self, None, numbers)
        return _looked_up(self.pairs, self, number, numbers)


@lasting
def _looked_up(adj: CSR, related: Relations, number: Tensor | None, numbers: int) -> CSR:
    col, cols = adj.idx.long(), len(related.counts) * numbers
    if cols >= 2**31:
        raise ValueError(f"{cols} rows of weights to look up: there must be fewer than 2^31")
    col = related.types * numbers + (col if number is None else number.long().index_select(0, col))
    return CSR.make(adj.ptr, col.int(), adj.eid, None, cols, False)


class Known(NamedTuple):
    """The relations that were made last of a graph, and the types that they are of."""

    of: weakref.ref[Tensor]
    mark: Any
    made: Relations


def relations_of(layer: str, adj: CSR, types: Any, count: int) -> Relations:
    """The relations of a graph, made once for as long as the tensor of types lives unchanged.

    Args:
        layer: for the text of errors.
        adj: the graph.
        types: integers [nnz] in [0, count), in the graph's order of edges.
        count: how many types there are.

    Raises:
        TypeError: types that are no tensor of integers, or on another device.
        ValueError: types of another shape, or outside.
        RuntimeError: in compiled code of one graph.
    """
    if torch.compiler.is_compiling():
        return outside(SORTED, relations_of, layer, adj, types, count)
    if types is None:
        raise ValueError(f"{layer}: edge_type must be given, one number for each edge")
    require_vector(f"{layer}: edge_type", types)
    watched = not types.is_inference()
    mark = (writes_to(types), types.data_ptr(), types.shape, types.dtype) if watched else None
    of_graph = shared_by(adj).derived
    known: Known | None = of_graph.get(("relations", count))
    if known is None or mark is None or known.of() is not types or known.mark != mark:
        known = Known(weakref.ref(types), mark, _made(layer, adj, types, count))
        of_graph[("relations", count)] = known
    if torch.is_grad_enabled():  # which compiled code needs beforehand
        known.made.pairs.cache_transpose()
        known.made.targets.cache_transpose()
    return known.made


@lasting
def _made(layer: str, adj: CSR, types: Tensor, count: int) -> Relations:
    if types.shape != (adj.nnz,):
        raise ValueError(f"{layer}: edge_type must be [{adj.nnz}], not {list(types.shape)}")
    if types.device != adj.device:
        raise TypeError(f"{layer}: edge_type is on {types.device}, the graph on {adj.device}")
    require_range(f"{layer}: edge_type[{{}}]", types, count)
    row, rows, types = from_rows(adj).idx.long(), adj.shape[0], types.long()
    key, pair = torch.unique(types * rows + row, return_inverse=True)
    number = torch.arange(key.numel(), device=key.device)
    pairs = adj._regrouped(pair, key.numel())
    targets = CSR.from_coo(key % max(rows, 1), number, shape=(rows, key.numel()), check=False)
    counts = torch.bincount(key.div(max(rows, 1), rounding_mode="floor"), minlength=count).tolist()
    order = pairs.eid.long() if pairs.eid.numel() else slice(None)
    return Relations(pairs, targets, counts, types[order])
